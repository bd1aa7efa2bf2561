"""Where fits start: a fixed lattice over exponents and shares of the terms, no bounds to tune by hand.

Each lattice point names exponents and the share of each term at the centre of the data; the overall size then follows
from the median of the residuals. Ranges are in units of the data: an exponent is tried from 1/32 up to a few times
the steepest slope that the values show.
"""

from __future__ import annotations

import itertools

import numpy as np

from gridlaw.pipelines.laws.forms import Array, Design
from gridlaw.pipelines.laws.solver import Loss

_SHARES_TWO = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_SHARES_THREE = tuple(
    (n, d, 1.0 - n - d) for n, d in itertools.product((0.05, 0.2, 0.4, 0.7), repeat=2) if n + d < 0.97
)


def lattice(design: Design, log_y_P: Array, *, exponents_each: int = 8) -> Array:
    """Starting parameters [S, K] for one table (log_y_P: log values)."""
    form = design.form
    places = form.positions()
    num_terms = len(places)
    spread = float(np.ptp(log_y_P))
    axes = []
    for t, (_, e) in enumerate(places):
        if e is not None:
            width = max(float(np.ptp(design.u_TP[t])), 1e-6)
            steepest = max(spread / width, 1e-3)
            axes.append(steepest * np.geomspace(1 / 32, 6.0, exponents_each))
    shares: list[tuple[float, ...]]
    if num_terms == 1:
        shares = [(1.0,)]
    elif num_terms == 2:
        shares = [(s, 1.0 - s) for s in _SHARES_TWO]
    else:
        shares = list(_SHARES_THREE)
    rows = []
    for exponents in itertools.product(*axes):
        for share in shares:
            row = np.zeros(form.num_parameters)
            remaining = iter(exponents)
            for (c, e), part in zip(places, share, strict=True):
                row[c] = np.log(part)
                if e is not None:
                    row[e] = next(remaining)
            rows.append(row)
    starts_SK = np.array(rows)
    for t, (c, e) in enumerate(places):
        if e is not None and design.centre_T[t] == 0.0:  # uncentred: the share was meant at the middle of the points
            starts_SK[:, c] += starts_SK[:, e] * float(np.mean(design.u_TP[t]))
    log_law_SP, _ = design.log_value(starts_SK)
    shift_S = np.median(log_y_P[None] - log_law_SP, axis=1)
    for c, _ in places:
        starts_SK[:, c] += shift_S
    return starts_SK


def select(design: Design, starts_SK: Array, log_y_BP: Array, weight_BP: Array, loss: Loss, *, num: int) -> Array:
    """For each of B tables the best start of each of ``num`` groups of the lattice, [B, num, K].

    The groups are interleaved slices of the lattice ordered by the balance of its terms, so that the chosen starts
    differ.
    """
    log_law_SP, share_STP = design.log_value(starts_SK)
    order = np.lexsort((starts_SK[:, -1], share_STP[:, 0].mean(axis=1)))
    groups = np.array_split(order, min(num, len(order)))
    chosen = np.empty((len(log_y_BP), len(groups)), dtype=int)
    wide = loss.smoothed(16.0)
    for begin in range(0, len(log_y_BP), 256):
        rows = slice(begin, begin + 256)
        for g, members in enumerate(groups):
            cost = wide.value(log_y_BP[rows, None] - log_law_SP[None, members])
            chosen[rows, g] = members[np.einsum("bsp,bp->bs", cost, weight_BP[rows]).argmin(axis=1)]
    return starts_SK[chosen]
