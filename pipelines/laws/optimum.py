"""The compute-optimal split of a budget between parameters and tokens, with intervals.

For a N^-alpha + b D^-beta (+ E) and FLOPs = k·N·D the optimum is N = G·(FLOPs/k)^(beta/(alpha+beta)) with G =
(alpha·a / (beta·b))^(1/(alpha+beta)) (Hoffmann et al. 2022, equation 4). k = 6 is the usual count of training FLOPs;
at long contexts attention costs more (docs/laws.md), so k can be given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.laws.forms import Array, Form, get_form
from gridlaw.pipelines.laws.intervals import percentile_interval
from gridlaw.platform.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Best N and D for a number of FLOPs, the value there, and intervals (None without resamples)."""

    flops: float
    num_params: float
    num_tokens: float
    value: float
    num_params_interval: tuple[float, float] | None
    num_tokens_interval: tuple[float, float] | None
    value_interval: tuple[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        return {name: list(held) if isinstance(held, tuple) else held for name, held in self.__dict__.items()}


def compute_optimal(law: LawFit, flops: float, *, flops_per_param_token: float = 6.0) -> Optimum:
    """The N and D that minimise the law at ``flops`` training FLOPs = flops_per_param_token · N · D."""
    if not {"alpha", "beta"} <= set(law.parameters):
        raise BadInput("form", seen=law.form, allowed="nd or nde", hint="A split needs both terms")
    if not (np.isfinite(flops) and flops > 0):
        raise BadInput("flops", seen=flops, allowed="a number above 0")
    if law.parameters["alpha"] <= 0 or law.parameters["beta"] <= 0:
        raise BadInput("law", seen=law.parameters, allowed="both exponents above 0", hint="There is no inner optimum")
    product = flops / flops_per_param_token
    form = get_form(law.form)
    best_N = _best_params(np.array([list(law.parameters.values())]), form.index, product)
    value = law.predict(best_N[0], product / best_N[0])
    spans: list[tuple[float, float] | None] = [None, None, None]
    if len(law.draws):
        proper = law.draws[(law.draws[:, form.index("alpha")] > 0) & (law.draws[:, form.index("beta")] > 0)]
        drawn_N = _best_params(proper, form.index, product)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            drawn_D = product / drawn_N
            at_best = _values(form, proper, drawn_N, drawn_D)
        for place, drawn in enumerate((drawn_N, drawn_D, at_best)):
            finite = drawn[np.isfinite(drawn)]
            if len(finite):
                low, high = percentile_interval(finite, law.level)
                spans[place] = (float(low), float(high))
    return Optimum(
        flops=float(flops),
        num_params=float(best_N[0]),
        num_tokens=float(product / best_N[0]),
        value=float(value),
        num_params_interval=spans[0],
        num_tokens_interval=spans[1],
        value_interval=spans[2],
    )


def _best_params(natural_RK: Array, index: Any, product: float) -> Array:
    """Optimal N of each draw, in logarithms: coefficients of runaway exponents exceed the floats when multiplied."""
    a, alpha, b, beta = (natural_RK[:, index(name)] for name in ("a", "alpha", "b", "beta"))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        log_g = (np.log(alpha) + np.log(a) - np.log(beta) - np.log(b)) / (alpha + beta)
        return np.exp(log_g + beta / (alpha + beta) * np.log(product))


def _values(form: Form, natural_RK: Array, n_R: Array, d_R: Array) -> Array:
    """Each draw's law at its own N and D, [R]."""
    total_R = np.zeros(len(natural_RK))
    for (c, e), letter in zip(form.positions(), form.letters, strict=True):
        log_term_R = np.log(natural_RK[:, c])
        if e is not None:
            log_term_R = log_term_R - natural_RK[:, e] * np.log(n_R if letter == "n" else d_R)
        total_R += np.exp(log_term_R)
    return total_R


def optimal_path(law: LawFit, flops: Array, *, flops_per_param_token: float = 6.0) -> tuple[Array, Array]:
    """Compute-optimal N and D for each number of FLOPs, without intervals: for drawing."""
    form = get_form(law.form)
    natural_1K = np.array([list(law.parameters.values())])
    products = np.asarray(flops, dtype=float) / flops_per_param_token
    best_N = np.array([_best_params(natural_1K, form.index, product)[0] for product in products])
    return best_N, products / best_N
