"""The views that a grid keeps on its experiment's page in MLflow, and the links between that page and the report."""

from __future__ import annotations

from gridlaw.pipelines.plan import GridPlan
from gridlaw.platform.ledger.records import TRAIN_LOSS
from gridlaw.platform.ledger.views import POINTS, LineChart, View, metric_column, param_column, tag_column

_TRAINING = LineChart(title="Training loss over tokens", metric=TRAIN_LOSS, against="tokens")
MOST_METRICS = 12
"""Columns of metrics in the view of points; the others can be added on the page."""


def grid_views(plan: GridPlan) -> tuple[View, ...]:
    """What people look for: points with what was measured, curves, laws, and what failed."""
    names = ["architecture", "scale", "budget", "seed"]
    stages = ["stage"] if any(trunk.stage for trunk in plan.trunks) else []
    metrics = [metric for evaluation in plan.evaluations for metric in evaluation.kind.metrics][:MOST_METRICS]
    where = [tag_column(name) for name in (*stages, *names)]
    curves = tuple(tag_column(name) for name in (*stages, "architecture", "scale"))
    return (
        View(
            key=POINTS,
            name="Points",
            runs=_of_kind("point"),
            columns=(*map(metric_column, metrics), *map(param_column, ("N", "D")), *where),
        ),
        View(
            key="gridlaw-curves", name="Loss over tokens", runs=_of_kind("trunk"), columns=curves, charts=(_TRAINING,)
        ),
        View(
            key="gridlaw-compare",
            name="Loss over tokens, of chosen runs",
            runs=_of_kind("trunk"),
            columns=curves,
            charts=(_TRAINING,),
            hidden=True,
        ),
        View(
            key="gridlaw-laws",
            name="Laws",
            runs=_of_kind("law"),
            columns=(
                *map(metric_column, ("law_alpha", "law_beta", "r2")),
                *map(tag_column, ("architecture", "target", "form", "num_points", "verdict")),
            ),
        ),
        View(
            key="gridlaw-failed",
            name="Failed",
            runs="attributes.status = 'FAILED'",
            columns=tuple(map(tag_column, ("kind", "reason", "attempts"))),
        ),
    )


def _of_kind(kind: str) -> str:
    return f"{tag_column('kind')} = '{kind}'"


def links(plan: GridPlan, experiment_id: str, *, report: str = "", run_id: str = "") -> str:
    """One line of Markdown for the parent run's description: the views, and the report once it is an artifact."""
    found = [f"[{view.name}]({view.address(experiment_id)})" for view in grid_views(plan)]
    if report:
        page = f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{report}?workflowType=machine_learning"
        found.insert(0, f"[**Report**]({page})")
    return " · ".join(found)
