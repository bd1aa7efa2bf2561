"""What training told step by step, read back from the ledger for figures. Reads only."""

from __future__ import annotations

from typing import Any

from gridlaw.pipelines.grid.state import GridState
from gridlaw.pipelines.plan import GridPlan, PointPlan
from gridlaw.pipelines.tune.metrics import TRAIN_FULL_RATIO
from gridlaw.platform.ledger.ledger import Ledger

CURVE_POINTS = 200


def full_ratio_curve(
    ledger: Ledger, plan: GridPlan, state: GridState, point: PointPlan, *, by_layer: bool = False
) -> dict[str, Any]:
    """The share of full attention while a point was trained: its trunk up to the branch, then its own decay.

    tokens: trained in this stage by then; mean: over layers; by_layer: layers × tokens, where asked for. At most about
    CURVE_POINTS of each. Empty for what logged no share.
    """
    trunk = plan.trunk_of(point)
    parts = [(state.trunks[trunk.name].run, 1, point.trunk_steps)] if point.trunk_steps else []
    parts.append((state.points[point.name].run, point.trunk_steps + 1, point.total_steps))
    runs = [(run, first, last) for run, first, last in parts if run is not None and TRAIN_FULL_RATIO in run.metrics]
    if not runs:
        return {}

    def read(metric: str) -> list[tuple[int, float]]:
        return [
            (step, value)
            for run, first, last in runs
            for step, value in ledger.metric_history(run.run_id, metric)
            if first <= step <= last
        ]

    mean = read(TRAIN_FULL_RATIO)
    kept = sorted({*range(0, len(mean), max(1, len(mean) // CURVE_POINTS)), len(mean) - 1})
    curve: dict[str, Any] = {
        "tokens": [float(mean[index][0] * trunk.batch_tokens) for index in kept],
        "mean": [mean[index][1] for index in kept],
    }
    if by_layer:
        histories = [read(f"{TRAIN_FULL_RATIO}/{layer}") for layer in range(len(trunk.model["layers"]))]
        curve["by_layer"] = [[history[index][1] for index in kept] for history in histories]
    return curve
