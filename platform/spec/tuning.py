"""``tune:`` of a tune file: the search space, what is sought, and how. Such a file is a grid file with a point to vary.

Settings and metrics are checked for their form only: which there are is the pipelines' knowledge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from gridlaw.platform.spec.forms import Section, Seed, SomeItems, duplicates, keys_of, no_bool, wrong
from gridlaw.platform.spec.problems import Path, Problem, Shown, did_you_mean, listed, shown
from gridlaw.platform.tuning.abilities import refusal
from gridlaw.platform.tuning.space import Parameter, Space, Value

_CONSTRAINT = re.compile(r"\s*(<=|>=)\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*")
CONSTRAINT_ALLOWED = 'a bound such as "<= 0.3" or ">= 0.5"'
SETTING_NAME = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")
_RANGES = ("float", "log", "int")


def read_constraint(text: Any) -> tuple[str, float]:
    """``"<= 0.3"`` → ("<=", 0.3). Raises ``wrong`` for anything else."""
    matched = _CONSTRAINT.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        raise wrong(CONSTRAINT_ALLOWED, "In quotes, since > begins a text in YAML" if isinstance(text, str) else "")
    try:
        return matched[1], float(matched[2])
    except ValueError:
        raise wrong(CONSTRAINT_ALLOWED) from None


def _constraint(text: Any) -> str:
    operator, bound = read_constraint(text)
    return f"{operator} {bound:g}"


def _range(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise wrong("two numbers, low and high: [0.1, 1]")
    for index, each in enumerate(value):
        if isinstance(each, bool) or not isinstance(each, (int, float)):
            raise wrong("a number", at=(index,))
    low, high = value
    if not low < high:
        hint = f"Write [{high}, {low}]" if low > high else "A setting with one value stands above tune:"
        raise wrong("a low end below the high end", hint)
    return (low, high)


def _log(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    low, high = _range(value)
    if low <= 0:
        raise wrong("a range above 0", "0 has no logarithm: take a small low end, or float: for even steps", at=(0,))
    return (low, high)


def _value(value: Any) -> Any:
    if not isinstance(value, (str, int, float, bool)):
        raise wrong("text, a number, true or false")
    return value


def _values(value: Any) -> Any:
    return [value] if isinstance(value, (str, int, float, bool)) else value


Scalar = Annotated[Any, PlainValidator(_value)]
Range = Annotated[Any, PlainValidator(_range)]
OneOrMore = Annotated[SomeItems[Scalar], BeforeValidator(_values)]


class ParameterSection(Section):
    """One entry of ``tune.space``: a range, or a list of values to choose from."""

    float_: Range | None = Field(default=None, alias="float", description="a range of numbers: [0.1, 1]")
    log: Annotated[Any, PlainValidator(_log)] = Field(
        default=False, description="a range in even steps of the logarithm, [1e-4, 1]; or true beside int"
    )
    int_: Range | None = Field(default=None, alias="int", description="a range of whole numbers: [8, 64]")
    choices: SomeItems[Scalar] | None = Field(default=None, description="values to choose from; or the bare list")
    step: Annotated[float, Field(gt=0), BeforeValidator(no_bool)] | None = Field(
        default=None, description="distance of the values of float or int, from the low end; any; 1 for int"
    )
    when: dict[str, OneOrMore] = Field(
        default_factory=dict, description="other settings of the space with the values under which this one is varied"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return {"choices": list(value)}
        if not isinstance(value, dict):
            raise wrong("a range such as {log: [1e-4, 1]}, or a list of choices", "A fixed value stands above tune:")
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> ParameterSection:
        given = [name for name in ("float", "int", "choices") if getattr(self, f"{name}_", None) is not None]
        given += ["choices"] if self.choices is not None else []
        given += ["log"] if isinstance(self.log, tuple) else []
        if len(given) != 1:
            raise wrong(f"one of {', '.join((*_RANGES, 'choices'))}", "Remove what is too much" if given else "")
        if self.step is not None and given[0] not in ("float", "int"):
            raise wrong("no step beside log or choices", at=("step",))
        if self.log is True and given[0] == "choices":
            raise wrong("no log beside choices", at=("log",))
        if self.step is not None and self.log is True:
            raise wrong("no step beside log: true", at=("step",))
        if self.int_ is not None:
            for index, end in enumerate(self.int_):
                if not float(end).is_integer():
                    raise wrong("a whole number", at=("int", index))
            if self.log is True and self.int_[0] < 1:
                raise wrong("a low end of at least 1 beside log: true", at=("int", 0))
            if self.step is not None and not self.step.is_integer():
                raise wrong("a whole number, 1 or more", at=("step",))
        if self.float_ is not None and self.log is True and self.float_[0] <= 0:
            raise wrong("a range above 0 beside log: true", at=("float", 0))
        if self.step is not None and self.step > self._ends()[1] - self._ends()[0]:
            raise wrong("at most the width of the range", at=("step",))
        for index, _ in duplicates([(type(each), each) for each in self.choices or ()]):
            raise wrong("each choice once", at=("choices", index))
        if self.choices is not None and len(self.choices) < 2:
            raise wrong("at least two choices", "A setting with one value stands above tune:", at=("choices",))
        return self

    def _ends(self) -> tuple[float, float]:
        found = self.float_ or self.int_ or self.log
        assert isinstance(found, tuple), "a range has two ends"
        return found

    def parameter(self, name: str) -> Parameter:
        """The parameter of that name."""
        when = {other: tuple(values) for other, values in self.when.items()}
        if self.choices is not None:
            return Parameter(name=name, kind="choice", choices=tuple(self.choices), when=when)
        low, high = self._ends()
        log = self.log is True or isinstance(self.log, tuple)
        if self.int_ is not None:
            step = int(self.step) if self.step is not None else None
            return Parameter(name=name, kind="int", low=int(low), high=int(high), step=step, log=log, when=when)
        return Parameter(
            name=name, kind="float", low=float(low), high=float(high), step=self.step, log=log, when=when
        )  # fmt: skip


def _sampler(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class SamplerSection(Section):
    """``tune.sampler``. What proposes the next trial."""

    name: Literal["tpe", "random", "nsga2", "cmaes", "qmc", "grid"] = Field(default="tpe", description="the sampler")
    seed: Seed = Field(default=0, description="of the sampler's random numbers")
    startup_trials: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="trials at random before it learns (tpe: 10, cmaes: 1)"
    )
    population: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="trials of a generation (nsga2: 50; cmaes: by the number of parameters)"
    )


class PruneSection(Section):
    """``tune.prune``. Which trials are ended early, by metrics of their training."""

    name: Literal["median", "hyperband", "front"] = Field(
        description="median or hyperband for one objective, front for several"
    )
    every_steps: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="optimizer steps between looks; a twentieth of a trial"
    )
    warmup_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.25, description="share of a trial that is never ended (median, front)"
    )
    startup_trials: Annotated[int, Field(ge=1)] = Field(
        default=5, description="finished trials to compare with (median, front)"
    )
    margin: Annotated[float, Field(gt=0)] = Field(
        default=0.25, description="by how much of its range among finished trials each metric must be worse (front)"
    )
    reduction: Annotated[int, Field(ge=2)] = Field(default=3, description="of hyperband")


class TuneSection(Section):
    """``tune:``. Makes a grid file with one point a tune file; all but ``trials`` is the study's identity."""

    space: dict[str, ParameterSection] = Field(description="settings to vary, such as {gamma_base: {log: [1e-4, 0.1]}}")
    objectives: dict[str, Literal["min", "max"]] = Field(
        description="metrics with the direction sought, such as {loss: min}; log:METRIC, too"
    )
    constraints: dict[str, Annotated[str, PlainValidator(_constraint)]] = Field(
        default_factory=dict, description='metrics with a bound, such as {full_ratio: "<= 0.3"}'
    )
    sampler: Annotated[SamplerSection, BeforeValidator(_sampler)] = Field(
        default_factory=SamplerSection, description="what proposes trials: a name, or a mapping"
    )
    trials: Annotated[int, Field(ge=1)] = Field(description="how many; more continue a study")
    first: dict[str, Scalar] = Field(default_factory=dict, description="settings of the first trial")
    prune: PruneSection | None = Field(default=None, description="end hopeless trials early; none")

    @model_validator(mode="after")
    def _something(self) -> TuneSection:
        for key, hint in (("space", "{gamma_base: {log: [1e-4, 0.1]}}"), ("objectives", "{loss: min}")):
            if not getattr(self, key):
                raise wrong("at least one entry", f"Such as {key}: {hint}", at=(key,))
        for name in self.space:
            if not SETTING_NAME.fullmatch(name):
                raise wrong("a setting's name, such as gamma_base or training.optimizer.lr", at=("space", name))
        return self

    def parameters(self) -> list[Parameter]:
        """The space's parameters under the file's names, in the file's order."""
        return [section.parameter(name) for name, section in self.space.items()]


