"""Intervals of a law: resampling in batches, the noise and its correlation within trunks, and profile likelihood.

Methods of resampling
- noise: new tables are drawn from the fitted law with independent normal noise of the estimated size and refitted.
  The size itself is drawn from its scaled inverse chi-squared law, which widens small tables as Student's t does.
- noise-trunks: the same, with a part of the noise common to each trunk, as estimated.
- points: points are drawn with replacement (pairs bootstrap).
- trunks: whole trunks are drawn with replacement; honest about dependence, but with three or four trunks many draws are
  degenerate (one scale only, say). They are left out and counted.

Profile likelihood (exponents only): an exponent is held at a value, the rest refitted, and values are kept while the
objective stays below a threshold: the F test for least squares, its robust counterpart (Ronchetti 1982, "tau test")
for Huber.

Measured coverage of each: docs/laws.md; the default is the one nearest nominal there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import special, stats

from gridlaw.pipelines.laws.forms import Array
from gridlaw.pipelines.laws.problem import Found, Problem, best_fits
from gridlaw.pipelines.laws.solver import solve
from gridlaw.platform.errors import BadInput

if TYPE_CHECKING:
    from gridlaw.pipelines.laws.fit import LawFit

METHODS = ("noise", "noise-trunks", "points", "trunks")
DEFAULT_METHOD = "noise"
REFIT_STARTS = 3  # per resample, besides the full fit's optimum; doubtful ones get more (problem.RESCUE_STARTS)
MIN_USABLE = 20  # fewer usable resamples than this give no interval
SPLIT = "split"  # name of the compute-optimal exponent beta / (alpha + beta) among the intervals


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """Size of the log residuals. sd: own and trunk parts together; plain_sd: as if independent (both NaN without
    degrees of freedom); correlation: within a trunk, None if not estimable.
    """

    sd: float
    plain_sd: float
    correlation: float | None
    dof: int

    @property
    def trunk_sd(self) -> float:
        return self.sd * float(np.sqrt(self.correlation or 0.0))

    @property
    def own_sd(self) -> float:
        return self.sd * float(np.sqrt(1.0 - (self.correlation or 0.0)))


def estimate_noise(problem: Problem, theta_K: Array) -> Noise:
    """Noise from the residuals r of a fit, corrected for what the fit absorbed.

    With M = I - H (H: projection on the law's derivatives) and Z the trunk membership, E[r'r] and E[r'ZZ'r] are
    linear in the two variances (own, trunk): two equations (Henderson's method, MINQUE(0)). The correlation is None
    with fewer than two trunks of two points, or when the law's terms absorb what trunks have in common.
    """
    log_law_1P, share_1TP = problem.design.log_value(theta_K[None])
    residual_P = problem.log_y_P - log_law_1P[0]
    jac_PK = problem.design.jacobian(share_1TP)[0].T
    num, size = jac_PK.shape
    dof = num - size
    if dof <= 0:
        return Noise(sd=float("nan"), plain_sd=float("nan"), correlation=None, dof=0)
    sum_squares = float(residual_P @ residual_P)
    plain_sd = float(np.sqrt(sum_squares / dof))
    plain = Noise(sd=plain_sd, plain_sd=plain_sd, correlation=None, dof=dof)
    counts = np.bincount(problem.group_P)
    if (counts >= 2).sum() < 2 or sum_squares == 0:
        return plain
    basis, singular, _ = np.linalg.svd(jac_PK, full_matrices=False)
    basis = basis[:, singular > 1e-10 * singular[0]]
    keep_PP = np.eye(num) - basis @ basis.T
    same_PP = (problem.group_P[:, None] == problem.group_P[None]).astype(float)
    mixed_PP = keep_PP @ same_PP
    cross, square = float(np.trace(mixed_PP)), float((mixed_PP * mixed_PP.T).sum())
    free = float(np.trace(keep_PP))
    determinant = free * square - cross * cross
    if determinant < 0.02 * free * square:
        return plain
    between = float(residual_P @ same_PP @ residual_P)
    own = (square * sum_squares - cross * between) / determinant
    trunk = (free * between - cross * sum_squares) / determinant
    if trunk <= 0:
        return replace(plain, correlation=0.0)
    correlation = min(trunk / (trunk + max(own, 0.0)), 0.95)
    total = sum_squares / ((1 - correlation) * free + correlation * cross)
    return Noise(sd=float(np.sqrt(total)), plain_sd=plain_sd, correlation=float(correlation), dof=dof)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """Tables to refit: log values and weights [R, P], the noise that goes with each [R], and how many were degenerate."""

    log_y_RP: Array
    weight_RP: Array
    noise_R: Array
    num_degenerate: int


def draw_tables(problem: Problem, theta_K: Array, *, method: str, num: int, seed: int) -> Tables:
    """Draw ``num`` tables by the method; deterministic in ``seed``. Degenerate ones are counted and left out."""
    rng = np.random.default_rng(seed)
    noise = estimate_noise(problem, theta_K)
    points = len(problem.log_y_P)
    if method in ("noise", "noise-trunks"):
        fitted_P = problem.design.log_value(theta_K[None])[0][0]
        scale_R = np.sqrt(noise.dof / rng.chisquare(noise.dof, num)) if noise.dof else np.full(num, np.nan)
        shared = noise if method == "noise-trunks" else replace(noise, sd=noise.plain_sd, correlation=None)
        own_RP = shared.own_sd * rng.standard_normal((num, points))
        trunk_RG = shared.trunk_sd * rng.standard_normal((num, problem.group_P.max() + 1))
        log_y_RP = fitted_P + scale_R[:, None] * (own_RP + trunk_RG[:, problem.group_P])
        weight_RP = np.ones((num, points))
        usable = np.isfinite(log_y_RP).all(axis=1)
        noise_R = shared.sd * scale_R
    else:
        weight_RP = _weights(problem, rng, method, num)
        log_y_RP = np.tile(problem.log_y_P, (num, 1))
        usable = usable_weights(problem, weight_RP)
        noise_R = np.full(num, noise.plain_sd)
    return Tables(
        log_y_RP=log_y_RP[usable],
        weight_RP=weight_RP[usable],
        noise_R=noise_R[usable],
        num_degenerate=int((~usable).sum()),
    )


def refit(problem: Problem, log_y_BP: Array, weight_BP: Array, theta_K: Array) -> Found:
    """Refit many tables that share the points' N and D, warm from one optimum and from the best lattice starts of
    each.
    """
    return best_fits(problem, log_y_BP, weight_BP, num_starts=REFIT_STARTS, warm_K=theta_K)


def _weights(problem: Problem, rng: np.random.Generator, method: str, num: int) -> Array:
    """How often each point is drawn, [R, P]."""
    if method == "points":
        points = len(problem.log_y_P)
        return rng.multinomial(points, np.full(points, 1.0 / points), size=num).astype(float)
    trunks = int(problem.group_P.max()) + 1
    return rng.multinomial(trunks, np.full(trunks, 1.0 / trunks), size=num)[:, problem.group_P].astype(float)


def usable_weights(problem: Problem, weight_RP: Array) -> np.ndarray:
    """Which draws still determine a law: enough distinct points, two scales, two budgets, N and D not confounded."""
    held = weight_RP > 0
    enough = held.sum(axis=1) >= problem.form.num_parameters
    rows = {letter: problem.design.u_TP[t] for t, letter in enumerate(problem.form.letters) if letter != "e"}
    count = np.maximum(held.sum(axis=1), 1)
    centred = {}
    for letter, row_P in rows.items():
        mean_R = (held @ row_P) / count
        centred[letter] = np.where(held, row_P[None] - mean_R[:, None], 0.0)
        enough &= (centred[letter] ** 2).sum(axis=1) > 1e-12
    if len(centred) == 2:
        n_RP, d_RP = centred["n"], centred["d"]
        n2, d2, nd = (n_RP**2).sum(axis=1), (d_RP**2).sum(axis=1), (n_RP * d_RP).sum(axis=1)
        left = d2 - nd**2 / np.maximum(n2, 1e-300)
        enough &= np.sqrt(np.maximum(left, 0.0) / count) > 0.02
    return enough


def percentile_interval(values: Array, level: float) -> tuple[Array, Array]:
    """The central interval of the first axis."""
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(values, [tail, 100.0 - tail], axis=0)
    return low, high


def add_intervals(
    law: LawFit, problem: Problem, theta_K: Array, *, method: str, num_resamples: int, seed: int
) -> LawFit:
    """The law with draws and percentile intervals of its parameters and of the compute-optimal split's exponent."""
    if method not in METHODS:
        raise BadInput("intervals", seen=method, allowed=", ".join(METHODS))
    if num_resamples < MIN_USABLE:
        raise BadInput("num_resamples", seen=num_resamples, allowed=f"at least {MIN_USABLE}; 1000 gives stable ends")
    drawn = draw_tables(problem, theta_K, method=method, num=num_resamples, seed=seed)
    law = replace(law, interval_method=method, num_resamples=num_resamples, num_degenerate=drawn.num_degenerate)
    if len(drawn.noise_R) < MIN_USABLE:
        return law
    refits = refit(problem, drawn.log_y_RP, drawn.weight_RP, theta_K)
    natural_RK = problem.design.to_natural(refits.theta_BK)
    found = {}
    for k, name in enumerate(problem.form.parameters):
        low, high = percentile_interval(natural_RK[:, k], law.level)
        found[name] = (float(low), float(high))
    if {"alpha", "beta"} <= set(problem.form.parameters):
        low, high = percentile_interval(split_exponent(problem, natural_RK), law.level)
        found[SPLIT] = (float(low), float(high))
    return replace(law, intervals=found, draws=natural_RK, draw_noise=drawn.noise_R)


def split_exponent(problem: Problem, natural_RK: Array) -> Array:
    """beta / (alpha + beta) of each draw: the compute-optimal N grows as FLOPs to this power; 1/2 where both are 0."""
    alpha_R, beta_R = natural_RK[:, problem.form.index("alpha")], natural_RK[:, problem.form.index("beta")]
    total_R = alpha_R + beta_R
    return np.where(total_R > 0, beta_R / np.where(total_R > 0, total_R, 1.0), 0.5)


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
