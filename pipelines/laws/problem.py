"""A fitting problem made ready for the solver, and the search for its global optimum from many starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from gridlaw.pipelines.laws.forms import Array, Design, Form
from gridlaw.pipelines.laws.points import Points
from gridlaw.pipelines.laws.solver import CONTINUATION, STAGE_ITERATIONS, STAGE_TOLERANCE, Loss, solve
from gridlaw.pipelines.laws.starts import lattice, select
from gridlaw.platform.errors import BadInput

LOSSES = ("huber", "least-squares")
MAX_EXPONENT = 20.0  # a term this steep is gone after one scale; beyond it coefficients leave the floats
AGREEMENT = 1e-6  # starts agree when their objectives differ by at most this share of the best
MEETING = 1e-3  # starts whose centred parameters agree to this after a smooth stage go on as one and count as agreeing
RESCUE_STARTS = 24  # further starts for a resample whose first few do not agree


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Points in centred logarithms, loss and box. ``user_bounds``: names of parameters the user bounded."""

    form: Form
    design: Design
    log_y_P: Array
    group_P: np.ndarray
    loss: Loss
    lower_K: Array
    upper_K: Array
    starts_SK: Array

    def named_bounds(self, theta_K: Array) -> tuple[str, ...]:
        """Parameters that ended at a bound, as ``alpha at its upper bound 0.3``."""
        named = []
        for k, name in enumerate(self.form.parameters):
            for side, bound in (("lower", self.lower_K[k]), ("upper", self.upper_K[k])):
                if np.isfinite(bound) and abs(theta_K[k] - bound) <= 1e-9 * max(1.0, abs(bound)):
                    shown = bound if name in self.form.exponents else np.exp(bound)
                    named.append(f"{name} at its {side} bound {shown:g}")
        return tuple(named)


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Best of all starts for each of B tables."""

    theta_BK: Array
    objective_B: Array
    converged_B: np.ndarray
    agreeing_B: np.ndarray
    num_starts: int


def make_problem(
    points: Points, form: Form, *, loss: str, delta: float, bounds: Mapping[str, tuple[float | None, float | None]]
) -> Problem:
    """Check settings and lay out the arrays. Exponents stay in [0, MAX_EXPONENT]: below 0 the
    form is no law."""
    if loss not in LOSSES:
        raise BadInput("loss", seen=loss, allowed=" or ".join(LOSSES))
    if not (np.isfinite(delta) and delta > 0):
        raise BadInput("delta", seen=delta, allowed="a number above 0, 1e-3 in the study")
    lower_K, upper_K = np.full(form.num_parameters, -np.inf), np.full(form.num_parameters, np.inf)
    for name in form.exponents:
        lower_K[form.index(name)], upper_K[form.index(name)] = 0.0, MAX_EXPONENT
    for name, (low, high) in bounds.items():
        _apply_bound(form, lower_K, upper_K, name, low, high)
    uncentred = frozenset(name for name in bounds if name in ("a", "b"))
    design = Design.of(form, points.log_n, points.log_d, uncentred=uncentred)
    kind = Loss(delta=delta if loss == "huber" else None)
    return Problem(
        form=form, design=design, log_y_P=points.log_values, group_P=points.group_index, loss=kind,
        lower_K=lower_K, upper_K=upper_K, starts_SK=lattice(design, points.log_values),
    )  # fmt: skip


def _apply_bound(form: Form, lower_K: Array, upper_K: Array, name: str, low: float | None, high: float | None) -> None:
    if name not in form.parameters:
        raise BadInput(f"bounds[{name!r}]", allowed=", ".join(form.parameters), hint=f"The form is {form.formula}")
    low_, high_ = (0.0 if low is None else float(low)), (np.inf if high is None else float(high))
    if not 0 <= low_ < high_:
        raise BadInput(f"bounds[{name!r}]", seen=(low, high), allowed="0 <= low < high; None leaves a side open")
    k = form.index(name)
    if name in form.exponents:
        lower_K[k], upper_K[k] = low_, min(high_, MAX_EXPONENT)
    else:  # coefficients live in logarithms
        with np.errstate(divide="ignore"):
            lower_K[k], upper_K[k] = np.log(low_), np.log(high_)


def best_fits(
    problem: Problem,
    log_y_BP: Array,
    weight_BP: Array,
    *,
    num_starts: int | None,
    warm_K: Array | None = None,
    max_batch: int = 8192,
) -> Found:
    """The best fit of each table over many starts.

    num_starts: None takes the whole lattice (one table); a number takes that many per table, chosen from the lattice
    by their cost on that table, plus ``warm_K`` ([K] or [B, K]) if given; tables whose starts disagree or did not
    converge get RESCUE_STARTS more.
    """
    num = len(log_y_BP)
    if num_starts is None:
        starts_BSK = np.broadcast_to(problem.starts_SK, (num, *problem.starts_SK.shape))
        return _run(problem, starts_BSK, log_y_BP, weight_BP, max_batch)
    starts_BSK = select(problem.design, problem.starts_SK, log_y_BP, weight_BP, problem.loss, num=num_starts)
    if warm_K is not None:
        warm_BK = np.broadcast_to(warm_K, (num, problem.form.num_parameters))
        starts_BSK = np.concatenate([warm_BK[:, None], starts_BSK], axis=1)
    found = _run(problem, starts_BSK, log_y_BP, weight_BP, max_batch)
    doubtful = np.flatnonzero((found.agreeing_B < 2) | ~found.converged_B)
    if doubtful.size:
        more_BSK = select(
            problem.design, problem.starts_SK, log_y_BP[doubtful], weight_BP[doubtful], problem.loss, num=RESCUE_STARTS
        )
        more_BSK = np.concatenate([found.theta_BK[doubtful, None], more_BSK], axis=1)
        again = _run(problem, more_BSK, log_y_BP[doubtful], weight_BP[doubtful], max_batch)
        found.theta_BK[doubtful], found.objective_B[doubtful] = again.theta_BK, again.objective_B
        found.converged_B[doubtful], found.agreeing_B[doubtful] = again.converged_B, again.agreeing_B
    return found


def _run(problem: Problem, starts_BSK: Array, log_y_BP: Array, weight_BP: Array, max_batch: int) -> Found:
    """Solve every start of every table."""
    num, each, size = starts_BSK.shape
    parts = []
    step = max(1, max_batch // each)
    for begin in range(0, num, step):
        rows = slice(begin, begin + step)
        parts.append(_run_batch(problem, starts_BSK[rows], log_y_BP[rows], weight_BP[rows]))
    return Found(
        theta_BK=np.concatenate([part.theta_BK for part in parts]).reshape(num, size),
        objective_B=np.concatenate([part.objective_B for part in parts]),
        converged_B=np.concatenate([part.converged_B for part in parts]),
        agreeing_B=np.concatenate([part.agreeing_B for part in parts]),
        num_starts=each,
    )


def _meet(theta_MK: Array, table_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows to go on with, one for each set of starts of a table that have met, and of each row its place among those.

    Starts that fall into different cells of the rounding although they met only cost time.
    """
    cells = np.column_stack([table_M, np.floor(theta_MK / MEETING)])
    _, first_M, sister_M = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    return first_M, sister_M.reshape(-1)


