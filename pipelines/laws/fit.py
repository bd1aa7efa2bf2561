"""Fit a scaling law to points: one call, a frozen result that predicts, with intervals and a verdict in plain words.

    law = fit_law(num_params, num_tokens, values)          # a N^-alpha + b D^-beta
    law.alpha, law.intervals["alpha"], law.verdict
    law.predict(476_852_480, 476.85e9), law.predict_interval(476_852_480, 476.85e9)

The objective is that of arXiv 2606.15378: Huber with delta 1e-3 on residuals of logarithms, summed. The only bounds
by default are those that make the form a law (exponents are not negative); a parameter that ends at a bound is named
in ``at_bounds``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gridlaw.pipelines.laws import intervals as intervals_module
from gridlaw.pipelines.laws.forms import Array, Form, get_form
from gridlaw.pipelines.laws.points import Points, check_fittable, check_points
from gridlaw.pipelines.laws.problem import Problem, best_fits, make_problem
from gridlaw.pipelines.laws.verdict import plain_verdict
from gridlaw.platform.errors import BadInput


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """How well predictions meet values, on the values themselves. r2 is NaN for fewer than two points."""

    r2: float
    rmse: float
    mae: float
    num_points: int

    def to_dict(self) -> dict[str, Any]:
        return {"r2": self.r2, "rmse": self.rmse, "mae": self.mae, "num_points": self.num_points}


def score(values: Array, predicted: Array) -> Scores:
    """R², RMSE and MAE of predictions, in the target's own units."""
    error = np.asarray(values) - np.asarray(predicted)
    total = float(((values - np.mean(values)) ** 2).sum())
    r2 = 1.0 - float((error**2).sum()) / total if len(error) > 1 and total > 0 else float("nan")
    return Scores(r2=r2, rmse=float(np.sqrt((error**2).mean())), mae=float(np.abs(error).mean()), num_points=len(error))


