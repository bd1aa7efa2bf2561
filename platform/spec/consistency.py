"""What one section of a grid file must know of another: duplicates, blocks, stages, laws, overrides.

``problems_in`` runs on a spec whose sections are each well formed. Its groups build on each other: blocks must be whole
before points can be compared, and points before laws can name them; so it stops after the first group with mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from gridlaw.platform.spec.blocks import BlockSection
from gridlaw.platform.spec.forms import duplicates, problems_of
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.problems import Path, Problem, Shown, did_you_mean, listed
from gridlaw.platform.spec.quantities import Budget
from gridlaw.platform.spec.sections import DataSection, LawSection, RopeSection, TrainingSection
from gridlaw.platform.spec.selection import Parts, UnknownPart, matches, selects
from gridlaw.platform.spec.stages import PointReference, StageSection, merged, read_source
from gridlaw.platform.spec.tuning import problems_of_tuning

MAX_POINTS = 100_000


def problems_in(spec: GridSpec) -> list[Problem]:
    """The mistakes between the sections of ``spec``."""
    group: Callable[[GridSpec], Iterator[Problem]]
    for group in (_lists, _stages, _budgets, _points, _overrides, _laws, _tuning):
        found = list(group(spec))
        if found:
            return found
    return []


def _sections(spec: GridSpec) -> list[tuple[Path, BlockSection]]:
    """Every block or stage with its place in the file."""
    if spec.stages is not None:
        return [(("stages", index), stage) for index, stage in enumerate(spec.stages)]
    main: list[tuple[Path, BlockSection]] = [((), spec.main)] if spec.main.has_lists else []
    return main + [(("also", index), block) for index, block in enumerate(spec.also)]


def _lists(spec: GridSpec) -> Iterator[Problem]:
    """Each list without repeats, each block whole, blocks or stages but not both."""
    for path, section in _sections(spec):
        for key in ("architectures", "scales", "budgets", "seeds"):
            values = [getattr(value, "name", value) for value in getattr(section, key) or ()]
            for index, earlier in duplicates(values):
                place = (*path, key, index)
                yield Problem(
                    place,
                    seen=Shown(values[index]),
                    allowed="each value once",
                    hint=f"It stands at position {earlier + 1} of the list already, and here again: remove one",
                )
    yield from _repeated([evaluation.name for evaluation in spec.evaluate], ("evaluate",), "each evaluation once")
    labels = [law.label for law in spec.laws]
    yield from _repeated(labels, ("laws",), "laws of different names", "Give one of them a name:")
    for index, law in enumerate(spec.laws):
        for at, _ in duplicates(law.form):
            yield Problem(("laws", index, "form", at), seen=law.form[at], allowed="each form once")
    if spec.stages is not None:
        for key in ("architectures", "scales", "budgets", "seeds", "also"):
            if getattr(spec, key):
                yield Problem((key,), allowed="either stages: or blocks", hint=f"Move {key} into the stages")
        return
    if not spec.main.has_lists and not spec.also:
        yield Problem(
            ("architectures",), allowed="a value: this key is required", hint="Such as architectures: [full, swa-64]"
        )
        return
    for path, section in _sections(spec):
        if path and not section.has_lists:
            yield Problem(path, seen={}, allowed="a block with at least one of its lists")
        for key in ("architectures", "scales", "budgets"):
            if getattr(section, key) is None and getattr(spec.main, key) is None:
                hint = BlockSection.model_fields[key].description or ""
                yield Problem((*path, key), allowed="a value: this key is required", hint=f"It is a list, {hint}")


def _repeated(values: Sequence[Any], path: Path, allowed: str, hint: str = "") -> Iterator[Problem]:
    for index, earlier in duplicates(values):
        more = hint or f"{values[index]} stands at position {earlier + 1} already: remove one"
        yield Problem((*path, index), seen=Shown(values[index]), allowed=allowed, hint=more)


def _stages(spec: GridSpec) -> Iterator[Problem]:
    """Names that differ, sources among earlier stages, and every stage with all its lists."""
    stages = spec.stages or ()
    yield from _repeated([stage.name for stage in stages], ("stages",), "stages of different names")
    names = [stage.name for stage in stages]
    for index, stage in enumerate(stages):
        path: Path = ("stages", index)
        if stage.evaluated_on is not None and stage.evaluated_on not in names:
            hint = did_you_mean(stage.evaluated_on, names)
            yield Problem((*path, "evaluated_on"), seen=stage.evaluated_on, allowed=listed(names), hint=hint)
        internal = False
        if stage.source is not None:
            try:
                source = read_source(stage.source, names)
            except PydanticCustomError as error:
                context = error.context or {}
                yield Problem((*path, "from"), seen=stage.source, allowed=context["allowed"], hint=context["hint"])
                continue
            internal = source.point is not None and source.experiment is None
            if internal and source.point is not None:
                problem = _source_problem((*path, "from"), spec, index, source.point)
                if problem is not None:
                    yield problem
                    return  # later stages may build on this one
        for key in ("architectures", "budgets") if internal else ("architectures", "scales", "budgets"):
            if getattr(stage, key) is None:
                hint = BlockSection.model_fields[key].description or ""
                yield Problem((*path, key), allowed="a value: this key is required", hint=f"It is a list, {hint}")
                return


def _source_problem(path: Path, spec: GridSpec, index: int, reference: PointReference) -> Problem | None:
    """What hinders stage ``index`` from starting at a point of an earlier stage, if anything does."""
    stage, *earlier = (spec.stages or ())[index], *(spec.stages or ())[:index]
    names = [other.name for other in earlier]
    if reference.stage not in names:
        return Problem(
            path,
            seen=stage.source,
            allowed=f"a point of an earlier stage: {listed(names)}" if names else "a point of an earlier stage",
            hint="Write STAGE/ARCHITECTURE/BUDGET"
            if names
            else "The first stage starts fresh, or from EXPERIMENT:POINT or ./FOLDER",
        )
    base = spec.stage_block(earlier[names.index(reference.stage)])
    architectures = [architecture.name for architecture in base.architectures]
    if reference.architecture not in architectures:
        return Problem(
            path,
            seen=stage.source,
            allowed=f"architectures of stage {base.stage}: {listed(architectures)}",
            hint=did_you_mean(reference.architecture, architectures),
        )
    scales = [scale.name for scale in base.scales]
    if reference.scale is not None and reference.scale not in scales:
        allowed = f"scales of stage {base.stage}: {listed(scales)}"
        return Problem(path, seen=stage.source, allowed=allowed, hint=f"{reference.scale} is none of them")
    if reference.budget not in base.budgets:
        budgets = [budget.label for budget in base.budgets]
        return Problem(path, seen=stage.source, allowed=f"budgets of stage {base.stage}: {listed(budgets)}")
    return None


def _source_scales(spec: GridSpec) -> Iterator[Problem]:
    """Every point that starts from an earlier stage's point: that point must be in the grid."""
    names = {point.name for point in spec.points()}
    for index, stage in enumerate(spec.stages or ()):
        for point in next(block for block in spec.blocks() if block.stage == stage.name).points():
            parent = spec.parent_of(point)
            if parent is not None and parent.name not in names:
                yield Problem(
                    ("stages", index, "from"),
                    seen=stage.source,
                    allowed="a point that the earlier stage has",
                    hint=f"{point.name} would start from {parent.name}, which this grid lacks",
                )
                break


