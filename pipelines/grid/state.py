"""What the ledger and the store already hold of a plan: done, to be continued, new, drifted. Reads, changes nothing.

A point is done if and only if a FINISHED run carries its name and fingerprint. A finished run of the same name with
another fingerprint, and none with this one, is drift: the file has changed under finished work.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from gridlaw.pipelines.evaluations.inputs import EXAMPLES_FILE
from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.pipelines.evaluations.sources import ExamplesPlan
from gridlaw.pipelines.grid.attempts import has_model, stored_steps
from gridlaw.pipelines.plan import GridPlan, LawPlan, PointPlan, TrunkPlan
from gridlaw.platform import identity
from gridlaw.platform.errors import BadInput, Drift
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.records import RunRecord, by_name
from gridlaw.platform.store.base import Store, examples_name

Status = Literal["done", "continue", "new", "drift"]
PYTHON = platform.python_version()
_SOURCE_HASH = re.compile(r"trunk\.data\.(?:mixture\[(\d+)\]|heldout)\.source\.sha256")


def evaluation_name(point: str, evaluation: str) -> str:
    """Name of an evaluation's run."""
    return f"{point}/{evaluation}"


def law_name(law: LawPlan, architecture: str) -> str:
    """Name of the run of one law, form and architecture."""
    return f"law/{law.name}/{law.form}/{architecture}"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one trunk, point or evaluation stands. run: the run that counts, or that is taken up again.

    differences: of drift, field by field. steps: of its checkpoints in the store, ascending.
    """

    status: Status
    run: RunRecord | None = None
    differences: tuple[identity.Difference, ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def step(self) -> int:
        """The newest checkpoint; 0 where there is none."""
        return max(self.steps, default=0)

    @property
    def interrupted(self) -> bool:
        """Its run is marked as running; whoever holds the lease knows that nobody runs it."""
        return self.run is not None and self.run.running

    def newest(self, at_most: int) -> int:
        """The newest checkpoint of this step or an earlier one; 0 where there is none."""
        return max((step for step in self.steps if step <= at_most), default=0)


@dataclass(frozen=True, kw_only=True)
class GridState:
    """By name: trunks, points; evaluations by (point, evaluation); examples by fingerprint; laws by run name."""

    trunks: Mapping[str, Standing] = field(default_factory=dict)
    points: Mapping[str, Standing] = field(default_factory=dict)
    evaluations: Mapping[tuple[str, str], Standing] = field(default_factory=dict)
    examples: Mapping[str, Standing] = field(default_factory=dict)
    laws: Mapping[str, RunRecord] = field(default_factory=dict)

    def extended(self, more: GridState) -> GridState:
        """This and what is held of further trunks."""
        return GridState(
            trunks={**self.trunks, **more.trunks},
            points={**self.points, **more.points},
            evaluations={**self.evaluations, **more.evaluations},
            examples={**more.examples, **self.examples},
            laws={**self.laws, **more.laws},
        )

    @cached_property
    def _of_point(self) -> dict[str, list[Standing]]:
        """Evaluations by point: asked for each of thousands of points."""
        found: dict[str, list[Standing]] = {}
        for (point, _), standing in self.evaluations.items():
            found.setdefault(point, []).append(standing)
        return found

    def num_done(self) -> int:
        return sum(standing.status == "done" for standing in self.points.values())

    def metrics(self, point: str) -> dict[str, float]:
        """Metrics of a done point's done evaluations, from the evaluations' own runs."""
        found: dict[str, float] = {}
        for standing in self._of_point.get(point, ()):
            if standing.status == "done" and standing.run is not None:
                found.update({k: v for k, v in standing.run.metrics.items() if not k.startswith("system/")})
        return found

    def without_value(self, point: str, plan: GridPlan) -> dict[str, str]:
        """Metrics that a done evaluation of a point was to give and has no value for → why."""
        found: dict[str, str] = {}
        for evaluation in plan.evaluations:
            run = self.evaluations[point, evaluation.name].run
            if run is not None and self.evaluations[point, evaluation.name].status == "done":
                missing = evaluation.kind.metrics.keys() - run.metrics.keys()
                found |= dict.fromkeys(missing, run.tags.get("outcome", "no value"))
        return found


def read_state(plan: GridPlan, ledger: Ledger | None, store: Store) -> GridState:
    """Compare a plan with the ledger: five searches, whatever the number of points."""
    kinds = ("trunk", "point", "evaluation", "data", "law")
    runs = {kind: by_name(ledger.find_runs(kind)) if ledger is not None else {} for kind in kinds}
    return standings(plan, runs, ledger, store)


def standings(
    plan: GridPlan, runs: Mapping[str, Mapping[str, list[RunRecord]]], ledger: Ledger | None, store: Store
) -> GridState:
    """What these runs (by kind and name, newest first) and the store hold of a plan."""
    steps = stored_steps(store, _resumable(plan, runs))
    return GridState(
        trunks={trunk.name: _trunk(trunk, runs["trunk"].get(trunk.name, []), steps) for trunk in plan.trunks},
        points={point.name: _point(point, runs["point"].get(point.name, []), ledger, steps) for point in plan.points},
        evaluations={
            (point.name, evaluation.name): _evaluation(plan, point, evaluation, runs["evaluation"])
            for point in plan.points
            for evaluation in plan.evaluations
        },
        examples={
            each.fingerprint: _examples(each, runs["data"].get(each.name, []), store) for each in plan.all_examples()
        },
        laws={name: own[0] for name, own in runs["law"].items()},
    )


def refuse_drift(plan: GridPlan, state: GridState) -> None:
    """``Drift`` with every drifted point, field by field; nothing was touched."""
    drifted = {name: each for name, each in state.points.items() if each.status == "drift"}
    if not drifted:
        return
    shown: dict[str, list[str]] = {}
    for name, standing in drifted.items():
        shown.setdefault(identity.drift_text(standing.differences), []).append(name)
    lines = [f"{len(drifted)} finished points of {plan.spec.name} were trained with other settings than this file's:"]
    for text, names in shown.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"  {names[0]}{more}: {text}")
    note = interpreter_note(plan, state)
    if note:
        lines.append(f"  {note}")
    lines.append("Nothing was changed. Undo the change, or give the file another name:, or run with --rerun")
    lines.append("(--rerun trains these points again and tags the old runs as superseded; nothing is deleted).")
    raise Drift("\n".join(lines))


def interpreter_note(plan: GridPlan, state: GridState) -> str:
    """Where finished points drifted because the embedded corpus is another: the interpreters' versions; or nothing.

    The embedded corpus is the interpreter's own library, so another interpreter is other data.
    """
    trained = {
        run.tags.get("python", "unknown")
        for point in plan.points
        if (run := state.points[point.name].run) is not None
        if _embedded_differs(plan, point, state.points[point.name])
    }
    if not trained:
        return ""
    versions = ", ".join(sorted(trained))
    return f"The embedded corpus is Python's own library: these points saw that of Python {versions}, this is {PYTHON}"


def _embedded_differs(plan: GridPlan, point: PointPlan, standing: Standing) -> bool:
    declaration = plan.trunk_of(point).data.declaration
    for each in standing.differences:
        match = _SOURCE_HASH.fullmatch(each.field)
        if match:
            part = declaration["heldout"] if match[1] is None else declaration["mixture"][int(match[1])]
            if part["source"]["kind"] == "embedded":
                return True
    return False


def refuse_lost_models(plan: GridPlan, state: GridState, store: Store, *, also: Iterable[str] = ()) -> None:
    """``BadInput`` for finished points whose model is gone from the store and is still needed.

    It is for evaluations that the point lacks, to find key tokens, and for points of later stages that start from it
    and have no checkpoint of their own. also: names of points that are needed besides.
    """
    lost = []
    needed = {
        trunk.base.point.name
        for trunk in plan.trunks
        if trunk.base is not None and trunk.base.point is not None
        if state.trunks[trunk.name].step == 0 and any(state.points[each.name].status == "new" for each in trunk.points)
    }
    sources = [each.evaluation.evaluator for each in wanted_examples(plan, state)]
    needed |= {source.point for source in sources if source is not None and source.point is not None}
    needed |= set(also)
    for point in plan.points:
        run = state.points[point.name].run
        asked = [state.evaluations[point.name, each.name] for each in plan.evaluations]
        idle = all(each.status == "done" for each in asked) and point.name not in needed
        if state.points[point.name].status != "done" or run is None or idle:
            continue
        if not has_model(store, run.run_id):
            lost.append(point.name)
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise BadInput(
            f"model of {lost[0]}{more}",
            seen="missing in the store",
            allowed="the model of a finished point, for evaluations that it lacks or stages that start from it",
            hint="Bring the store's attempts folder back, or delete the point's run in MLflow to train it again",
        )


def wanted_examples(plan: GridPlan, state: GridState) -> list[ExamplesPlan]:
    """Examples that some evaluation still needs and the store does not have, each once."""
    wanted: dict[str, ExamplesPlan] = {}
    for trunk in plan.trunks:
        for evaluation in plan.evaluations:
            examples = plan.examples(trunk, evaluation)
            if examples is None or state.examples[examples.fingerprint].status == "done":
                continue
            if any(state.evaluations[point.name, evaluation.name].status != "done" for point in trunk.points):
                wanted.setdefault(examples.fingerprint, examples)
    return list(wanted.values())


def training_blocked_by(plan: GridPlan, state: GridState, trunk: TrunkPlan) -> str:
    """Why points of this trunk cannot be trained: their trunk failed, or what it starts from. Or nothing."""
    run = state.trunks[trunk.name].run
    if run is not None and run.status == "FAILED":
        return f"its trunk {ended_word(run)}: {run.reason}"
    parent = trunk.base.point if trunk.base is not None else None
    if parent is None or state.points[parent.name].status == "done":
        return ""
    above = state.points[parent.name].run
    if above is not None and above.status == "FAILED":
        return f"{parent.name} {ended_word(above)}: {above.reason}"
    reason = training_blocked_by(plan, state, next(each for each in plan.trunks if each.name == parent.trunk_name))
    return f"{parent.name} is blocked: {reason}" if reason else ""


def ended_word(run: RunRecord) -> str:
    """How a failed run is called."""
    return "diverged" if run.diverged else "failed"


def blocked_by(plan: GridPlan, state: GridState, trunk: TrunkPlan, evaluation: Evaluation) -> str:
    """Why an evaluation of a trunk's points had to be left: what it needs beside the points failed. Or nothing."""
    examples = plan.examples(trunk, evaluation)
    if examples is None or state.examples[examples.fingerprint].status == "done":
        return ""
    source = evaluation.evaluator
    evaluator = next((each for each in plan.points if source is not None and each.name == source.point), None)
    needed = [] if evaluator is None else [(evaluator.trunk, state.trunks[evaluator.trunk])]
    needed += [] if evaluator is None else [(evaluator.name, state.points[evaluator.name])]
    for name, standing in (*needed, (examples.label, state.examples[examples.fingerprint])):
        if standing.status != "done" and standing.run is not None and standing.run.status == "FAILED":
            return f"{name} {ended_word(standing.run)}: {standing.run.reason}"
    return ""


