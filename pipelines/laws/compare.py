"""Architectures side by side: the gap between two laws, the budget at which they meet, and how stable their ranking is.

Resamples of different laws are paired at random: their points come from different runs. Where runs share data order,
noise in common would cancel in a gap, so the intervals here err on the wide side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.laws.forms import Array
from gridlaw.pipelines.laws.intervals import percentile_interval
from gridlaw.platform.errors import BadInput


def _paired(first: LawFit, second: LawFit) -> int:
    num = min(len(first.draws), len(second.draws))
    if num == 0:
        raise BadInput("intervals", seen="none", allowed="laws fitted with intervals", hint="Fit both with resamples")
    return num


@dataclass(frozen=True, kw_only=True, eq=False)
class Gap:
    """first - second at N and D, its interval, and the share of resamples in which the first is lower."""

    num_params: Any
    num_tokens: Any
    gap: Any
    low: Any
    high: Any
    first_lower: Any
    level: float


def gap(
    first: LawFit, second: LawFit, num_params: ArrayLike, num_tokens: ArrayLike, *, level: float | None = None
) -> Gap:
    """Difference of two laws (the curves, without the noise of a new point) at N and D, arrays broadcast together."""
    num = _paired(first, second)
    level = first.level if level is None else level
    order = np.random.default_rng(0).permutation(num)
    differences = (
        first.predict_draws(num_params, num_tokens)[:num] - second.predict_draws(num_params, num_tokens)[order]
    )
    low, high = percentile_interval(differences, level)
    return Gap(
        num_params=num_params,
        num_tokens=num_tokens,
        gap=first.predict(num_params, num_tokens) - second.predict(num_params, num_tokens),
        low=low,
        high=high,
        first_lower=(differences < 0).mean(axis=0),
        level=level,
    )


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Tokens from which on two laws stay within a margin at one N. Infinite: not within the range searched.

    never: share of resamples in which they do not come that close in the range.
    """

    num_params: float
    margin: float
    num_tokens: float
    low: float
    high: float
    never: float
    searched_to: float


def meeting_budget(
    first: LawFit,
    second: LawFit,
    num_params: float,
    *,
    margin: float,
    from_tokens: float | None = None,
    to_tokens: float | None = None,
    steps: int = 400,
    level: float | None = None,
) -> Meeting:
    """The least budget D after which |first - second| stays at or below ``margin`` (in the target's units): emergence
    speed.

    Searched on a logarithmic grid from ``from_tokens`` (default: the least D measured) to ``to_tokens`` (default:
    1000 times the largest D measured), to within one step of it.
    """
    if margin <= 0:
        raise BadInput("margin", seen=margin, allowed="a number above 0, in the target's units")
    num = _paired(first, second)
    level = first.level if level is None else level
    tokens = np.concatenate([first.points.num_tokens, second.points.num_tokens])
    begin = float(tokens.min()) if from_tokens is None else from_tokens
    end = 1000.0 * float(tokens.max()) if to_tokens is None else to_tokens
    if not 0 < begin < end:
        raise BadInput("from_tokens, to_tokens", seen=(begin, end), allowed="0 < from_tokens < to_tokens")
    grid = np.geomspace(begin, end, steps)
    main = _first_within(
        np.asarray(first.predict(num_params, grid) - second.predict(num_params, grid))[None], margin, grid
    )
    order = np.random.default_rng(0).permutation(num)
    drawn = _first_within(
        first.predict_draws(num_params, grid)[:num] - second.predict_draws(num_params, grid)[order], margin, grid
    )
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(drawn, [tail, 100.0 - tail], method="nearest")  # infinities may not be averaged
    return Meeting(
        num_params=float(num_params),
        margin=margin,
        num_tokens=float(main[0]),
        low=float(low),
        high=float(high),
        never=float(np.isinf(drawn).mean()),
        searched_to=end,
    )


def _first_within(difference_RD: Array, margin: float, grid_D: Array) -> Array:
    """Of each row, the grid value after the last one outside the margin."""
    outside = np.abs(difference_RD) > margin
    last = np.where(outside.any(axis=1), difference_RD.shape[1] - 1 - outside[:, ::-1].argmax(axis=1), -1)
    return np.where(last + 1 < len(grid_D), grid_D[np.minimum(last + 1, len(grid_D) - 1)], np.inf)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """Architectures by predicted value at one N and D, lowest first.

    frame: architecture, predicted, low, high, mean_rank, first (share of resamples in which it is first), and
    keeps_rank (share in which it holds the rank that the fit gives it); lower: share of resamples in which row is
    below column.
    """

    frame: pd.DataFrame
    lower: pd.DataFrame
    same_order: float


def ranking(laws: Mapping[str, LawFit], num_params: float, num_tokens: float) -> Ranking:
    """Rank laws at N and D and measure by resamples how far to trust the order."""
    if len(laws) < 2:
        raise BadInput("laws", seen=len(laws), allowed="two or more architectures")
    num = min(len(law.draws) for law in laws.values())
    if num == 0:
        raise BadInput("intervals", seen="none", allowed="laws fitted with intervals", hint="Fit all with resamples")
    rng = np.random.default_rng(0)
    names = sorted(laws, key=lambda name: laws[name].predict(num_params, num_tokens))
    drawn_RA = np.stack(
        [laws[name].predict_draws(num_params, num_tokens)[rng.permutation(num)] for name in names], axis=1
    )
    rank_RA = drawn_RA.argsort(axis=1).argsort(axis=1)
    rows = []
    for place, name in enumerate(names):
        low, high = percentile_interval(drawn_RA[:, place], laws[name].level)
        rows.append(
            {
                "architecture": name,
                "predicted": laws[name].predict(num_params, num_tokens),
                "low": float(low),
                "high": float(high),
                "mean_rank": float(rank_RA[:, place].mean()) + 1.0,
                "first": float((rank_RA[:, place] == 0).mean()),
                "keeps_rank": float((rank_RA[:, place] == place).mean()),
            }
        )
    below = (drawn_RA[:, :, None] < drawn_RA[:, None, :]).mean(axis=0)
    return Ranking(
        frame=pd.DataFrame(rows),
        lower=pd.DataFrame(below, index=names, columns=names),
        same_order=float((rank_RA == np.arange(len(names))).all(axis=1).mean()),
    )