def problems_of_tuning(tune: TuneSection) -> Iterator[Problem]:
    """What the parts of ``tune:`` must know of each other; stops at the first group with mistakes."""
    parameters = {each.name: each for each in tune.parameters()}
    found = [*_conditions(parameters)]
    if found:
        yield from found
        return
    try:
        space = Space.of(parameters.values())
    except ValueError as error:
        names = str(error)
        yield Problem(("tune", "space"), seen=Shown(f"conditions in a circle: {names}"), allowed="conditions that end")
        return
    yield from _first(tune.first, space)
    yield from _sampler_problems(tune, space)
    yield from _pruning(tune)


def _conditions(parameters: Mapping[str, Parameter]) -> Iterator[Problem]:
    for name, parameter in parameters.items():
        for other, values in parameter.when.items():
            place: Path = ("tune", "space", name, "when", other)
            if other not in parameters or other == name:
                others = [each for each in parameters if each != name]
                yield Problem(
                    place, seen=Shown("no other setting of the space"),
                    allowed=listed(others) or "another setting of the space", hint=did_you_mean(other, others),
                )  # fmt: skip
                continue
            for value in values:
                if not parameters[other].contains(value):
                    yield Problem(place, seen=value, allowed=parameters[other].words())


def _first(first: Mapping[str, Value], space: Space) -> Iterator[Problem]:
    for name, value in first.items():
        if name not in space.names:
            yield Problem(
                ("tune", "first", name), seen=Shown("no setting of the space"), allowed=listed(space.names),
                hint=did_you_mean(name, space.names) or "A fixed setting stands above tune:",
            )  # fmt: skip
        elif not space[name].contains(value):
            yield Problem(("tune", "first", name), seen=value, allowed=space[name].words())