@dataclass(frozen=True, kw_only=True, eq=False)
class LawFit:
    """A fitted law. ``parameters``: a, alpha, b, beta, E as far as the form has them; ``intervals``: name → (low,
    high).
    """

    form: str
    parameters: dict[str, float]
    loss: str
    delta: float
    bounds: dict[str, tuple[float | None, float | None]]
    objective: float
    r2: float
    rmse: float
    mae: float
    converged: bool
    num_starts: int
    agreeing_starts: int
    at_bounds: tuple[str, ...]
    num_points: int
    num_groups: int
    residual_sd: float
    trunk_correlation: float | None
    trunk_dof: float
    interval_method: str
    level: float
    intervals: dict[str, tuple[float, float]]
    num_resamples: int
    num_degenerate: int
    verdict: str
    identified: bool
    points: Points = field(repr=False)
    draws: Array = field(repr=False)  # [resamples, parameters], in the order of the form's parameters
    draw_noise: Array = field(repr=False)  # [resamples], standard deviation of log residuals that goes with each draw

    @property
    def a(self) -> float | None:
        return self.parameters.get("a")

    @property
    def alpha(self) -> float | None:
        return self.parameters.get("alpha")

    @property
    def b(self) -> float | None:
        return self.parameters.get("b")

    @property
    def beta(self) -> float | None:
        return self.parameters.get("beta")

    @property
    def E(self) -> float | None:
        return self.parameters.get("E")

    @property
    def formula(self) -> str:
        return get_form(self.form).formula

    def predict(self, num_params: ArrayLike, num_tokens: ArrayLike) -> Any:
        """The law at N and D (broadcast together): an array, or a float for two numbers."""
        result = evaluate(get_form(self.form), np.array([list(self.parameters.values())]), num_params, num_tokens)[0]
        return float(result) if result.ndim == 0 else result

    def predict_draws(self, num_params: ArrayLike, num_tokens: ArrayLike) -> Array:
        """The law under every resample, [resamples, *shape]."""
        return evaluate(get_form(self.form), self.draws, num_params, num_tokens)

    def predict_interval(
        self, num_params: ArrayLike, num_tokens: ArrayLike, *, level: float | None = None, kind: str = "new"
    ) -> tuple[Any, Any]:
        """(low, high) at N and D. kind "new": where a newly measured point would fall; "curve": where the law itself
        lies.

        NaN where there are no resamples (``intervals="none"``, or as many parameters as points).
        """
        if kind not in ("new", "curve"):
            raise BadInput("kind", seen=kind, allowed="'new' (a newly measured point) or 'curve' (the law itself)")
        if len(self.draws) == 0:
            nothing = np.full(np.broadcast(np.asarray(num_params), np.asarray(num_tokens)).shape, np.nan)
            return (float("nan"), float("nan")) if nothing.ndim == 0 else (nothing, nothing)
        values = self.predict_draws(num_params, num_tokens)
        if kind == "new":
            noise = np.random.default_rng(0).standard_normal(len(values)) * self.draw_noise
            values = values * np.exp(noise.reshape(-1, *[1] * (values.ndim - 1)))
        low, high = intervals_module.percentile_interval(values, self.level if level is None else level)
        return (float(low), float(high)) if low.ndim == 0 else (low, high)

    def row(self) -> dict[str, Any]:
        """One flat row for a table of laws or of refits: counts, scores, parameters and the ends of their intervals."""
        flat: dict[str, Any] = {
            "num_points": self.num_points,
            "objective": self.objective,
            "r2": self.r2,
            "residual_sd": self.residual_sd,
            "converged": self.converged,
            "identified": self.identified,
        }
        for name, value in self.parameters.items():
            low, high = self.intervals.get(name, (float("nan"), float("nan")))
            flat |= {name: value, f"{name}_low": low, f"{name}_high": high}
        return flat

    def to_dict(self, *, draws: bool = True) -> dict[str, Any]:
        """JSON-able. ``draws=False`` leaves the resamples out (then a law read back has no prediction intervals)."""
        plain = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        plain["at_bounds"] = list(self.at_bounds)
        plain["intervals"] = {name: list(pair) for name, pair in self.intervals.items()}
        plain["bounds"] = {name: list(pair) for name, pair in self.bounds.items()}
        plain["points"] = self.points.to_dict()
        plain["draws"] = self.draws.tolist() if draws else []
        plain["draw_noise"] = self.draw_noise.tolist() if draws else []
        return plain

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> LawFit:
        plain = {name: raw[name] for name in _PLAIN_FIELDS}
        plain["at_bounds"] = tuple(raw["at_bounds"])
        plain["intervals"] = {name: (pair[0], pair[1]) for name, pair in raw["intervals"].items()}
        plain["bounds"] = {name: (pair[0], pair[1]) for name, pair in raw["bounds"].items()}
        held = raw["points"]
        points = check_points(held["num_params"], held["num_tokens"], held["values"], held["groups"])
        size = get_form(raw["form"]).num_parameters
        return LawFit(
            **plain,
            points=points,
            draws=np.array(raw["draws"], dtype=float).reshape(-1, size),
            draw_noise=np.array(raw["draw_noise"], dtype=float),
        )


_PLAIN_FIELDS = (
    "form", "parameters", "loss", "delta", "bounds", "objective", "r2", "rmse", "mae", "converged", "num_starts",
    "agreeing_starts", "at_bounds", "num_points", "num_groups", "residual_sd", "trunk_correlation", "trunk_dof",
    "interval_method", "level", "intervals", "num_resamples", "num_degenerate", "verdict", "identified",
)  # fmt: skip


def evaluate(form: Form, parameters_RK: Array, num_params: ArrayLike, num_tokens: ArrayLike) -> Array:
    """The law under R parameter vectors at N and D (broadcast together), [R, *shape]."""
    n, d = np.broadcast_arrays(np.asarray(num_params, dtype=float), np.asarray(num_tokens, dtype=float))
    total = np.zeros((len(parameters_RK), *n.shape))
    column = (-1, *[1] * n.ndim)
    for (c, e), letter in zip(form.positions(), form.letters, strict=True):
        size = parameters_RK[:, c].reshape(column)
        if e is None:
            total = total + size
        else:
            with np.errstate(
                divide="ignore"
            ):  # in logarithms: a runaway exponent comes with a coefficient beyond all floats
                total = total + np.exp(
                    np.log(size) - parameters_RK[:, e].reshape(column) * np.log(n if letter == "n" else d)
                )
    return total


