"""Intervals of a law by resampling in batches, and the noise with its correlation within trunks.

Methods of resampling
- noise: new tables are drawn from the fitted law with independent normal noise of the estimated size and refitted.
  The size itself is drawn from its scaled inverse chi-squared law, which widens small tables as Student's t does.
- noise-trunks: the same, with a part of the noise common to each trunk, as estimated.
- points: points are drawn with replacement (pairs bootstrap).
- trunks: whole trunks are drawn with replacement; honest about dependence, but with three or four trunks many draws are
  degenerate (one scale only, say). They are left out and counted.

Measured coverage of each: docs/laws.md; the default is the one nearest nominal there. Profile likelihood is in
profile.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gridlaw.pipelines.laws.forms import Array
from gridlaw.pipelines.laws.problem import Found, Problem, best_fits
from gridlaw.platform.errors import BadInput

if TYPE_CHECKING:
    from gridlaw.pipelines.laws.fit import LawFit

METHODS = ("noise", "noise-trunks", "points", "trunks")
DEFAULT_METHOD = "noise-trunks"
REFIT_STARTS = 3  # per resample, besides the full fit's optimum; doubtful ones get more (problem.RESCUE_STARTS)
MIN_TRUNK_DOF = 0.9  # with less the fit absorbs what trunks have in common
MAX_CORRELATION = 0.95
MIN_USABLE = 20  # fewer usable resamples than this give no interval
SPLIT = "split"  # name of the compute-optimal exponent beta / (alpha + beta) among the intervals


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """Size of the log residuals. sd: own and trunk parts together; plain_sd: as if independent (both NaN without
    degrees of freedom); correlation: within a trunk, None if not estimable; trunk_dof: effective degrees of freedom
    it rests on (Satterthwaite).
    """

    sd: float
    plain_sd: float
    correlation: float | None
    trunk_dof: float
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
        return Noise(sd=float("nan"), plain_sd=float("nan"), correlation=None, trunk_dof=0.0, dof=0)
    plain_sd = float(np.sqrt(residual_P @ residual_P / dof))
    plain = Noise(sd=plain_sd, plain_sd=plain_sd, correlation=None, trunk_dof=0.0, dof=dof)
    if (np.bincount(problem.group_P) >= 2).sum() < 2 or plain_sd == 0:
        return plain
    basis, singular, _ = np.linalg.svd(jac_PK, full_matrices=False)
    basis = basis[:, singular > 1e-10 * singular[0]]
    keep_PP = np.eye(num) - basis @ basis.T
    same_PP = (problem.group_P[:, None] == problem.group_P[None]).astype(float)
    mixed_PP = keep_PP @ same_PP
    free, cross, square = float(np.trace(keep_PP)), float(np.trace(mixed_PP)), float((mixed_PP * mixed_PP.T).sum())
    trunk_dof = cross * cross / square if square > 0 else 0.0
    determinant = free * square - cross * cross
    if trunk_dof < MIN_TRUNK_DOF or determinant < 0.02 * free * square:
        return replace(plain, trunk_dof=trunk_dof)
    left_P = keep_PP @ residual_P  # a robust fit leaves in what a projection takes out
    within, between = float(left_P @ left_P), float(left_P @ same_PP @ left_P)
    own, trunk = square * within - cross * between, free * between - cross * within  # both times the determinant
    correlation = 0.0 if trunk <= 0 else min(trunk / (trunk + max(own, 0.0)), MAX_CORRELATION)
    inflation = free / ((1.0 - correlation) * free + correlation * cross)
    return Noise(
        sd=plain_sd * float(np.sqrt(inflation)),
        plain_sd=plain_sd,
        correlation=float(correlation),
        trunk_dof=trunk_dof,
        dof=dof,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """Tables to refit: log values and weights [R, P], the noise that goes with each [R], and how many were
    degenerate.
    """

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