def _budgets(spec: GridSpec) -> Iterator[Problem]:
    """0 only where weights come from somewhere."""
    for path, section in _sections(spec):
        starts_fresh = not isinstance(section, StageSection) or section.source is None
        for index, budget in enumerate(section.budgets or ()):
            assert isinstance(budget, Budget), budget
            if budget.is_zero and starts_fresh:
                yield Problem(
                    (*path, "budgets", index),
                    seen=Shown("0"),
                    allowed="a budget above 0, such as 5N or 2B",
                    hint="0 is for a stage that starts from a trained model with from:",
                )


def _points(spec: GridSpec) -> Iterator[Problem]:
    """Each point once, over all blocks; one meaning for each name; every parent there."""
    sections, blocks = _sections(spec), spec.blocks()
    total = sum(len(b.architectures) * len(b.scales) * len(b.budgets) * len(b.seeds) for b in blocks)
    if total > MAX_POINTS:
        yield Problem((), seen=Shown(f"a grid of {total} points"), allowed=f"at most {MAX_POINTS} points")
        return
    yield from _one_meaning(spec)
    yield from _variants_of_themselves(spec)
    first: dict[str, Path] = {}
    for (path, _), block in zip(sections, blocks, strict=True):
        again = [point.name for point in block.points() if point.name in first]
        if again:
            where = "the main block" if not first[again[0]] else f"also[{first[again[0]][1]}]"
            yield Problem(
                path,
                seen=Shown(f"a block that repeats {len(again)} points of {where}, the first {again[0]}"),
                allowed="each point once",
                hint="Leave out of one block what the other has",
            )
        for point in block.points():
            first.setdefault(point.name, path)
    yield from _source_scales(spec)


