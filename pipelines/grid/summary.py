"""The parent run's description in MLflow: progress and laws so far while a grid runs, findings at its end."""

from __future__ import annotations

from typing import Any

from gridlaw.pipelines.grid.collect import law_row
from gridlaw.pipelines.grid.driver import Driver
from gridlaw.pipelines.grid.records import LAW, Records
from gridlaw.pipelines.grid.state import law_name
from gridlaw.pipelines.grid.views import links
from gridlaw.pipelines.plan import GridPlan, PointPlan
from gridlaw.pipelines.report.data import FailureRow, LawRow, MetricValue, PointRow, ReportData
from gridlaw.pipelines.report.markdown import markdown_progress, markdown_summary
from gridlaw.platform.ledger.ledger import Ledger


def progress_text(plan: GridPlan, driver: Driver) -> str:
    """While the grid runs: what is done, what runs, what failed, the laws and values so far."""
    problems = {problem.name: problem for problem in driver.problems}
    left = {str(node.key[1]) for node in driver.graph.nodes.values() if node.kind == "decay" and node.state != "done"}
    points = []
    for point in plan.points:
        problem = problems.get(point.name)
        status = problem.status if problem is not None else "not run" if point.name in left else "done"
        points.append(_point(plan, driver, point, status, problem.reason if problem is not None else ""))
    data = ReportData(
        experiment=plan.spec.name,
        created="",
        points=tuple(points),
        laws=tuple(_laws(plan, driver)),
        failures=tuple(
            FailureRow(name=each.name, kind=each.kind, status=each.status, reason=each.reason, attempts=each.attempts)
            for each in driver.problems
        ),
    )
    running = [" ".join(map(str, node.key[:2])) for node in driver.graph.running()]
    return markdown_progress(data, running, links=links(plan, driver.records.ledger.experiment_id))


def final_text(plan: GridPlan, ledger: Ledger, parent: str, data: ReportData, report: str) -> str:
    """At the end: the findings, and the way to the report."""
    return markdown_summary(
        data, links=links(plan, ledger.experiment_id, report=report.rpartition("/")[2], run_id=parent)
    )


def _point(plan: GridPlan, driver: Driver, point: PointPlan, status: str, reason: str) -> PointRow:
    known: dict[str, Any] = driver.laws.metrics_of(point.name) if status == "done" else {}
    shown = [name for evaluation in plan.evaluations for name in evaluation.kind.metrics if name in known]
    return PointRow(
        name=point.name,
        architecture=point.id.architecture,
        scale=point.id.scale,
        budget=point.id.budget.label,
        seed=point.id.seed,
        num_params=plan.trunk_of(point).num_params,
        tokens=point.tokens,
        status=status,
        reason=reason,
        metrics={name: MetricValue(value=float(known[name])) for name in shown},
        train_flops=point.train_flops,
    )


def read_laws(records: Records) -> None:
    """Before the work begins: the fits that the ledger has, so that describing never waits for it."""
    for name, run in records.state.laws.items():
        kept = records.ledger.read_json(run.run_id, LAW)
        if kept is not None:
            records.law_rows[name] = kept["row"]


def _laws(plan: GridPlan, driver: Driver) -> list[LawRow]:
    """The newest fits, this submission's and those that the ledger had before it."""
    names = [law_name(law, architecture) for law in plan.laws for architecture in driver.laws.architectures]
    rows = driver.records.law_rows
    return [law_row({"row": rows[name], "fit": None}) for name in names if name in rows]
