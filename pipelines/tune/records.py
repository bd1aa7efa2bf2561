"""A study in the ledger: its run, which every submission opens again, and a child run per trial.

A trial's run is RUNNING until the study is told: its end is written first, with what is to be told as tags, and the
study is told after it, so that a driver that comes after a death in between tells the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.pipelines.grid.records import Records
from gridlaw.pipelines.grid.submission import public_config
from gridlaw.pipelines.plan import PointPlan, TrunkPlan
from gridlaw.pipelines.tune.plan import TrialId, TunePlan
from gridlaw.platform.jobs import submission_id
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.records import RunRecord
from gridlaw.platform.tuning.study import End, TrialRecord

STATE, METRICS = "trial_state", "trial_metrics"
"""Tags of a trial's run that has ended: what the study is told of it."""


@dataclass
class StudyRecords(Records):
    """The grid's records, with runs of kind trial in place of the varied point's."""

    trials: dict[int, TrialRecord] = field(default_factory=dict)
    """Asked for or taken up in this submission, by number."""

    def open_point(self, trunk: TrunkPlan, point: PointPlan) -> str:
        if not isinstance(point.id, TrialId):
            return super().open_point(trunk, point)
        trial = self.trials[point.id.trial]
        tags = self._trunk_tags(trunk) | {
            "budget": point.id.budget.label,
            "tokens": point.tokens,
            "trial": trial.number,
            "settings": dict(trial.params),
        }
        return self._open(
            "trial", point.name, point.fingerprint, tags=tags, params=dict(trial.params), identity=point.identity
        )

    def finish_point(self, point: PointPlan, result: dict[str, Any]) -> None:
        """A trial's training is over; its run ends with ``end_trial``."""
        if not isinstance(point.id, TrialId):
            super().finish_point(point, result)
            return
        self.ledger.log_results(self.run_ids[point.name], tags=self.training_tags(self.run_ids[point.name], result))

    def open_evaluation(self, trunk: TrunkPlan, point: PointPlan, evaluation: Evaluation) -> str:
        """Below its trial's run."""
        study, trial = self.parent_id, isinstance(point.id, TrialId)
        try:
            self.parent_id = self.run_ids[point.name] if trial else study
            return super().open_evaluation(trunk, point, evaluation)
        finally:
            self.parent_id = study

    def end_trial(
        self,
        point: PointPlan,
        state: str,
        *,
        metrics: Mapping[str, float],
        logged: Collection[str] = (),
        reason: str = "",
        diverged: bool = False,
        error: str = "",
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """End a trial's run: FINISHED if complete, KILLED if pruned, FAILED otherwise.

        logged: metrics that its training has logged at its last step, too; the run keeps those.
        """
        run_id = self.run_ids[point.name]
        own = {STATE: state, METRICS: json.dumps(dict(metrics)), **(tags or {})}
        self._flush(point.name)
        if state == "complete":
            more = {name: value for name, value in metrics.items() if name not in logged}
            self.ledger.finish_run(run_id, metrics=more, step=point.total_steps, tags=own)
        elif state == "pruned":
            self.ledger.log_results(run_id, tags=own)
            self.ledger.stop_run(run_id, reason)
        else:
            self.ledger.fail_run(run_id, reason, diverged=diverged, error=error, tags=own)
        self.opened.discard(point.name)


def told_by(run: RunRecord | None) -> tuple[End, dict[str, float], str] | None:
    """(state, metrics, reason) of a trial's run that was ended before the study was told; None if it was not."""
    if run is None or run.running or STATE not in run.tags:
        return None
    state = run.tags[STATE]
    assert state in ("complete", "pruned", "fail"), f"run {run.run_id} ended as {state!r}"
    return cast(End, state), json.loads(run.tags.get(METRICS, "{}")), run.reason


def open_study_run(ledger: Ledger, plan: TunePlan, existing: RunRecord | None) -> str:
    """The study's own run, opened again or made; returns its id."""
    declaration = plan.declaration
    tags = {
        "study": declaration.name,
        "sampler": declaration.sampler.name,
        "num_trials": plan.num_trials,
        "job_id": submission_id() or None,
    }
    if existing is not None:
        ledger.reopen_run(existing.run_id, tags=tags)
        return existing.run_id
    return ledger.start_run(
        "study",
        name=plan.spec.name,
        fingerprint=declaration.fingerprint,
        tags=tags,
        params={"sampler": declaration.sampler.name, "sampler_seed": declaration.sampler.seed},
        identity=declaration.identity,
        config=public_config(plan.spec),
    )
