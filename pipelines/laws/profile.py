"""Profile-likelihood intervals of exponents.

An exponent is held at a value and everything else refitted; the values whose objective stays below a threshold form
the interval: the F test for least squares, its robust counterpart (Ronchetti 1982, the "tau test") for Huber. No
resampling; an open side is said to be open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from gridlaw.pipelines.laws.fit import LawFit, law_problem
from gridlaw.pipelines.laws.forms import Array
from gridlaw.pipelines.laws.intervals import Noise, estimate_noise
from gridlaw.pipelines.laws.problem import Problem
from gridlaw.pipelines.laws.solver import solve
from gridlaw.platform.errors import BadInput


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Profile of one exponent: objective against held value, and the interval below the threshold.

    A side that is still below the threshold at the end of the range is open: ``low`` 0 or ``high`` infinite.
    """

    name: str
    level: float
    held: Array
    objective: Array
    threshold: float
    low: float
    high: float


def rise_allowed(problem: Problem, objective_value: float, noise: Noise, level: float) -> float:
    """By how much the objective may rise at that level: F(1, dof) for least squares, its robust counterpart for
    Huber.
    """
    quantile = float(stats.f.ppf(level, 1, noise.dof))
    if problem.loss.delta is None:
        return quantile * objective_value / noise.dof
    # expectations under normal noise: psi' = P(|r| < delta), psi^2 = E[min(r^2, delta^2)]
    ratio = problem.loss.delta / noise.plain_sd
    inside = float(special.erf(ratio / np.sqrt(2.0)))
    density = float(np.exp(-0.5 * ratio * ratio) / np.sqrt(2.0 * np.pi))
    square = noise.plain_sd**2 * (inside - 2.0 * ratio * density + ratio**2 * (1.0 - inside))
    return 0.5 * quantile * square / inside


def profile_exponent(
    problem: Problem, theta_K: Array, objective_value: float, name: str, *, level: float = 0.95, num: int = 49
) -> Profile:
    """Profile-likelihood interval of an exponent; needs more points than parameters (BadInput).

    Trunk correlation is not in the threshold: with a strong one the interval is too narrow (docs/laws.md has figures).
    """
    noise = estimate_noise(problem, theta_K)
    if noise.dof <= 0:
        raise BadInput("points", seen=len(problem.log_y_P), allowed="more points than parameters for a profile")
    k = problem.form.index(name)
    best = float(theta_K[k])
    threshold = objective_value + rise_allowed(problem, objective_value, noise, level)
    width = max(float(np.ptp(problem.log_y_P)) / max(float(np.ptp(problem.design.u_TP)), 1e-9), best)
    held = np.unique(
        np.concatenate([[best], np.linspace(0.0, best, num // 2), best + width * np.geomspace(0.02, 30.0, num // 2)])
    )
    value = _profile_values(problem, theta_K, k, held)
    for _ in range(2):  # refine twice around both crossings
        extra = []
        for left in np.flatnonzero((value[:-1] <= threshold) != (value[1:] <= threshold)):
            extra.append(np.linspace(held[left], held[left + 1], 9)[1:-1])
        if not extra:
            break
        more = np.concatenate(extra)
        held, value = np.concatenate([held, more]), np.concatenate([value, _profile_values(problem, theta_K, k, more)])
        order = np.argsort(held)
        held, value = held[order], value[order]
    below = held[value <= threshold]
    low = 0.0 if below.min() <= held[0] else float(below.min())
    high = float("inf") if below.max() >= held[-1] else float(below.max())
    return Profile(name=name, level=level, held=held, objective=value, threshold=threshold, low=low, high=high)


def _profile_values(problem: Problem, theta_K: Array, k: int, held: Sequence[float] | Array) -> Array:
    """The least objective with parameter k held at each value, starting from the whole thinned lattice and the
    optimum.
    """
    starts_SK = np.concatenate([theta_K[None], problem.starts_SK[:: max(1, len(problem.starts_SK) // 16)]])
    values = np.asarray(held, dtype=float)
    start_MK = np.tile(starts_SK, (len(values), 1))
    fixed_M = np.repeat(values, len(starts_SK))
    lower_MK, upper_MK = np.tile(problem.lower_K, (len(fixed_M), 1)), np.tile(problem.upper_K, (len(fixed_M), 1))
    lower_MK[:, k] = upper_MK[:, k] = fixed_M
    solved = solve(
        problem.design, start_MK, problem.log_y_P[None], np.ones((1, len(problem.log_y_P))), loss=problem.loss,
        lower_MK=lower_MK, upper_MK=upper_MK, tolerance=1e-7,
    )  # fmt: skip
    return solved.objective_M.reshape(len(values), -1).min(axis=1)


def profile_law(law: LawFit, name: str, *, level: float | None = None) -> Profile:
    """Profile of an exponent of a fitted law at its points."""
    if name not in ("alpha", "beta") or name not in law.parameters:
        held = [exponent for exponent in ("alpha", "beta") if exponent in law.parameters]
        raise BadInput("exponent", seen=name, allowed=", ".join(held), hint=f"The form is {law.formula}")
    problem, theta_K = law_problem(law)
    return profile_exponent(problem, theta_K, law.objective, name, level=law.level if level is None else level)
