"""The compute-optimal split of a budget between parameters and tokens, with intervals.

For a N^-alpha + b D^-beta (+ E) and FLOPs = k·N·D the optimum is N = G·(FLOPs/k)^(beta/(alpha+beta)) with G =
(alpha·a / (beta·b))^(1/(alpha+beta)) (Hoffmann et al. 2022, equation 4). k = 6 is the usual count of training FLOPs;
at long contexts attention costs more (docs/laws.md), so k can be given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gridlaw.pipelines.laws.fit import LawFit, evaluate
from gridlaw.pipelines.laws.forms import Array, get_form
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
            at_best = np.array(
                [evaluate(form, row[None], n, d)[0] for row, n, d in zip(proper, drawn_N, drawn_D, strict=True)]
            )
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
