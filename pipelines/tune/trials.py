"""A study's trials as the driver's source of points: ask, train and evaluate through the grid, watch, tell.

Order. The ledger has a trial's end before the study is told, so a driver that comes after a death in between tells what
the ledger says and trains nothing. A trial that is RUNNING in the study belongs to this driver, which holds the lease:
it is taken up under its number and continues at its newest checkpoint.

A trial whose settings were tried before, to the last bit, gets the same values without training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gridlaw.pipelines.grid.graph import Node, NodeKey
from gridlaw.pipelines.grid.outcome import Failure, Outcome
from gridlaw.pipelines.grid.state import standings
from gridlaw.pipelines.plan import PointPlan, TrunkPlan
from gridlaw.pipelines.tune.looks import Looks
from gridlaw.pipelines.tune.metrics import DURING_TRAINING, LOGGED_IN_TRAINING, bare, training_metrics, value_of
from gridlaw.pipelines.tune.plan import TunePlan, trial_name
from gridlaw.pipelines.tune.records import StudyRecords, told_by
from gridlaw.pipelines.tune.results import settings_text
from gridlaw.platform.errors import Surroundings
from gridlaw.platform.ledger.records import TRAIN_LOSS, RunRecord
from gridlaw.platform.ledger.sender import JOURNAL_FILE
from gridlaw.platform.store.base import STOP_FILE, Store, attempt_name
from gridlaw.platform.tuning.front import far_behind
from gridlaw.platform.tuning.study import ASK_AGAIN, REASON, REPORTS, End, Study, TrialRecord

if TYPE_CHECKING:
    from gridlaw.pipelines.grid.driver import Driver

FLOPS, RUN_ID, SAME_AS = "flops", "run_id", "same_as"
"""Attributes of a trial: training FLOPs really spent, its run in the ledger, the trial whose values it was given."""
_MAY_PASS = ("lost", "memory")
_OVER = ("done", "failed", "blocked")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """parallel: trials at a time. max_seconds: after so many no trial begins. max_flops: of all trials together."""

    parallel: int
    max_seconds: float = math.inf
    max_flops: float = math.inf


@dataclass
class _Trial:
    """A trial under way. looks: at its training, where a rule prunes. failures: of evaluations, by name."""

    record: TrialRecord
    trunk: TrunkPlan
    point: PointPlan
    metrics: dict[str, float]
    looks: Looks | None = None
    reports: dict[int, list[float]] = field(default_factory=dict)
    result: dict[str, Any] | None = None
    failure: Failure | None = None
    failures: dict[str, str] = field(default_factory=dict)
    pruned: str = ""


class Trials:
    """``grid.source.Source`` of one submission. runs, evaluations, examples: the ledger's, by name, newest first."""

    def __init__(
        self,
        plan: TunePlan,
        study: Study,
        records: StudyRecords,
        store: Store,
        limits: Limits,
        *,
        runs: Mapping[str, list[RunRecord]],
        evaluations: Mapping[str, list[RunRecord]],
        examples: Mapping[str, list[RunRecord]],
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._study, self._records, self._store = plan, study, records, store
        self._limits, self._runs, self._evaluations, self._say = limits, runs, evaluations, say
        self._examples = examples
        self._active: dict[int, _Trial] = {}
        self._begun = time.monotonic()
        self._counted: set[int] | None = None
        """Numbers of trials that have ended and count; None before the first look at the study."""
        self._take_up = True
        self._closed = ""
        self._known: dict[int, TrialRecord] = {}
        self._spent_flops = 0.0
        self._histories: dict[int, dict[int, list[float]]] = {}
        self._twins: dict[str, tuple[int, dict[str, float]]] = {}

    # grid.source.Source

    def more(self) -> bool:
        return bool(self._active) or self._counted is None or (not self._closed and self._left() > 0)

    def feed(self, driver: Driver) -> None:
        if self._counted is None:
            self._counted = self._look_back()
        if not self._ready(driver):
            return
        if self._take_up:
            for record in self._study.adopt(known=self._active):
                self._start(driver, record)
            self._take_up = False
        for trial in list(self._active.values()):
            self._watch(driver, trial)
            if self._over(driver, trial):
                self._end(driver, trial)
        while self._room():
            try:
                self._start(driver, self._study.ask())
            except Surroundings:
                self._take_up = True  # it may have been made all the same, and is not under way
                raise

    def owns(self, node: Node) -> bool:
        return self._of(node) is not None

    def judge(self, node: Node, outcome: Outcome) -> Outcome:
        trial = self._of(node)
        over = outcome.failure is None or outcome.failure.kind == "stopped"
        if trial is None or node.kind != "decay" or not over:
            return outcome
        self._look(trial)
        return Outcome(failure=Failure(kind="pruned", reason=trial.pruned)) if trial.pruned else outcome

    def ended(self, node: Node, outcome: Outcome) -> None:
        trial = self._of(node)
        assert trial is not None, f"{node.key} is no trial's"
        if node.kind == "decay":
            trial.failure, trial.result = outcome.failure, outcome.result
            if outcome.result is not None:
                trial.metrics |= training_metrics(outcome.result)
        elif outcome.failure is not None:
            trial.failures[str(node.key[2])] = outcome.failure.reason
        else:
            assert outcome.result is not None
            trial.metrics |= outcome.result["metrics"]

    # What the driver asks for afterwards

    @property
    def closed(self) -> str:
        """Why no further trial was begun although some are left; "" if none are."""
        return self._closed if self._left() > 0 else ""

    @property
    def known(self) -> list[TrialRecord]:
        """Trials as this driver last saw them, by number: for when the storage cannot be asked."""
        return [self._known[number] for number in sorted(self._known)]

    # Beginning

    def _look_back(self) -> set[int]:
        """What earlier submissions came to; trials that failed for a reason that may pass are asked for again."""
        trials = self._study.trials()
        self._known = {each.number: each for each in trials}
        for each in trials:
            if each.ask_again:
                self._study.again(each)
            if each.state == "complete":
                self._histories[each.number] = {step: list(value) for step, value in _vectors(each).items()}
        for runs in self._runs.values():
            for run in runs:
                told = told_by(run)
                if told is not None and told[0] == "complete":
                    self._twins.setdefault(run.fingerprint, (int(run.tags["trial"]), told[1]))
        self._spent_flops = sum(float(each.attributes.get(FLOPS, 0.0)) for each in trials)
        return {each.number for each in trials if each.finished and not each.ask_again}

    def _ready(self, driver: Driver) -> bool:
        """Once the data are prepared and the trials' common start is trained; without them no trial begins."""
        trunk = self._plan.base.trunks[-1]
        nodes, base = [driver.add_data(data) for data in (trunk.data, trunk.measured)], trunk.base
        parent = base.point if base is not None else None
        if parent is not None and ("decay", parent.name) in driver.graph.nodes:
            nodes.append(driver.graph.nodes["decay", parent.name])
        lost = [node for node in nodes if node.state in ("failed", "blocked")]
        if lost:
            self._closed = f"{' '.join(map(str, lost[0].key))} failed: {lost[0].reason}"
        return all(node.state == "done" for node in nodes)

    def _left(self) -> int:
        return self._plan.num_trials - len(self._counted or ()) - len(self._active)

    def _room(self) -> bool:
        if self._closed or self._left() <= 0 or len(self._active) >= self._limits.parallel:
            return False
        if time.monotonic() - self._begun >= self._limits.max_seconds:
            self._closed = "run.max_hours are over"
        planned = self._plan.varied.train_flops * (len(self._active) + 1)
        if self._spent_flops + planned > self._limits.max_flops:
            self._closed = f"run.max_flops are spent ({self._spent_flops:.3g})"
        return not self._closed

    def _start(self, driver: Driver, record: TrialRecord) -> None:
        trunk = self._plan.trial(record.number, record.params)
        (point,) = trunk.points
        self._records.trials[record.number] = self._known[record.number] = record
        runs = {point.name: [run for run in self._runs.get(point.name, []) if run.fingerprint == point.fingerprint]}
        told = next((found for run in runs[point.name] if (found := told_by(run)) is not None), None)
        if told is not None:  # a driver died between the ledger and the study
            (run, *_) = [run for run in runs[point.name] if told_by(run) is not None]
            self._records.run_ids[point.name] = run.run_id
            flops, again = run.number(FLOPS) or 0.0, ASK_AGAIN in run.tags
            self._tell(record, point, *told, flops=flops, again=again)
            return
        twin = self._twins.get(point.fingerprint)
        if twin is not None:
            self._records.open_point(trunk, point)
            self._records.end_trial(point, "complete", metrics=twin[1], tags={SAME_AS: trial_name(twin[0])})
            self._tell(record, point, "complete", twin[1], "", flops=0.0, more={SAME_AS: twin[0]})
            return
        one = replace(self._plan.base, trunks=(trunk,))
        kept = {"trunk": {}, "point": runs, "evaluation": self._evaluations, "data": self._examples, "law": {}}
        state = standings(one, kept, self._records.ledger, self._store)
        for run in runs[point.name]:  # asked to leave by a driver that died before it was told so
            self._store.delete(f"{attempt_name(run.run_id)}/{STOP_FILE}")
        trial = _Trial(record=record, trunk=trunk, point=point, metrics=state.metrics(point.name))
        self._active[record.number] = trial
        driver.add(trunk, state)
        self._say(f"{point.name}: {settings_text(record.params)}")

    # Watching

    def _watch(self, driver: Driver, trial: _Trial) -> None:
        """Report what training has logged; ask a trial that is to be pruned to leave."""
        key: NodeKey = ("decay", trial.point.name)
        node = driver.graph.nodes.get(key)
        if node is None or node.state not in ("waiting", "running"):
            return
        already = bool(trial.pruned)
        self._look(trial)
        if not trial.pruned:
            return
        if node.state == "waiting":
            driver.graph.fail(key, trial.pruned)
        elif not already:
            run_id = self._records.run_ids[trial.point.name]
            self._store.write_bytes(f"{attempt_name(run_id)}/{STOP_FILE}", b"stop\n", durable=False)

    def _look(self, trial: _Trial) -> None:
        """Take in the looks that are new, until one of them says that the trial is hopeless."""
        rule, run_id = self._plan.declaration.prune, self._records.run_ids.get(trial.point.name)
        if rule is None or run_id is None or trial.pruned:
            return
        objectives = self._study.declaration.objectives  # in the order of earlier trials' reports
        if trial.looks is None:
            names = [DURING_TRAINING[bare(name)] for name in objectives]
            trial.looks = Looks(self._records.attempts / run_id / JOURNAL_FILE, names, rule.every_steps)
        for step, values in trial.looks.new():
            if step >= rule.total_steps:
                return
            trial.reports[step] = values
            if rule.name == "front":
                others = [each[step] for each in self._histories.values() if step in each]
                enough = step >= rule.warmup_steps and len(others) >= rule.startup_trials
                hopeless = enough and far_behind(values, others, margin=rule.margin)
            else:
                # What training reports is better when smaller; a study may seek more of something.
                (direction,) = objectives.values()
                value = values[0] if direction == "min" else -values[0]
                hopeless = self._study.report(trial.record.number, step, value)
            if hopeless:
                shown = ", ".join(f"{name} {value:.4g}" for name, value in zip(objectives, values, strict=True))
                trial.pruned = f"{rule.name} at step {step:,} of {rule.total_steps:,}: {shown} in training"
                return

    # Ending

    def _over(self, driver: Driver, trial: _Trial) -> bool:
        name = trial.point.name
        keys: list[NodeKey] = [("decay", name)]
        keys += [("evaluate", name, each.name) for each in self._plan.base.evaluations]
        return all(driver.graph.nodes[key].state in _OVER for key in keys if key in driver.graph.nodes)

    def _end(self, driver: Driver, trial: _Trial) -> None:
        """Write a trial's end into the ledger, then tell the study."""
        state, values, reason = self._verdict(trial)
        again = trial.failure is not None and trial.failure.kind in _MAY_PASS and not trial.pruned
        diverged = trial.failure is not None and trial.failure.kind == "diverged"
        if trial.point.name not in self._records.run_ids:  # nothing of it ever ran
            self._records.open_point(trial.trunk, trial.point)
        metrics = {name: value for name, value in trial.metrics.items() if math.isfinite(value)} | values
        flops = self._steps(trial) * trial.trunk.batch_tokens * trial.trunk.flops_per_token
        tags = {FLOPS: flops, ASK_AGAIN: True if again else None}
        self._records.end_trial(
            trial.point, state, metrics=metrics, logged=LOGGED_IN_TRAINING, reason=reason, diverged=diverged, tags=tags
        )
        rule = self._plan.declaration.prune
        more = {REPORTS: trial.reports} if trial.reports and rule is not None and rule.name == "front" else {}
        self._tell(trial.record, trial.point, state, values, reason, flops=flops, more=more, again=again)
        if state == "complete":
            self._histories[trial.record.number] = trial.reports
            self._twins.setdefault(trial.point.fingerprint, (trial.record.number, metrics))
        del self._active[trial.record.number]

    def _steps(self, trial: _Trial) -> int:
        """Optimizer steps that a trial took: by its result, or, of one that was cut short, by its journal."""
        if trial.result is not None:
            return int(trial.result["executed_steps"])
        path = self._records.attempts / self._records.run_ids[trial.point.name] / JOURNAL_FILE
        looks = Looks(path, [TRAIN_LOSS], 1)
        return max((step for step, _ in looks.new()), default=0)

    def _verdict(self, trial: _Trial) -> tuple[End, dict[str, float], str]:
        """(state, values of objectives and constraints, reason)."""
        if trial.pruned:
            return "pruned", {}, trial.pruned
        if trial.failure is not None:
            return "fail", {}, trial.failure.reason
        values = {}
        for name in self._plan.metric_names():
            value = value_of(name, trial.metrics)
            if value is None:
                why = "; ".join(f"evaluation {each} failed: {reason}" for each, reason in trial.failures.items())
                return "fail", {}, why or f"{name} was not measured"
            if not math.isfinite(value):
                return "fail", {}, f"{name} is {value}"
            values[name] = value
        return "complete", values, ""

    def _tell(
        self,
        record: TrialRecord,
        point: PointPlan,
        state: End,
        metrics: Mapping[str, float],
        reason: str,
        *,
        flops: float,
        more: Mapping[str, Any] | None = None,
        again: bool = False,
    ) -> None:
        attributes = {RUN_ID: self._records.run_ids[point.name], FLOPS: flops, **(more or {})}
        if reason:
            attributes[REASON] = reason
        if again:
            attributes[ASK_AGAIN] = True
        self._known[record.number] = self._study.tell(record.number, state, metrics=metrics, attributes=attributes)
        assert self._counted is not None, "nothing is told before the first look"
        if not again:
            self._counted.add(record.number)
        self._spent_flops += flops
        shown = ", ".join(f"{name} {metrics[name]:.5g}" for name in self._plan.tune.objectives if name in metrics)
        self._say(f"{point.name} {state}: {reason or shown}")

    def _of(self, node: Node) -> _Trial | None:
        name = str(node.key[1]) if len(node.key) > 1 else ""
        number = name.removeprefix("trial")
        trial = self._active.get(int(number)) if name.startswith("trial") and number.isdigit() else None
        return trial if node.kind in ("decay", "evaluate") else None


def _vectors(trial: TrialRecord) -> Mapping[int, Any]:
    """Reports of a trial by step, each as a vector."""
    return {step: value if isinstance(value, list) else [value] for step, value in trial.reports.items()}
