"""From plan and ledger to what a report shows. Reads only; a report can be made again at any time."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib import metadata
from typing import Any

from gridlaw.pipelines.evaluations.settings import NiahSettings
from gridlaw.pipelines.figures.needles import MEASURES
from gridlaw.pipelines.grid.curves import CURVE_POINTS, full_ratio_curve
from gridlaw.pipelines.grid.records import DETAILS, LAW
from gridlaw.pipelines.grid.state import (
    GridState,
    blocked_by,
    ended_word,
    evaluation_name,
    law_name,
    training_blocked_by,
)
from gridlaw.pipelines.plan import GridPlan, PointPlan, TrunkPlan
from gridlaw.pipelines.report.data import (
    FailureRow,
    GridSummary,
    HeatMap,
    LawRow,
    MetricValue,
    PointRow,
    ReportData,
    Savings,
    TrunkRow,
)
from gridlaw.pipelines.report.metrics import metric_value
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.records import TRAIN_LOSS, RunRecord
from gridlaw.platform.ledger.version import code_version

_VERSIONS = ("gridlaw", "torch", "lightning", "ray", "mlflow")


def collect(
    plan: GridPlan, ledger: Ledger, state: GridState, *, hardware: str, wall_seconds: float | None
) -> ReportData:
    """Everything that the report shows of this file's points, laws and failures."""
    failed = _failed_runs(state)
    done = [each.run.run_id for each in state.evaluations.values() if each.status == "done" and each.run is not None]
    details = ledger.read_jsons(done, DETAILS)
    points = tuple(_point(plan, ledger, state, point, details) for point in plan.points)
    trunks = tuple(_trunk(ledger, state, trunk, failed) for trunk in plan.trunks)
    trained = sum(row.tokens for row in trunks) + sum(
        (point.total_steps - point.trunk_steps) * plan.trunk_of(point).batch_tokens
        for point, row in zip(plan.points, points, strict=True)
        if row.status == "done"
    )
    alone = sum(row.tokens or 0 for row in points if row.status == "done")
    flops_per_token = {trunk.name: trunk.flops_per_token for trunk in plan.trunks}
    flops = sum(row.tokens * flops_per_token[row.name] for row in trunks) + sum(
        (point.total_steps - point.trunk_steps) * plan.trunk_of(point).batch_tokens * flops_per_token[point.trunk]
        for point, row in zip(plan.points, points, strict=True)
        if row.status == "done"
    )
    return ReportData(
        experiment=plan.spec.name,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        versions={name: metadata.version(name) for name in _VERSIONS}
        | {"python": platform.python_version(), "code": str(code_version())},
        hardware=hardware,
        grid=_summary(plan),
        points=points,
        trunks=trunks,
        laws=_laws(plan, ledger, state, points),
        heat_maps=_heat_maps(plan, state, points, details),
        failures=(*(_failure(run, plan) for run in failed.values()), *_blocked(plan, state, failed)),
        savings=Savings(
            tokens_trained=trained,
            tokens_without_sharing=alone,
            train_flops=flops,
            train_flops_without_sharing=sum(
                point.train_flops for point, row in zip(plan.points, points, strict=True) if row.status == "done"
            ),
        ),
        wall_seconds=wall_seconds,
        notes=(*plan.warnings, *_evaluator_notes(plan)),
    )


def _evaluator_notes(plan: GridPlan) -> list[str]:
    """Key tokens of one evaluator are not those of another, whatever the metric is called."""
    return [
        f"LongPPL: key tokens were found by {each.evaluator.point}, a point of this grid. It is the method, not the "
        "paper's metric, whose evaluator is Llama-3.1-8B: compare within this report only."
        for each in plan.evaluations
        if each.evaluator is not None and each.evaluator.point is not None
    ]