def fit_law(
    num_params: ArrayLike,
    num_tokens: ArrayLike,
    values: ArrayLike,
    *,
    form: str = "nd",
    groups: Sequence[Any] | None = None,
    loss: str = "huber",
    delta: float = 1e-3,
    bounds: Mapping[str, tuple[float | None, float | None]] | None = None,
    intervals: str = "default",
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> LawFit:
    """Fit a law to points.

    num_params, num_tokens, values: N, D and the target (positive), one per point; form: a key of ``forms.FORMS``;
    groups: label of each point's trunk (default: one trunk per N); loss: "huber" (with delta, on log residuals,
    summed) or "least-squares"; bounds: parameter → (low, high), None for open; intervals: "default", one of
    ``intervals.METHODS``, or "none"; level: of all intervals. Raises BadInput where the points or settings allow no
    fit.
    """
    points = check_points(num_params, num_tokens, values, groups)
    chosen = get_form(form)
    check_fittable(points, chosen)
    if intervals == "default":
        intervals = intervals_module.DEFAULT_METHOD
    if intervals != "none" and intervals not in intervals_module.METHODS:
        raise BadInput("intervals", seen=intervals, allowed=f"default, none, {', '.join(intervals_module.METHODS)}")
    if not 0.5 <= level < 1:
        raise BadInput("level", seen=level, allowed="a probability from 0.5 to below 1, such as 0.95")
    problem = make_problem(points, chosen, loss=loss, delta=delta, bounds=bounds or {})
    found = best_fits(problem, points.log_values[None], np.ones((1, len(points))), num_starts=None)
    law = _assemble(problem, points, found.theta_BK[0], loss=loss, delta=delta, level=level)
    law = replace(
        law, objective=float(found.objective_B[0]), converged=bool(found.converged_B[0]),
        num_starts=found.num_starts, agreeing_starts=int(found.agreeing_B[0]),
    )  # fmt: skip
    if intervals != "none":
        law = intervals_module.add_intervals(
            law, problem, found.theta_BK[0], method=intervals, num_resamples=num_resamples, seed=seed
        )
    verdict, identified = plain_verdict(law)
    return replace(law, verdict=verdict, identified=identified)


def law_problem(law: LawFit) -> tuple[Problem, Array]:
    """The fitting problem behind a law and its optimum in that problem's centred parameters."""
    problem = make_problem(law.points, get_form(law.form), loss=law.loss, delta=law.delta, bounds=law.bounds)
    return problem, problem.design.from_natural(np.array(list(law.parameters.values())))


def _assemble(problem: Problem, points: Points, theta_K: Array, *, loss: str, delta: float, level: float) -> LawFit:
    form = problem.form
    natural_K = problem.design.to_natural(theta_K)
    predicted = evaluate(form, natural_K[None], points.num_params, points.num_tokens)[0]
    scores = score(points.values, predicted)
    noise = intervals_module.estimate_noise(problem, theta_K)
    return LawFit(
        form=form.name, parameters={k: float(v) for k, v in zip(form.parameters, natural_K, strict=True)},
        loss=loss, delta=delta, bounds={}, objective=float("nan"), r2=scores.r2, rmse=scores.rmse, mae=scores.mae,
        converged=False, num_starts=0, agreeing_starts=0, at_bounds=problem.named_bounds(theta_K),
        num_points=len(points), num_groups=len(set(points.groups)), residual_sd=noise.sd,
        trunk_correlation=noise.correlation, trunk_dof=noise.trunk_dof, interval_method="none", level=level,
        intervals={}, num_resamples=0, num_degenerate=0, verdict="", identified=False, points=points,
        draws=np.empty((0, form.num_parameters)), draw_noise=np.empty(0),
    )  # fmt: skip
