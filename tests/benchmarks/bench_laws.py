"""Figures of the law laboratory: ``python tests/benchmarks/bench_laws.py [speed] [suggest]`` (both by default).

speed: 1,728 scipy L-BFGS-B starts against one global fit on the authors' 17 points; 1,000 refits of a 24-point table.
suggest: final interval width at S5/1000N when a FLOP budget is spent by suggestion, at random, or smallest first, on
synthetic laws with the paper grid's costs.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from gridlaw.pipelines.laws.fit import LawFit, fit_law
from gridlaw.pipelines.laws.suggest import Candidate, marginal_cost, suggest

DATA = Path(__file__).parents[1] / "data" / "swa128_longppl.csv"
DECAY = 0.1
CONTEXT, VOCABULARY = 16_384, 73_448
# layers, d_model, query heads, N of Full (PAPERS A.1); head dim 64
SCALES = {
    "S1": (10, 384, 6, 14_999_424),
    "S2": (12, 512, 8, 31_470_080),
    "S3": (16, 640, 10, 64_901_760),
    "S4": (18, 768, 12, 104_427_264),
    "S5": (30, 1280, 20, 476_852_480),
}
BUDGETS = (100, 200, 300, 400, 500, 1000)
TRUTH = {"a": 700.0, "alpha": 0.36, "b": 1200.0, "beta": 0.32}
NOISE = 0.01
FLOPS = 200e18
ROUNDS = 3


def training_flops_per_token(scale: str) -> float:
    """3 × forward of Full: matrices, head and causal attention (PAPERS A.4b)."""
    layers, width, heads, size = SCALES[scale]
    return 3.0 * (2 * size + 2 * width * VOCABULARY + layers * 4 * heads * 64 * (CONTEXT + 1) / 2)


def scipy_objective(
    theta: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_y: np.ndarray
) -> tuple[float, np.ndarray]:
    """Summed Huber (delta 1e-3) and its gradient in (log a, alpha, log b, beta), written apart from the library."""
    first, second = theta[0] - theta[1] * log_n, theta[2] - theta[3] * log_d
    total = np.logaddexp(first, second)
    residual = log_y - total
    size = np.abs(residual)
    value = np.where(size <= 1e-3, 0.5 * size**2, 1e-3 * (size - 0.5e-3)).sum()
    pull = -np.clip(residual, -1e-3, 1e-3)
    share = np.exp(first - total)
    rest = pull * (1 - share)
    gradient = np.array([(pull * share).sum(), -(pull * share * log_n).sum(), rest.sum(), -(rest * log_d).sum()])
    return float(value), gradient


def speed() -> None:
    table = pd.read_csv(DATA).query("scale != 'S4'")
    n, d, y = table.N.to_numpy(float), table.D.to_numpy(float), np.log(table.longppl.to_numpy())
    # 6 × 6 × 6 × 8 = 1,728 starts over (log a, alpha, log b, beta), as in a plain multistart
    starts = itertools.product(
        np.linspace(0, 20, 6), np.linspace(0.1, 1.5, 6), np.linspace(0, 20, 6), np.linspace(0.1, 1.5, 8)
    )
    begin, best = time.process_time(), np.inf
    count = 0
    for start in starts:
        found = minimize(
            scipy_objective, np.array(start), args=(np.log(n), np.log(d), np.log(y)), jac=True, method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000, "maxfun": 4000},
        )  # fmt: skip
        best, count = min(best, float(found.fun)), count + 1
    scipy_seconds = time.process_time() - begin
    fit_law(n, d, y, intervals="none")  # first call: imports and caches
    begin = time.process_time()
    law = fit_law(n, d, y, intervals="none")
    seconds = time.process_time() - begin
    print(f"scipy, {count} L-BFGS-B starts: {scipy_seconds:.2f} s, objective {best:.6e}")
    print(
        f"fit_law, {law.num_starts} starts ({law.agreeing_starts} agree): {seconds:.3f} s, "
        f"objective {law.objective:.6e}, "
        f"{scipy_seconds / seconds:.0f} times as fast (CPU time)"
    )
    grid_n = np.repeat([SCALES[scale][3] for scale in ("S1", "S2", "S3", "S4")], 6).astype(float)
    grid_d = grid_n * np.tile(BUDGETS, 4)
    values = _truth(grid_n, grid_d) * np.exp(NOISE * np.random.default_rng(0).standard_normal(24))
    for method in ("noise", "points", "trunks"):
        fit_once = _timed(lambda: fit_law(grid_n, grid_d, values, intervals="none"))
        whole = _timed(lambda: fit_law(grid_n, grid_d, values, intervals=method))  # noqa: B023 called at once
        print(f"1,000 refits of 24 points, {method}: {whole - fit_once:.2f} s of CPU time")


def _timed(call: object) -> float:
    begin = time.process_time()
    call()  # type: ignore[operator]
    return time.process_time() - begin


def _truth(n: np.ndarray, d: np.ndarray) -> np.ndarray:
    return TRUTH["a"] * n ** -TRUTH["alpha"] + TRUTH["b"] * d ** -TRUTH["beta"]


def _candidates(done: set[tuple[str, int]]) -> list[Candidate]:
    return [
        Candidate(
            architecture="full", scale=scale, budget=f"{budget}N", seed=0, num_params=float(SCALES[scale][3]),
            num_tokens=float(SCALES[scale][3] * budget), flops_per_token=training_flops_per_token(scale),
        )
        for scale, budget in itertools.product(SCALES, BUDGETS)
        if (scale, budget) not in done and scale != "S5"
    ]  # fmt: skip


def _fill(order: list[Candidate], trunks: dict, flops: float) -> list[Candidate]:
    """Take candidates in order while they fit the budget, at marginal costs."""
    trunks, chosen = dict(trunks), []
    for candidate in order:
        cost = marginal_cost(candidate, trunks, decay_fraction=DECAY)
        if cost.flops <= flops:
            flops -= cost.flops
            trunks[candidate.trunk] = max(trunks.get(candidate.trunk, 0.0), candidate.num_tokens * (1 - DECAY))
            chosen.append(candidate)
    return chosen


def _measure(points: list[tuple[float, float]], noise: dict[tuple[float, float], float]) -> LawFit:
    n, d = np.array(points).T
    values = _truth(n, d) * np.exp([noise[point] for point in points])
    return fit_law(n, d, values, num_resamples=300)


def _in_rounds(
    law: LawFit,
    points: list[tuple[float, float]],
    noise: dict[tuple[float, float], float],
    candidates: list[Candidate],
    trunks: dict,
    target: tuple[float, float],
) -> list[Candidate]:
    """Spend the budget in rounds, measuring and refitting after each, as a person would."""
    left, trunks, chosen = FLOPS, dict(trunks), []
    for remaining in range(ROUNDS, 0, -1):
        open_ = [candidate for candidate in candidates if candidate not in chosen]
        cheapest = min(marginal_cost(candidate, trunks, decay_fraction=DECAY).flops for candidate in open_)
        if cheapest > left:
            break
        share = max(left / remaining, cheapest)
        plan = suggest({"full": law}, open_, at=target, flops=share, trunks=trunks, decay_fraction=DECAY)
        left -= plan.spent_flops
        for suggestion in plan.batch:
            candidate = suggestion.candidate
            trunks[candidate.trunk] = max(trunks.get(candidate.trunk, 0.0), candidate.num_tokens * (1 - DECAY))
            chosen.append(candidate)
        law = _measure(points + [(c.num_params, c.num_tokens) for c in chosen], noise)
    return chosen


def suggest_simulation(num_tables: int = 40) -> None:
    """Start from S1 and S2 at 100N–300N; spend FLOPS; compare the interval and the error at S5/1000N."""
    target_n = float(SCALES["S5"][3])
    target = (target_n, target_n * 1000)
    begun = {(scale, budget) for scale in ("S1", "S2") for budget in (100, 200, 300)}
    everything = [(float(SCALES[s][3]), float(SCALES[s][3] * b)) for s in SCALES for b in BUDGETS]
    trunks = {("full", scale, 0): SCALES[scale][3] * 300 * (1 - DECAY) for scale in ("S1", "S2")}
    start = [(float(SCALES[s][3]), float(SCALES[s][3] * b)) for s, b in sorted(begun)]
    rows = []
    for table in range(num_tables):
        rng = np.random.default_rng(table)
        noise = {point: NOISE * float(rng.standard_normal()) for point in everything}
        law = _measure(start, noise)
        candidates = _candidates(begun)
        plan = suggest({"full": law}, candidates, at=target, flops=FLOPS, trunks=trunks, decay_fraction=DECAY)
        orders = {
            "suggested at once": [suggestion.candidate for suggestion in plan.batch],
            f"suggested in {ROUNDS} rounds": _in_rounds(law, start, noise, candidates, trunks, target),
            "random": [candidates[i] for i in rng.permutation(len(candidates))],
            "smallest first": sorted(candidates, key=lambda c: c.num_tokens * c.flops_per_token),
        }
        for name, order in orders.items():
            chosen = _fill(order, trunks, FLOPS)
            final = _measure(start + [(c.num_params, c.num_tokens) for c in chosen], noise)
            low, high = final.predict_interval(*target, kind="curve")
            truth = float(_truth(*map(np.array, target)))
            rows.append((name, (high - low) / truth, abs(final.predict(*target) / truth - 1), len(chosen)))
    frame = pd.DataFrame(rows, columns=["strategy", "width", "error", "points"])
    summary = frame.groupby("strategy", sort=False).agg(
        median_width=("width", "median"),
        mean_width=("width", "mean"),
        median_error=("error", "median"),
        points=("points", "mean"),
    )
    print(f"\nRelative width of the 95 % interval at S5/1000N after {FLOPS:.3g} FLOPs, {num_tables} synthetic tables")
    print(summary.to_string(float_format=lambda number: f"{number:.4f}"))


if __name__ == "__main__":
    parts = sys.argv[1:] or ["speed", "suggest"]
    if "speed" in parts:
        speed()
    if "suggest" in parts:
        suggest_simulation()
