"""One study in Optuna's storage: asked and told by the one driver that holds the experiment's lease.

A study is bound to its identity: its name carries a hash of it, and another study of the same experiment with another
identity is drift, shown field by field. Trials that a dead driver left RUNNING are taken up again under their numbers
with their parameters; nothing is asked twice. Telling is tolerant: a trial that somebody else ended (the dashboard
can) stays as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from gridlaw.platform import identity
from gridlaw.platform.errors import BadInput, Drift
from gridlaw.platform.tuning.samplers import SamplerChoice, grid_order, make_sampler
from gridlaw.platform.tuning.space import Parameter, Space, Value
from gridlaw.platform.tuning.storage import open_storage, quiet, storage_calls

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

TrialState = Literal["waiting", "running", "complete", "pruned", "fail"]
End = Literal["complete", "pruned", "fail"]
EXPERIMENT, IDENTITY, FINGERPRINT, SUPERSEDED = "experiment", "identity", "fingerprint", "superseded"
"""User attributes of a study. Of a trial: REASON, REPORTS, RETRY_OF, and whatever its driver keeps there."""
MIN_FOR_IMPORTANCES = 8
REASON, REPORTS, RETRY_OF, ASK_AGAIN = "reason", "reports", "retry_of", "ask_again"


@dataclass(frozen=True, kw_only=True)
class PruneRule:
    """``tune.prune`` with everything filled in; steps are a trial's optimizer steps."""

    name: Literal["median", "hyperband", "front"]
    every_steps: int
    total_steps: int
    warmup_steps: int = 0
    startup_trials: int = 5
    margin: float = 0.25
    reduction: int = 3


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a study is. values: further JSON-able values of its identity (what is trained).

    objectives: metric → min or max, in order. constraints: metric → (operator, bound). first: all parameters of the
    first trial that exist there, or nothing.
    """

    experiment: str
    space: Space
    objectives: Mapping[str, str]
    constraints: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    sampler: SamplerChoice
    first: dict[str, Value] = field(default_factory=dict)
    prune: PruneRule | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def identity(self) -> dict[str, Any]:
        prune = None if self.prune is None else vars(self.prune)
        return {
            "kind": "study",
            "space": self.space.identity(),
            "objectives": dict(self.objectives),
            "constraints": {name: list(bound) for name, bound in self.constraints.items()},
            "sampler": self.sampler.identity(),
            "first": self.first,
            "prune": prune,
            **self.values,
        }

    @cached_property
    def fingerprint(self) -> str:
        return identity.fingerprint(self.identity)

    @property
    def name(self) -> str:
        """The study's name in the storage."""
        return f"{self.experiment}-{self.fingerprint[:12]}"

    @property
    def most_trials(self) -> int | None:
        """How many different trials there can be: of a grid sampler; None for no limit."""
        if self.sampler.name != "grid":
            return None
        return len(grid_order(self.space, seed=0, first=self.first)) + bool(self.first)

    def violations(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """By how much each constraint is violated; 0 or less where it holds."""
        return {
            name: metrics[name] - bound if operator == "<=" else bound - metrics[name]
            for name, (operator, bound) in self.constraints.items()
        }


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial as the storage has it. values: by objective, of a complete one. violations: by constraint."""

    number: int
    state: TrialState
    params: Mapping[str, Value]
    values: Mapping[str, float] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    reports: Mapping[int, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return self.state in ("complete", "pruned", "fail")

    @property
    def feasible(self) -> bool:
        return all(value <= 0 for value in self.violations.values())

    @property
    def reason(self) -> str:
        """Why it failed or was pruned."""
        return str(self.attributes.get(REASON, ""))

    @property
    def ask_again(self) -> bool:
        """It failed for a reason that may pass, and is to be asked again."""
        return self.state == "fail" and bool(self.attributes.get(ASK_AGAIN))


class Study:
    """A study that is there. Made by ``open_study``; every method may raise ``Surroundings``."""

    def __init__(self, url: str, declaration: Declaration, study: optuna.Study) -> None:
        self.url, self.declaration, self._study = url, declaration, study
        self._running: dict[int, optuna.Trial] = {}
        """Trials that this process asked for or took up."""

    @property
    def name(self) -> str:
        return self._study.study_name

    # Reading

    def trials(self) -> list[TrialRecord]:
        """All trials, by number."""
        with self._calls("read its trials"):
            return [self._record(each) for each in self._study.get_trials(deepcopy=False)]

    def importances(self) -> dict[str, dict[str, float]]:
        """By objective: how much of what makes complete trials good in it goes with each parameter (PED-ANOVA), summing
        to 1; nothing for fewer than ``MIN_FOR_IMPORTANCES`` trials, or where all values are equal.
        """
        import optuna

        found: dict[str, dict[str, float]] = {}
        with self._calls("weigh its parameters"):
            complete = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
            if len(complete) < MIN_FOR_IMPORTANCES:
                return found
            for index, (name, direction) in enumerate(self.declaration.objectives.items()):
                sign = 1 if direction == "min" else -1  # what is weighed are small values of the target
                if len({trial.values[index] for trial in complete}) > 1:
                    shares = optuna.importance.get_param_importances(
                        self._study,
                        target=lambda trial, at=index, sign=sign: sign * float(trial.values[at]),  # type: ignore[misc]
                    )
                    found[name] = {parameter: float(share) for parameter, share in shares.items()}
        return found

    # Writing: the driver alone

    def ask(self) -> TrialRecord:
        """The next trial, RUNNING with all its parameters: one that waits in the queue, or the sampler's proposal."""
        with self._calls("ask for a trial"):
            return self._suggest(self._study.ask())

    def adopt(self, *, known: Collection[int] = ()) -> list[TrialRecord]:
        """Take up trials that are RUNNING and none of ``known``: a dead driver's, or one whose answer was lost."""
        import optuna

        found = []
        with self._calls("take up its running trials"):
            running = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
            for each in running:
                if each.number not in known:
                    found.append(self._suggest(optuna.Trial(self._study, each._trial_id)))
        return found

    def again(self, trial: TrialRecord) -> None:
        """Put a failed trial's parameters into the queue, once; ``ask`` returns them next."""
        with self._calls("queue a trial"):
            known = self._study.get_trials(deepcopy=False)
            if not any(each.user_attrs.get(RETRY_OF) == trial.number for each in known):
                self._study.enqueue_trial(dict(trial.params), user_attrs={RETRY_OF: trial.number})

    def report(self, number: int, step: int, value: float) -> bool:
        """A single-objective study: record a value of training; True if the pruner would end the trial now.

        Of a trial that somebody else has ended nothing is recorded.
        """
        trial = self._running[number]
        with self._calls("report a value"):
            frozen = self._study._storage.get_trial(trial._trial_id)
            if frozen.state.is_finished():
                return False
            if step not in frozen.intermediate_values:
                trial.report(value, step)
            return trial.should_prune()

    def tell(
        self,
        number: int,
        state: End,
        *,
        metrics: Mapping[str, float] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> TrialRecord:
        """End a trial. metrics: of a complete one, with every objective and constraint, finite.

        May be repeated after an outage. A trial that has ended already stays as it is and is returned.
        """
        import optuna

        states = optuna.trial.TrialState
        with self._calls("tell a trial"):
            trial = self._running[number]
            frozen = self._study._storage.get_trial(trial._trial_id)
            if not frozen.state.is_finished():
                for key, value in (attributes or {}).items():
                    trial.set_user_attr(key, value)
                values = None
                if state == "complete":
                    assert metrics is not None, "a complete trial has its metrics"
                    values = [metrics[name] for name in self.declaration.objectives]
                    assert all(map(math.isfinite, values)), f"non-finite values of trial {number}: {values}"
                    known = trial.constraints
                    for name, violation in self.declaration.violations(metrics).items():
                        if name not in known:
                            trial.set_constraint(name, violation)
                self._study.tell(trial, values, state=getattr(states, state.upper()))
                frozen = self._study._storage.get_trial(trial._trial_id)
            self._running.pop(number, None)
            return self._record(frozen)

    def _suggest(self, trial: optuna.Trial) -> TrialRecord:
        """Draw every parameter that exists; those that are stored already stay."""
        params: dict[str, Value] = {}
        for each in self.declaration.space:
            if self.declaration.space.is_active(each, params):
                params[each.name] = each.cast(_suggest(trial, each))
        self._running[trial.number] = trial
        return TrialRecord(number=trial.number, state="running", params=params, attributes=trial.user_attrs)

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        names = list(self.declaration.objectives)
        complete = trial.state.name == "COMPLETE"
        reports = trial.intermediate_values or {int(k): v for k, v in trial.user_attrs.get(REPORTS, {}).items()}
        return TrialRecord(
            number=trial.number,
            state=trial.state.name.lower(),  # type: ignore[arg-type]
            params=self.declaration.space.active(trial.params),
            values=dict(zip(names, trial.values or (), strict=True)) if complete else {},
            violations=dict(trial.constraints),
            attributes=dict(trial.user_attrs),
            reports=reports,
        )

    @contextmanager
    def _calls(self, what: str) -> Iterator[None]:
        with storage_calls(self.url, what), quiet():
            yield


def _suggest(trial: optuna.Trial, parameter: Parameter) -> Any:
    name, low, high = parameter.name, parameter.low, parameter.high
    if parameter.kind == "choice":
        return trial.suggest_categorical(name, parameter.choices)
    assert low is not None and high is not None, f"{name} has no range"
    if parameter.kind == "int":
        return trial.suggest_int(name, int(low), int(high), step=int(parameter.step or 1), log=parameter.log)
    return trial.suggest_float(name, low, high, step=parameter.step, log=parameter.log)


def open_study(url: str, declaration: Declaration, *, create: bool, rerun: bool = False) -> Study | None:
    """The study of a declaration; without ``create`` None where there is none, and nothing is made.

    ``Drift`` if the experiment has a study of another identity in this storage; with ``rerun`` and ``create`` that one
    is set aside. ``BadInput`` if a study of this name is somebody else's.
    """
    with storage_calls(url, "open"), quiet():
        storage = open_storage(url, create=create)
        if storage is None:
            return None
        import optuna

        found = None
        for each in storage.get_all_studies():
            attributes = each.user_attrs
            if each.study_name == declaration.name:
                _check_same(declaration, attributes)
                found = each
            elif attributes.get(EXPERIMENT) == declaration.experiment and not attributes.get(SUPERSEDED):
                if not rerun:
                    raise _drift(declaration, each.study_name, attributes)
                if create:
                    storage.set_study_user_attr(each._study_id, SUPERSEDED, "--rerun")
        if found is None and not create:
            return None
        study = optuna.create_study(
            study_name=declaration.name,
            storage=storage,
            directions=["minimize" if each == "min" else "maximize" for each in declaration.objectives.values()],
            sampler=make_sampler(declaration.sampler, declaration.space, first=declaration.first),
            pruner=_pruner(declaration.prune),
            load_if_exists=True,
        )
        if create:
            _complete(study, declaration)
        # The order of objectives is no identity, but that of a trial's values in the storage: the first file's holds.
        names = study.metric_names or list(declaration.objectives)
        declaration = replace(declaration, objectives={name: declaration.objectives[name] for name in names})
        return Study(url, declaration, study)


def experiments_of(url: str) -> dict[str, int]:
    """Experiments with a study in a storage, each with the storage's number of the one that is not set aside."""
    with storage_calls(url, "list its studies"), quiet():
        storage = open_storage(url, create=False)
        found = storage.get_all_studies() if storage is not None else []
    kept = [each for each in found if EXPERIMENT in each.user_attrs and not each.user_attrs.get(SUPERSEDED)]
    return {str(each.user_attrs[EXPERIMENT]): each._study_id for each in kept}


def _check_same(declaration: Declaration, attributes: Mapping[str, Any]) -> None:
    ours = {FINGERPRINT: declaration.fingerprint, EXPERIMENT: declaration.experiment}
    if any(attributes.get(key, value) != value for key, value in ours.items()):
        raise BadInput(
            "name",
            seen=declaration.name,
            allowed="a study of this file in the storage",
            hint="Another study has this name: choose another name:, or another run.storage",
        )


def _drift(declaration: Declaration, name: str, attributes: Mapping[str, Any]) -> Drift:
    old = json.loads(attributes.get(IDENTITY, "{}"))
    text = identity.drift_text(identity.differences(old, declaration.identity))
    return Drift(
        f"the study {name} of {declaration.experiment} was made with other settings than this file's:\n  {text}\n"
        "Nothing was changed. Undo the change, or give the file another name:, or run with --rerun\n"
        "(--rerun begins a new study and sets the old one aside; nothing is deleted)."
    )


def _complete(study: optuna.Study, declaration: Declaration) -> None:
    """Everything a new study has besides its name; also after a kill in the middle of making it."""
    own = {
        EXPERIMENT: declaration.experiment,
        FINGERPRINT: declaration.fingerprint,
        IDENTITY: identity.canonical_json(identity.without_legacy(declaration.identity)),
    }
    for key, value in own.items():
        if study.user_attrs.get(key) != value:
            study.set_user_attr(key, value)
    if SUPERSEDED in study.user_attrs:  # asked for once more
        study._storage.set_study_user_attr(study._study_id, SUPERSEDED, None)
    if not study.metric_names:
        study.set_metric_names(list(declaration.objectives))
    if declaration.first and not study.get_trials(deepcopy=False):
        study.enqueue_trial(declaration.first)


def _pruner(rule: PruneRule | None) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if rule is None or rule.name == "front":  # ours: Optuna's pruners know one objective
        return pruners.NopPruner()
    if rule.name == "median":
        return pruners.MedianPruner(n_startup_trials=rule.startup_trials, n_warmup_steps=rule.warmup_steps)
    return pruners.HyperbandPruner(
        min_resource=rule.every_steps, max_resource=rule.total_steps, reduction_factor=rule.reduction
    )
