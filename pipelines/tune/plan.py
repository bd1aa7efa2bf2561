"""From a tune file to a study's plan: the point it varies, what it seeks, and the plan of any of its trials.

Torch-free; starts nothing. Every end of every range is planned once, so that a setting that no model can have is said
before a study is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gridlaw.modules.errors import BadSetting
from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.pipelines.plan import GridPlan, PointPlan, TrunkPlan, make_plan
from gridlaw.pipelines.tune.metrics import DURING_TRAINING, bare, check_metrics, known_metrics
from gridlaw.pipelines.tune.settings import Setting, Settings, with_settings
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.blocks import PointId
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import grid_from_mapping
from gridlaw.platform.spec.tuning import PruneSection, TuneSection
from gridlaw.platform.tuning.samplers import SamplerChoice
from gridlaw.platform.tuning.space import Parameter, Space, Value
from gridlaw.platform.tuning.study import Declaration, PruneRule

_LOOKS = 20


@dataclass(frozen=True, kw_only=True)
class TrialId(PointId):
    """A trial's point: in its file there is one point that varies, so its number names it."""

    trial: int

    @property
    def name(self) -> str:
        return trial_name(self.trial)

    @property
    def trunk_name(self) -> str:
        return self.name


def trial_name(number: int) -> str:
    """Name of a trial's run in the ledger."""
    return f"trial{number}"


@dataclass(frozen=True, kw_only=True)
class TunePlan:
    """A tune file's plan. base: the file without ``tune:``, the last point with its own settings; its other points are
    trained as in a grid. settings: by parameter's name.
    """

    spec: GridSpec
    base: GridPlan
    settings: Mapping[str, Setting]
    declaration: Declaration

    @property
    def tune(self) -> TuneSection:
        assert self.spec.tune is not None, "a tune file has tune:"
        return self.spec.tune

    @property
    def varied(self) -> PointPlan:
        """The point whose settings vary, with those of the file; it is no trial itself."""
        return self.base.trunks[-1].points[-1]

    @cached_property
    def shared(self) -> GridPlan:
        """What is trained once for all trials: the file's earlier stages."""
        return replace(self.base, trunks=self.base.trunks[:-1])

    @property
    def num_trials(self) -> int:
        """How many trials there are to be; a grid sampler has no more than its combinations."""
        most = self.declaration.most_trials
        return self.tune.trials if most is None else min(self.tune.trials, most)

    def trial(self, number: int, params: Mapping[str, Value]) -> TrunkPlan:
        """The plan of one trial: a trunk of its own, which its one point does not branch from."""
        values = {self.settings[name]: value for name, value in params.items()}
        trunk = _last_trunk(self.spec, values, f"trial {number}")
        base = self.base.trunks[-1]
        (point,) = trunk.points
        own = TrialId(**{key: getattr(point.id, key) for key in vars(point.id)} | {"trial": number})
        own = replace(own, architecture=base.architecture)
        # One task trains a trial from its first step to its last: its metrics are one row of steps.
        point = replace(point, id=own, trunk=own.name, trunk_steps=0)
        return replace(trunk, name=own.name, architecture=base.architecture, points=(point,))

    def metric_names(self) -> list[str]:
        """Of objectives and constraints, each once."""
        return list(dict.fromkeys([*self.tune.objectives, *self.tune.constraints]))


def make_tune_plan(spec: GridSpec) -> TunePlan:
    """Resolve a tune file. ``BadInput`` for everything that cannot be tuned."""
    tune = spec.tune
    if tune is None:
        raise BadInput("tune", allowed="a tune file: a grid file with one point and tune:", hint="Or: gridlaw run FILE")
    base = make_plan(grid_from_mapping(with_settings(spec, {}), source="the file", base_folder=spec.base_folder))
    settings, space = _space(spec, tune)
    bounds = check_metrics(tune.objectives, tune.constraints, base.evaluations)
    first = _first(spec, tune, space, settings, base)
    declaration = Declaration(
        experiment=spec.name,
        space=space,
        objectives=dict(tune.objectives),
        constraints=bounds,
        sampler=SamplerChoice(**tune.sampler.model_dump()),
        first=first,
        prune=_prune_rule(tune, base, settings),
        values=_identity(tune, base),
    )
    plan = TunePlan(spec=spec, base=base, settings=settings, declaration=declaration)
    _check_ends(plan)
    return plan


def _space(spec: GridSpec, tune: TuneSection) -> tuple[dict[str, Setting], Space]:
    """Parameters under the names that the study has, whatever spelling the file has."""
    known = Settings(spec)
    resolved = {name: known.resolve(name, f"tune.space.{name}") for name in tune.space}
    names = {name: known.short(setting) for name, setting in resolved.items()}
    for name, short in names.items():
        again = [other for other, its in names.items() if its == short and other != name]
        if again:
            raise BadInput(f"tune.space.{name}", allowed="each setting once", hint=f"{again[0]} is the same setting")
    parameters = [
        replace(each, name=names[each.name], when={names[other]: values for other, values in each.when.items()})
        for each in tune.parameters()
    ]
    return {names[name]: setting for name, setting in resolved.items()}, Space.of(parameters)