def hardware_text() -> str:
    """This machine's processor, cores and memory in words, for a report of a run on it."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cores} cores{f' ({model})' if model else ''}, {memory:.0f} GiB memory"


def _point(plan: GridPlan, ledger: Ledger, state: GridState, point: PointPlan, details: Mapping[str, Any]) -> PointRow:
    """details: what evaluations' runs keep beside their metrics, by run."""
    trunk = plan.trunk_of(point)
    standing = state.points[point.name]
    status, reason = _status(plan, state, point)
    seconds = (
        (standing.run.number("seconds") or 0.0) if standing.run is not None and standing.status == "done" else None
    )
    metrics: dict[str, MetricValue] = {}
    routing: dict[str, Any] = {}
    for evaluation in plan.evaluations:
        done = state.evaluations[point.name, evaluation.name]
        if done.status == "done" and done.run is not None:
            kept = details[done.run.run_id] or {}
            metrics |= _metrics(kept, done.run, list(evaluation.kind.metrics))
            if evaluation.name == "routing" and not kept.get("details", {}).get("fixed"):
                routing = kept["details"] | {"training": full_ratio_curve(ledger, plan, state, point)}
            seconds = (seconds or 0.0) + (done.run.number("seconds") or 0.0)
    return PointRow(
        name=point.name,
        stage=point.id.stage or "",
        architecture=point.id.architecture,
        scale=point.id.scale,
        budget=point.id.budget.label,
        seed=point.id.seed,
        num_params=trunk.num_params,
        num_params_own=trunk.num_params_own,
        tokens=point.tokens,
        status=status,
        reason=reason,
        metrics=metrics,
        outcomes=state.without_value(point.name, plan),
        train_flops=point.train_flops,
        six_nd=6.0 * trunk.num_params * point.tokens,
        seconds=seconds,
        device_seconds=seconds,
        routing=routing,
    )


def _status(plan: GridPlan, state: GridState, point: PointPlan) -> tuple[str, str]:
    """(status, reason)."""
    standing = state.points[point.name]
    if standing.status == "done":
        return "done", ""
    if standing.run is not None and standing.status != "drift" and standing.run.status == "FAILED":
        return ended_word(standing.run), standing.run.reason
    reason = training_blocked_by(plan, state, plan.trunk_of(point))
    return ("blocked", reason) if reason else ("not run", "")


def _metrics(kept: dict[str, Any], run: RunRecord, names: Sequence[str]) -> dict[str, MetricValue]:
    """An evaluation's metrics with their intervals and chance levels. kept: what its run keeps beside them."""
    number, told = kept.get("num_samples"), kept.get("details", {})
    return {name: metric_value(name, run.metrics, number, told.get(name)) for name in names if name in run.metrics}


def _heat_maps(
    plan: GridPlan, state: GridState, points: Sequence[PointRow], kept: Mapping[str, Any]
) -> tuple[HeatMap, ...]:
    """Of each stage's and architecture's largest point that was asked for needles: maps of all would fill the page."""
    needles = next((each.name for each in plan.evaluations if each.name == NiahSettings.name), None)
    largest: dict[tuple[str, str], PointRow] = {}
    for point in sorted(points, key=lambda each: (each.num_params, each.tokens or 0), reverse=True):
        if needles is not None and state.evaluations[point.name, needles].status == "done":
            largest.setdefault((point.stage, point.architecture), point)
    found = []
    for point in points:
        if largest.get((point.stage, point.architecture)) is not point:
            continue
        run = state.evaluations[point.name, NiahSettings.name].run
        details = ((kept[run.run_id] if run is not None else None) or {}).get("details", {})
        found += [
            HeatMap(
                point=point.name,
                architecture=point.architecture,
                measure=word,
                lengths=tuple(details["lengths"]),
                depths=tuple(details["depths"]),
                shares=tuple(map(tuple, details[measure])),
                samples_per_cell=details["samples_per_cell"],
                chance=details["chance"] if measure == "rank_grid" else None,
            )
            for measure, word in MEASURES.items()
            if measure in details
        ]
    return tuple(found)