def _sampler_problems(tune: TuneSection, space: Space) -> Iterator[Problem]:
    from gridlaw.platform.tuning.abilities import SAMPLERS

    name, given = tune.sampler.name, tune.sampler.given()
    for key in keys_of(SamplerSection):
        if key in given and key not in ("name", "seed", *SAMPLERS[name].settings):
            able = [sampler for sampler, ability in SAMPLERS.items() if key in ability.settings]
            yield Problem(
                ("tune", "sampler", key), seen=given[key], allowed=f"nothing with the sampler {name}",
                hint=f"It is a setting of {listed(able)}",
            )  # fmt: skip
    told = refusal(name, num_objectives=len(tune.objectives), num_constraints=len(tune.constraints), space=space)
    if told is not None:
        about, allowed, hint = told
        values = {"objectives": list(tune.objectives), "constraints": list(tune.constraints)}
        seen = shown(values[about]) if about in values else Shown(f"searched by {name}")
        yield Problem(("tune", *about.split(".", 1)), seen=seen, allowed=allowed, hint=hint)


def _pruning(tune: TuneSection) -> Iterator[Problem]:
    if tune.prune is None:
        return
    several = len(tune.objectives) > 1
    if (tune.prune.name == "front") != several:
        yield Problem(
            ("tune", "prune", "name"), seen=tune.prune.name,
            allowed="front, with several objectives" if several else "median or hyperband, with one objective",
        )  # fmt: skip
    own = {"median": ("warmup_fraction", "startup_trials"), "hyperband": ("reduction",)}
    own["front"] = ("warmup_fraction", "startup_trials", "margin")
    for key in tune.prune.given():
        if key not in ("name", "every_steps", *own[tune.prune.name]):
            yield Problem(("tune", "prune", key), seen=Shown("given"), allowed=f"no {key} with {tune.prune.name}")