def _one_meaning(spec: GridSpec) -> Iterator[Problem]:
    """A name is an architecture, a scale or a stage, and each block means the same by it."""
    kinds: dict[str, str] = {stage.name: "stage" for stage in spec.stages or ()}
    meanings: dict[tuple[str, str], Any] = {}
    for path, section in _sections(spec):
        for key, kind in (("architectures", "architecture"), ("scales", "scale")):
            for index, entry in enumerate(getattr(section, key) or ()):
                place = (*path, key, index)
                if kinds.setdefault(entry.name, kind) != kind:
                    yield Problem(
                        place,
                        seen=Shown(entry.name),
                        allowed=f"a name that is no {kinds[entry.name]}'s",
                        hint="Points are named by architecture, scale and stage: give one of them another name",
                    )
                elif meanings.setdefault((kind, entry.name), entry) != entry:
                    yield Problem(
                        place,
                        seen=entry.given(),
                        allowed=f"one meaning for the {kind} {entry.name}",
                        hint="Another block defines it otherwise: give one of them another name",
                    )


def _variants_of_themselves(spec: GridSpec) -> Iterator[Problem]:
    """``of:`` that leads back to where it started."""
    entries = spec.architectures_by_name()
    for path, section in _sections(spec):
        for index, entry in enumerate(section.architectures or ()):
            base = spec.lineage(entry.name)[0]
            if base.of is not None and base.of in entries:
                yield Problem(
                    (*path, "architectures", index, "of"),
                    seen=entry.of,
                    allowed="an architecture that is no variant of this one",
                    hint=f"{base.of} leads back to itself: give one of them a pattern",
                )
                return


def _overrides(spec: GridSpec) -> Iterator[Problem]:
    """Training and data of stages and architectures, laid over the grid's, must be what the grid's may be."""
    training, data = spec.training.given(), spec.data.given()
    for path, section in _sections(spec):
        stage_training = training
        if isinstance(section, StageSection):
            stage_training = merged(training, section.training)
            yield from _merged_problems(TrainingSection, stage_training, (*path, "training"))
            yield from _merged_problems(DataSection, merged(data, section.data), (*path, "data"))
            yield from _merged_problems(RopeSection, merged(spec.rope.given(), section.rope), (*path, "rope"))
        for index, architecture in enumerate(section.architectures or ()):
            if architecture.training is not None:
                place = (*path, "architectures", index, "training")
                yield from _merged_problems(TrainingSection, merged(stage_training, architecture.training), place)
    scales = {scale.name for block in spec.blocks() for scale in block.scales}
    for scale in spec.run.devices:
        if scale and scale not in scales:
            yield Problem(
                ("run", "devices", scale),
                seen=Shown("no scale of this grid"),
                allowed=listed(scales),
                hint=did_you_mean(scale, scales),
            )
    evaluations = [evaluation.name for evaluation in spec.evaluate]
    for name in spec.run.evaluations:
        if name not in evaluations:
            yield Problem(
                ("run", "evaluations", name),
                seen=Shown("no evaluation of this grid"),
                allowed=listed(evaluations) or "none: evaluate is empty",
                hint=did_you_mean(name, evaluations),
            )