def _first(
    spec: GridSpec, tune: TuneSection, space: Space, settings: Mapping[str, Setting], base: GridPlan
) -> dict[str, Value]:
    """All parameters of the first trial: what ``first:`` leaves out are the file's own settings."""
    if not tune.first:
        return {}
    known = Settings(spec)
    given = {known.short(known.resolve(name, f"tune.first.{name}")): value for name, value in tune.first.items()}
    values: dict[str, Value] = {}
    for each in space:
        if not space.is_active(each, values):
            if each.name in given:
                allowed = "nothing: its when: is not met"
                raise BadInput(f"tune.first.{each.name}", seen=given[each.name], allowed=allowed)
            continue
        value = given.get(each.name, _own_value(settings[each.name], base.trunks[-1]))
        if value is None or not each.contains(value):
            raise BadInput(
                f"tune.first.{each.name}",
                allowed=each.words(),
                hint="" if value is None else f"Left out it is the file's own value, {value}, which is none of them",
            )
        values[each.name] = each.cast(value)
    return values


def _own_value(setting: Setting, trunk: TrunkPlan) -> Any:
    """A setting's value in the file, defaults included; None if layers differ in it."""
    kind, *path = setting.path
    if kind == "architecture":
        found = {repr(layer[path[0]]): layer[path[0]] for layer in trunk.model["layers"] if path[0] in layer}
        return next(iter(found.values())) if len(found) == 1 else None
    value: Any = {"training": trunk.training, "rope": {"base": trunk.model["rope_base"]}}[kind]
    for part in path:
        value = value[part]
    return value


def _prune_rule(tune: TuneSection, base: GridPlan, settings: Mapping[str, Setting]) -> PruneRule | None:
    section: PruneSection | None = tune.prune
    if section is None:
        return None
    total = base.trunks[-1].points[-1].total_steps
    changes_steps = [name for name, setting in settings.items() if setting.path == ("training", "batch_tokens")]
    if changes_steps or total == 0:
        raise BadInput(
            "tune.prune", seen=section.name, allowed="nothing where trials have no common steps",
            hint="Remove it, or the setting batch_tokens" if changes_steps else "These trials train nothing",
        )  # fmt: skip
    unknown = [name for name in tune.objectives if bare(name) not in DURING_TRAINING]
    if unknown:
        able = ", ".join(name for name in DURING_TRAINING if name in known_metrics(base.evaluations))
        raise BadInput(
            "tune.prune", seen=section.name, allowed=f"nothing with the objective {unknown[0]}",
            hint=f"Training reports nothing of it; it does of {able}",
        )  # fmt: skip
    if (base.spec.run.log_every_steps or 1) != 1:  # means over fewer steps would prune by other values
        raise BadInput(
            "run.log_every_steps", seen=base.spec.run.log_every_steps, allowed="1 with tune.prune",
            hint="Rules that prune look at every step; remove it, or tune.prune",
        )  # fmt: skip
    every = section.every_steps or max(1, total // _LOOKS)
    if every >= total:
        raise BadInput("tune.prune.every_steps", seen=every, allowed=f"below the {total} steps of a trial")
    return PruneRule(
        name=section.name,
        every_steps=every,
        total_steps=total,
        warmup_steps=round(section.warmup_fraction * total),
        startup_trials=section.startup_trials,
        margin=section.margin,
        reduction=section.reduction,
    )


def _identity(tune: TuneSection, base: GridPlan) -> dict[str, Any]:
    """What is trained and how it is measured: the varied point, and the evaluations whose metrics count."""
    wanted = {bare(name) for name in (*tune.objectives, *tune.constraints)}
    point = base.trunks[-1].points[-1]
    evaluations = {
        each.name: {key: value for key, value in base.evaluation_identity(point, each).items() if key != "point"}
        for each in counting(base.evaluations, wanted)
    }
    return {"point": point.identity, "evaluations": evaluations}


def counting(evaluations: tuple[Evaluation, ...], metrics: set[str]) -> list[Evaluation]:
    """The evaluations that measure one of ``metrics``."""
    return [each for each in evaluations if metrics & set(each.kind.metrics)]


def _last_trunk(spec: GridSpec, values: Mapping[Setting, Value], source: str) -> TrunkPlan:
    mapping = with_settings(spec, values)
    return make_plan(grid_from_mapping(mapping, source=source, base_folder=spec.base_folder)).trunks[-1]


def _check_ends(plan: TunePlan) -> None:
    """Plan a trial at both ends of every range and with every choice, all else as the file has it."""
    space = plan.declaration.space
    for parameter in space:
        for end in parameter.ends():
            try:
                plan.trial(0, _conditions(space, parameter) | {parameter.name: end})
            except (BadInput, BadSetting) as error:
                raise BadInput(
                    f"tune.space.{parameter.name}", seen=end, allowed="values that a model can be planned with",
                    hint=str(error),
                ) from error  # fmt: skip


def _conditions(space: Space, parameter: Parameter) -> dict[str, Value]:
    """What a parameter's condition asks of others, and their conditions of others again."""
    values: dict[str, Value] = {}
    for name, wanted in parameter.when.items():
        values |= _conditions(space, space[name]) | {name: wanted[0]}
    return values