def _run_batch(problem: Problem, starts_BSK: Array, log_y_BP: Array, weight_BP: Array) -> Found:
    num, each, size = starts_BSK.shape
    minimise = partial(solve, problem.design, lower_MK=problem.lower_K, upper_MK=problem.upper_K, continuation=False)
    log_y_MP, weight_MP = np.repeat(log_y_BP, each, axis=0), np.repeat(weight_BP, each, axis=0)
    theta_MK, table_M, sister_M = starts_BSK.reshape(-1, size), np.repeat(np.arange(num), each), np.arange(num * each)
    for factor in CONTINUATION if problem.loss.delta is not None else ():
        smooth = minimise(
            theta_MK, log_y_MP, weight_MP, loss=problem.loss.smoothed(factor), max_iterations=STAGE_ITERATIONS,
            tolerance=STAGE_TOLERANCE,
        )  # fmt: skip
        first_M, place_M = _meet(smooth.theta_MK, table_M)
        theta_MK, table_M, sister_M = smooth.theta_MK[first_M], table_M[first_M], place_M[sister_M]
        log_y_MP, weight_MP = log_y_MP[first_M], weight_MP[first_M]
    last = minimise(theta_MK, log_y_MP, weight_MP, loss=problem.loss)
    sister_BS = sister_M.reshape(num, each)
    value_BS, converged_BS = last.objective_M[sister_BS], last.converged_M[sister_BS]
    best_B = value_BS.argmin(axis=1)
    pick = np.arange(num)
    objective_B = value_BS[pick, best_B]
    agree_BS = value_BS <= objective_B[:, None] * (1 + AGREEMENT) + 1e-14
    return Found(
        theta_BK=last.theta_MK[sister_BS[pick, best_B]],
        objective_B=objective_B,
        # twins differ by rounding: one that passed the test is enough
        converged_B=(agree_BS & converged_BS).any(axis=1),
        agreeing_B=agree_BS.sum(axis=1),
        num_starts=each,
    )