def _merged_problems(model: type[BaseModel], value: dict[str, Any], path: Path) -> list[Problem]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        return problems_of(error, model, value, path)
    return []


def _laws(spec: GridSpec) -> Iterator[Problem]:
    """Laws name points of the grid, and leave some to fit."""
    points = spec.points()
    parts = Parts.of(points)
    for index, law in enumerate(spec.laws):
        path: Path = ("laws", index)
        found = [*_selection_problems(law, path, parts), *_exclude_problems(law, path, parts)]
        yield from found
        if found:
            continue
        for key in ("fit", "verify"):
            selection = getattr(law, key)
            trained = [point for point in points if not point.budget.is_zero]
            if selection is not None and not any(selects(selection, point, parts) for point in trained):
                yield Problem(
                    (*path, key),
                    seen=selection.given(),
                    allowed="a selection that some point of the grid meets",
                    hint="A point must meet every key of a selection; points of budget 0 are in no law",
                )
        for at, pattern in enumerate(law.exclude):
            if not any(matches(pattern, point, parts) for point in points):
                yield Problem((*path, "exclude", at), seen=pattern, allowed="a part of some point's name")
        if "fit" not in spec.roles(law).values():
            yield Problem(path, seen=Shown("a law that fits no point"), allowed="points left after verify and exclude")


def _selection_problems(law: LawSection, path: Path, parts: Parts) -> Iterator[Problem]:
    for key in ("fit", "verify"):
        selection = getattr(law, key)
        if selection is None:
            continue
        for name in ("stages", "architectures", "scales", "budgets", "seeds"):
            for index, value in enumerate(getattr(selection, name) or ()):
                try:
                    parts.words(name, value)
                except UnknownPart as error:
                    place = (*path, key, name, index)
                    yield Problem(place, seen=value, allowed=error.allowed, hint=error.hint)
        for index, text in enumerate(selection.points or ()):
            try:
                parts.pattern(text)
            except UnknownPart as error:
                yield Problem((*path, key, "points", index), seen=text, allowed=error.allowed, hint=error.hint)


def _exclude_problems(law: LawSection, path: Path, parts: Parts) -> Iterator[Problem]:
    for index, text in enumerate(law.exclude):
        try:
            parts.pattern(text)
        except UnknownPart as error:
            yield Problem((*path, "exclude", index), seen=text, allowed=error.allowed, hint=error.hint)


def _tuning(spec: GridSpec) -> Iterator[Problem]:
    """A tune file varies one point, and what belongs to studies alone stands in tune files alone."""
    if spec.tune is None:
        for key in ("storage", "parallel", "max_hours", "max_flops"):
            if getattr(spec.run, key) is not None:
                yield Problem(("run", key), seen=getattr(spec.run, key), allowed="nothing without tune:")
        return
    path, section = _sections(spec)[-1]
    for key in ("laws", "also"):
        if getattr(spec, key):
            yield Problem((key,), seen=Shown("given"), allowed="nothing in a tune file", hint="It varies one point")
            return
    block = spec.blocks()[-1]
    for key in ("architectures", "scales", "budgets", "seeds"):
        values = getattr(block, key)
        if len(values) > 1:
            where = f"the last stage, {block.stage}" if block.stage else "a tune file"
            names = [str(getattr(value, "name", value)) for value in values]
            place = (*path, key) if getattr(section, key) else path
            yield Problem(place, seen=Shown(listed(names)), allowed=f"one of {key} in {where}")
    yield from problems_of_tuning(spec.tune)
