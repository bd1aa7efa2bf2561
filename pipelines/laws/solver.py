"""Many robust fits at once: a batched damped Newton method on the Huber objective of log residuals.

The objective of one problem is sum_p w_p · huber(log y_p - log law_p), summed and not averaged, with delta usually
far below the residuals (1e-3): almost an L1 fit, with a kink at every point. Three things make it quick and safe:

1. The minimum is approached through a sequence of smoother problems (delta × 64, 16, 4, 1).
2. Each iteration tries two steps, the exact Newton step (quadratic convergence once the right points lie within
   delta) and the step of iteratively reweighted least squares (its matrix is positive definite and majorises the
   objective), and keeps the better one if it lowers the objective; a damping per problem grows when neither does.
3. All problems (resamples × starts) go through numpy together; finished ones leave the batch.

Box bounds are kept by projection: a parameter at its bound whose gradient points outward is frozen for that iteration.
Not here: where to start (starts.py) and what a problem means (fit.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridlaw.pipelines.laws.forms import Array, Design

CONTINUATION = (64.0, 16.0, 4.0)
STAGE_ITERATIONS = 8
STAGE_TOLERANCE = 1e-4
_TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class Loss:
    """``huber`` with its delta, or plain least squares (delta None). Both are sums of 1/2 r^2 near zero."""

    delta: float | None

    def value(self, residual_MP: Array) -> Array:
        size = np.abs(residual_MP)
        if self.delta is None:
            return 0.5 * size * size
        inside = np.minimum(size, self.delta)
        return inside * (size - 0.5 * inside)

    def influence(self, residual_MP: Array) -> Array:
        return residual_MP if self.delta is None else np.clip(residual_MP, -self.delta, self.delta)

    def smoothed(self, factor: float) -> Loss:
        return self if self.delta is None else Loss(delta=self.delta * factor)


@dataclass(frozen=True, kw_only=True)
class Solutions:
    """One row per problem: centred parameters, objective, whether the last steps could still lower it, iterations
    used.
    """

    theta_MK: Array
    objective_M: Array
    converged_M: np.ndarray
    iterations_M: np.ndarray


def objective(design: Design, theta_MK: Array, log_y_MP: Array, weight_MP: Array, loss: Loss) -> Array:
    """The objective of each problem, [M]; infinite where the law overflows."""
    log_law_MP, _ = design.log_value(theta_MK)
    value = (weight_MP * loss.value(log_y_MP - log_law_MP)).sum(axis=1)
    return np.where(np.isfinite(value), value, np.inf)


def solve(
    design: Design,
    start_MK: Array,
    log_y_MP: Array,
    weight_MP: Array,
    *,
    loss: Loss,
    lower_MK: Array,
    upper_MK: Array,
    max_iterations: int = 200,
    tolerance: float = 1e-9,
    continuation: bool = True,
) -> Solutions:
    """Minimise every problem from its start.

    start_MK: centred parameters; log_y_MP, weight_MP: [M, P] or broadcastable to it; lower_MK, upper_MK: box in centred
    parameters, [K] or [M, K].
    tolerance: a problem is finished when the decrease predicted by the quadratic model is below tolerance × objective.
    """
    num = len(start_MK)
    shape = (num, design.u_TP.shape[1])
    log_y_MP, weight_MP = np.broadcast_to(log_y_MP, shape), np.broadcast_to(weight_MP, shape)
    lower_MK, upper_MK = np.broadcast_to(lower_MK, start_MK.shape), np.broadcast_to(upper_MK, start_MK.shape)
    theta_MK = np.clip(start_MK, lower_MK, upper_MK)
    iterations_M = np.zeros(num, dtype=int)
    if continuation and loss.delta is not None:
        for factor in CONTINUATION:
            smooth = _Run(design, theta_MK, log_y_MP, weight_MP, loss.smoothed(factor), lower_MK, upper_MK)
            smooth.iterate(STAGE_ITERATIONS, STAGE_TOLERANCE)
            theta_MK = smooth.theta_MK
            iterations_M += smooth.iterations_M
    run = _Run(design, theta_MK, log_y_MP, weight_MP, loss, lower_MK, upper_MK)
    run.iterate(max_iterations, tolerance)
    return Solutions(
        theta_MK=run.theta_MK,
        objective_M=run.value_M,
        converged_M=run.converged_M,
        iterations_M=iterations_M + run.iterations_M,
    )


class _Run:
    """State of one minimisation at one delta; ``iterate`` works on the rows that are not finished."""

    def __init__(
        self,
        design: Design,
        theta_MK: Array,
        log_y_MP: Array,
        weight_MP: Array,
        loss: Loss,
        lower_MK: Array,
        upper_MK: Array,
    ) -> None:
        self.design, self.loss, self.lower_MK, self.upper_MK = design, loss, lower_MK, upper_MK
        self.log_y_MP, self.weight_MP = log_y_MP, weight_MP
        self.theta_MK = theta_MK.copy()
        self.value_M = objective(design, theta_MK, log_y_MP, weight_MP, loss)
        self.anchor_MK = self.theta_MK.copy()
        self.damping_M = np.full(len(theta_MK), 1e-3)
        self.converged_M = np.zeros(len(theta_MK), dtype=bool)
        self.iterations_M = np.zeros(len(theta_MK), dtype=int)

    def iterate(self, max_iterations: int, tolerance: float) -> None:
        rows = np.flatnonzero(np.isfinite(self.value_M))
        quiet = np.zeros(len(self.theta_MK), dtype=int)  # iterations in a row without progress worth naming
        for _ in range(max_iterations):
            if rows.size == 0:
                return
            gain, predicted = self._step(rows)
            self.iterations_M[rows] += 1
            small = tolerance * self.value_M[rows] + 1e-18
            quiet[rows] = np.where(gain <= small, quiet[rows] + 1, 0)
            done = (predicted <= small) & (gain <= small)
            done |= (quiet[rows] >= 4) & (predicted <= 1e3 * small)
            self.converged_M[rows[done]] = True
            stuck = quiet[rows] >= 30
            rows = rows[~(done | stuck)]

    def _step(self, rows: np.ndarray) -> tuple[Array, Array]:
        """One iteration of the given rows: achieved decrease and the decrease the undamped model still promised."""
        theta, log_y, weight = self.theta_MK[rows], self.log_y_MP[rows], self.weight_MP[rows]
        gradient, newton, majorant = self._model(theta, log_y, weight)
        free = ~(((theta <= self.lower_MK[rows]) & (gradient > 0)) | ((theta >= self.upper_MK[rows]) & (gradient < 0)))
        gradient = np.where(free, gradient, 0.0)
        damping = self.damping_M[rows]
        best, best_value = theta, self.value_M[rows]
        promises = []
        for matrix in (newton, majorant):
            step = _damped_step(matrix, majorant, gradient, free, damping)
            promises.append(-0.5 * (gradient * step).sum(axis=1))
            trial = np.clip(theta + step, self.lower_MK[rows], self.upper_MK[rows])
            value = objective(self.design, trial, log_y, weight, self.loss)
            better = value < best_value
            best = np.where(better[:, None], trial, best)
            best_value = np.where(better, value, best_value)
        gain = self.value_M[rows] - best_value
        promised = np.where(promises[0] >= 0, np.minimum(promises[0], promises[1]), promises[1])
        self.damping_M[rows] = np.clip(np.where(gain > 0, damping * 0.2, damping * 8.0), 1e-9, 1e9)
        # a large damping shrinks the promise by itself and must not pass for convergence
        promised = promised * (1.0 + damping)
        self._extrapolate(rows, best, best_value, log_y, weight)
        return gain, promised

    def _extrapolate(self, rows: np.ndarray, best: Array, best_value: Array, log_y: Array, weight: Array) -> None:
        """Accept the step, and go on along the way of the last few steps if that pays: along a valley between two
        kinks the steps zigzag, but their sum points down the valley.
        """
        way = best - self.anchor_MK[rows]
        trial = np.clip(best + 3.0 * way, self.lower_MK[rows], self.upper_MK[rows])
        value = objective(self.design, trial, log_y, weight, self.loss)
        better = value < best_value
        self.theta_MK[rows] = np.where(better[:, None], trial, best)
        self.value_M[rows] = np.where(better, value, best_value)
        renew = rows[(self.iterations_M[rows] % 4) == 0]
        self.anchor_MK[renew] = self.theta_MK[renew]

    def _model(self, theta: Array, log_y: Array, weight: Array) -> tuple[Array, Array, Array]:
        """Gradient [M, K], exact Hessian and its positive semidefinite majorant [M, K, K]."""
        log_law, share = self.design.log_value(theta)
        residual = log_y - log_law
        pull = weight * self.loss.influence(residual)
        jac = self.design.jacobian(share)
        gradient = -np.einsum("mkp,mp->mk", jac, pull)
        if self.loss.delta is None:
            inside, irls = weight, weight
        else:
            size = np.abs(residual)
            inside = weight * (size < self.loss.delta)
            irls = weight * np.minimum(1.0, self.loss.delta / np.maximum(size, _TINY))
        turned = np.swapaxes(jac, 1, 2)
        majorant = (jac * irls[:, None]) @ turned
        newton = (jac * (inside + pull)[:, None]) @ turned - self.design.curvature(share, pull)
        return gradient, newton, majorant


def _damped_step(matrix: Array, scale: Array, gradient: Array, free: np.ndarray, damping: Array) -> Array:
    """Solve (matrix + damping · diag(scale)) step = -gradient over the free parameters; others stay."""
    size = matrix.shape[-1]
    diagonal = np.einsum("mkk->mk", scale)
    floor = 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-30
    system = np.where(free[:, :, None] & free[:, None, :], matrix, 0.0)
    index = np.arange(size)
    system[:, index, index] += np.where(free, damping[:, None] * np.maximum(diagonal, floor) + floor, floor)
    system[:, index, index] += np.where(free, 0.0, 1.0)
    try:
        step = -np.linalg.solve(system, gradient[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:  # one exactly singular row stops the whole batch: mend that row by pseudo-inverse
        step = -(np.linalg.pinv(system) @ gradient[:, :, None])[:, :, 0]
    step = np.where(np.isfinite(step), step, 0.0)
    # far steps leave the region in which the model means anything; exponentials overflow there
    length = np.abs(step).max(axis=1, keepdims=True)
    return step * np.minimum(1.0, 4.0 / np.maximum(length, _TINY))