def _trunk(ledger: Ledger, state: GridState, trunk: TrunkPlan, failed: dict[str, RunRecord]) -> TrunkRow:
    standing = state.trunks[trunk.name]
    row = TrunkRow(
        name=trunk.name,
        architecture=trunk.architecture,
        scale=trunk.scale,
        seed=trunk.seed,
        stage=trunk.stage or "",
        status="not run" if trunk.branch_steps else "none",
    )
    run = standing.run
    if run is None:
        return row
    steps = int(run.number("steps") or 0)
    seconds = run.number("seconds")
    curve = ledger.metric_history(run.run_id, TRAIN_LOSS)
    thinned = curve[:: max(1, len(curve) // CURVE_POINTS)]
    return replace(
        row,
        steps=steps,
        tokens=steps * trunk.batch_tokens,
        seconds=seconds,
        device_seconds=seconds,
        tokens_per_second=steps * trunk.batch_tokens / seconds if seconds else None,
        train_flops=steps * trunk.batch_tokens * trunk.flops_per_token,
        status="failed" if trunk.name in failed else "done",
        reason=run.reason,
        curve_tokens=tuple(float(step * trunk.batch_tokens) for step, _ in thinned),
        curve_loss=tuple(value for _, value in thinned),
    )


def _laws(plan: GridPlan, ledger: Ledger, state: GridState, points: Sequence[PointRow]) -> tuple[LawRow, ...]:
    """The newest fit of every law; points that failed, or have no value, are named as left out."""
    prints = {each.run.fingerprint for each in state.evaluations.values() if each.status == "done" and each.run}
    rows = []
    for law in plan.laws:
        for architecture in dict.fromkeys(trunk.architecture for trunk in plan.trunks):
            run = state.laws.get(law_name(law, architecture))
            kept = ledger.read_json(run.run_id, LAW) if run is not None else None
            if kept is not None and not prints.issuperset(kept["identity"]["fitted"]):
                kept = None  # a fit to evaluations of other settings
            row = (
                law_row(kept)
                if kept is not None
                else LawRow(
                    target=law.target,
                    architecture=architecture,
                    form=law.form,
                    reason="too few of its points have a value",
                )
            )
            left_out = {
                point.name: f"{point.status}: {point.reason}"
                for point in points
                if point.architecture == architecture
                and point.status in ("failed", "diverged", "blocked")
                and law.roles.get(point.name) in ("fit", "verify")
            }
            left_out |= {
                point.name: point.outcomes[law.metric]
                for point in points
                if point.architecture == architecture
                and law.metric in point.outcomes
                and law.roles.get(point.name) in ("fit", "verify")
            }
            rows.append(replace(row, excluded=row.excluded | left_out))
    return tuple(rows)


def law_row(kept: dict[str, Any]) -> LawRow:
    """A law as its run has it. A ledger outlives versions: fields that this one does not know are left out."""
    known = {each.name for each in fields(LawRow)}
    return LawRow.from_dict(
        {name: value for name, value in kept["row"].items() if name in known} | {"fit": kept["fit"] or {}}
    )


def _failed_runs(state: GridState) -> dict[str, RunRecord]:
    """Runs of this plan that failed and of which nothing better came, by name."""
    standings = (state.trunks, state.points, state.examples, state.evaluations)
    return {
        each.run.name: each.run
        for kind in standings
        for each in kind.values()
        if each.status not in ("done", "drift") and each.run is not None and each.run.status == "FAILED"
    }


def _failure(run: RunRecord, plan: GridPlan) -> FailureRow:
    return FailureRow(
        name=run.tags.get("description", run.name),
        kind=run.kind,
        status=ended_word(run),
        reason=run.reason,
        attempts=int(run.number("attempts") or 1),
    )


def _blocked(plan: GridPlan, state: GridState, failed: dict[str, RunRecord]) -> list[FailureRow]:
    """Evaluations of finished points that wait for something that failed."""
    rows = []
    for trunk in plan.trunks:
        for evaluation in plan.evaluations:
            reason = blocked_by(plan, state, trunk, evaluation)
            rows += [
                FailureRow(name=name, kind="evaluation", status="blocked", reason=reason, attempts=0)
                for point in trunk.points
                if reason
                and state.points[point.name].status == "done"
                and state.evaluations[point.name, evaluation.name].status != "done"
                and (name := evaluation_name(point.name, evaluation.name)) not in failed
            ]
    return rows


def _summary(plan: GridPlan) -> GridSummary:
    points = [point.id for point in plan.points]
    first = plan.trunks[0]
    optimizer, schedule = first.training["optimizer"], first.training["schedule"]
    training = (
        f"{optimizer['name']}, {schedule['name']}, {schedule['decay_fraction']:.0%} decay ({schedule['decay_shape']}), "
        f"{first.batch_tokens:,} tokens a step, {first.training['precision']}"
    )
    return GridSummary(
        architectures=tuple(dict.fromkeys(point.architecture for point in points)),
        scales=tuple(dict.fromkeys(point.scale for point in points)),
        budgets=tuple(dict.fromkeys(point.budget.label for point in points)),
        seeds=tuple(dict.fromkeys(point.seed for point in points)),
        context=first.context,
        data=", ".join(str(part["source"].get("name", part["source"])) for part in first.data.declaration["mixture"]),
        training=training,
    )