def _with_fingerprint(runs: Iterable[RunRecord], fingerprint: str) -> list[RunRecord]:
    return [run for run in runs if run.fingerprint == fingerprint]


def _resumable(plan: GridPlan, runs: Mapping[str, Mapping[str, list[RunRecord]]]) -> list[str]:
    """Ids of the runs whose checkpoints say where they stand: trunks, and points that are not finished."""
    found = []
    for trunk in plan.trunks:
        found += [run.run_id for run in _with_fingerprint(runs["trunk"].get(trunk.name, []), trunk.fingerprint)[:1]]
    for point in plan.points:
        own = _with_fingerprint(runs["point"].get(point.name, []), point.fingerprint)
        if not any(run.finished for run in own):
            found += [run.run_id for run in own[:1]]
    return found


def _trunk(trunk: TrunkPlan, runs: list[RunRecord], stored: Mapping[str, list[int]]) -> Standing:
    own = _with_fingerprint(runs, trunk.fingerprint)
    if not own:
        return Standing(status="new")
    steps = tuple(stored[own[0].run_id])
    complete = max(steps, default=0) >= max(trunk.branch_steps, default=0)
    return Standing(status="done" if complete and own[0].finished else "continue", run=own[0], steps=steps)


def _point(point: PointPlan, runs: list[RunRecord], ledger: Ledger | None, stored: Mapping[str, list[int]]) -> Standing:
    own = _with_fingerprint(runs, point.fingerprint)
    finished = [run for run in own if run.finished]
    if finished:
        return Standing(status="done", run=finished[0])
    others = [run for run in runs if run.finished]
    if others:
        old = (ledger.identity(others[0].run_id) if ledger else None) or {}
        return Standing(status="drift", run=others[0], differences=tuple(identity.differences(old, point.identity)))
    if own:
        steps = tuple(stored[own[0].run_id])
        return Standing(status="continue" if steps else "new", run=own[0], steps=steps)
    return Standing(status="new")


def _evaluation(
    plan: GridPlan, point: PointPlan, evaluation: Evaluation, runs: Mapping[str, list[RunRecord]]
) -> Standing:
    fingerprint = plan.evaluation_fingerprint(point, evaluation)
    own = _with_fingerprint(runs.get(evaluation_name(point.name, evaluation.name), []), fingerprint)
    finished = [run for run in own if run.finished]
    if finished:
        return Standing(status="done", run=finished[0])
    return Standing(status="new", run=own[0] if own else None)


def _examples(plan: ExamplesPlan, runs: list[RunRecord], store: Store) -> Standing:
    """Made by content, so whoever made them: done if the store has them. The run tells of the newest attempt."""
    made = store.exists(f"{examples_name(plan.fingerprint)}/{EXAMPLES_FILE}")
    return Standing(status="done" if made else "new", run=runs[0] if runs else None)
