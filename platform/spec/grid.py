"""A whole grid file as one frozen object, and what the pipelines ask of it: blocks, points, settings, roles in laws.

Not here: whether names exist (the catalog's and the evaluations' knowledge), token counts, and the ledger.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from gridlaw.platform.spec.blocks import ArchitectureSection, Block, BlockSection, PointId
from gridlaw.platform.spec.forms import Items, Name, SomeItems
from gridlaw.platform.spec.sections import (
    DataSection,
    EvaluationSection,
    LawSection,
    RopeSection,
    RunSection,
    TrainingSection,
)
from gridlaw.platform.spec.selection import Parts, Role, role_of
from gridlaw.platform.spec.stages import Source, StageSection, merged, read_source
from gridlaw.platform.spec.tuning import TuneSection


class GridSpec(BlockSection):
    """A grid file. Made by ``load_grid`` or ``parse_grid``; both check what one section cannot know of another."""

    name: Name = Field(description="the MLflow experiment")
    also: Items[BlockSection] = Field(default=(), description="further blocks")
    stages: SomeItems[StageSection] | None = Field(
        default=None, description="several stages for one model, instead of blocks"
    )
    data: DataSection = Field(description="what is read; at least data: {context: 512}")
    training: TrainingSection = Field(default_factory=TrainingSection, description="how it is trained")
    rope: RopeSection = Field(default_factory=RopeSection, description="rotary positions")
    evaluate: Items[EvaluationSection] = Field(
        default=(EvaluationSection(name="loss", settings={}),), description="what every finished point is asked; [loss]"
    )
    laws: Items[LawSection] = Field(default=(), description="which laws are fitted")
    tune: TuneSection | None = Field(default=None, description="makes it a tune file: the last point's settings vary")
    run: RunSection = Field(default_factory=RunSection, description="where and how; never identity")

    _base_folder: Path = PrivateAttr(default=Path())

    @property
    def base_folder(self) -> Path:
        """Where relative paths of the file start: the folder it lies in."""
        return self._base_folder

    def placed(
        self, *, store: str | None = None, tracking_uri: str | None = None, storage: str | None = None
    ) -> GridSpec:
        """The same grid with another store, tracking server or storage of studies; None leaves the file's."""
        given = {"store": store, "tracking_uri": tracking_uri, "storage": storage}
        changes = {key: value for key, value in given.items() if value is not None}
        return self.model_copy(update={"run": self.run.model_copy(update=changes)}) if changes else self

    @property
    def main(self) -> BlockSection:
        """The top level's own block; all of it None in a grid with stages or with ``also:`` alone."""
        return BlockSection.model_construct(
            architectures=self.architectures, scales=self.scales, budgets=self.budgets, seeds=self.seeds
        )

    def blocks(self) -> list[Block]:
        """All blocks with everything filled in: what an also-block leaves out is the main block's."""
        if self.stages is not None:
            return [self.stage_block(stage) for stage in self.stages]
        main = self.main
        sections = [main, *self.also] if main.has_lists else list(self.also)
        return [_filled(section, over=main, stage=None) for section in sections]

    def points(self) -> list[PointId]:
        """All points, in the file's order."""
        return [point for block in self.blocks() for point in block.points()]

    def stage(self, name: str | None) -> StageSection | None:
        """The stage of that name; None for None."""
        return next((stage for stage in self.stages or () if stage.name == name), None)

    def source_of(self, stage: str | None) -> Source | None:
        """Where the weights of a stage's points come from, or None for a fresh start."""
        section = self.stage(stage)
        if section is None or section.source is None:
            return None
        return read_source(section.source, [other.name for other in self.stages or ()])

    def parent_of(self, point: PointId) -> PointId | None:
        """The point of an earlier stage of this grid that a point starts from, if any."""
        source = self.source_of(point.stage)
        if source is None or source.point is None or source.experiment is not None:
            return None
        reference = source.point
        return PointId(
            stage=reference.stage,
            architecture=reference.architecture,
            scale=reference.scale or point.scale,
            budget=reference.budget,
            seed=point.seed if reference.seed is None else reference.seed,
        )

    def architecture_for(self, name: str) -> str | dict[str, Any]:
        """What the catalog resolves for an architecture of this grid: a name, or a mapping without ``training``.

        Where ``of`` names another entry of this file, that entry's mapping stands in its place.
        """
        base, *variants = self.lineage(name)
        declared = base.declared
        for variant in variants:
            own = variant.declared
            assert isinstance(own, dict), "a variant has its of"
            declared = {**own, "of": declared}
        return declared

    def lineage(self, name: str) -> list[ArchitectureSection]:
        """The entry of that name and those it is a variant of, as far as this file defines them, the base first."""
        entries = self.architectures_by_name()
        found = [entries[name]]
        while (base := entries.get(found[-1].of or "")) is not None and base not in found:
            found.append(base)
        return found[::-1]

    def architectures_by_name(self) -> dict[str, ArchitectureSection]:
        """Every architecture of the grid; a name means the same in all blocks and stages."""
        return {each.name: each for block in self.blocks() for each in block.architectures}

    def scale_for(self, name: str) -> str | dict[str, Any]:
        """What the catalog resolves for a scale of this grid: a name or a mapping."""
        return next(each.declared for block in self.blocks() for each in block.scales if each.name == name)

    def training_for(self, architecture: str | None = None, stage: str | None = None) -> dict[str, Any]:
        """The ``training:`` of an architecture at a stage: the grid's, the stage's, the architecture's; the last wins.

        Only what the file says; ``TrainingSettings.from_dict`` fills in the rest.
        """
        section = self.stage(stage)
        settings = merged(self.training.given(), section.training if section else None)
        if architecture is not None:
            for entry in self.lineage(architecture):
                settings = merged(settings, entry.training)
        return settings

    def data_for(self, stage: str | None = None) -> dict[str, Any]:
        """The ``data:`` of a stage; only what the file says, for ``declare`` to fill in."""
        section = self.stage(stage)
        return merged(self.data.given(), section.data if section else None)

    def rope_for(self, stage: str | None = None) -> dict[str, Any]:
        """The ``rope:`` of a stage; only what the file says, for ``resolve_rope`` to fill in."""
        section = self.stage(stage)
        return merged(self.rope.given(), section.rope if section else None)

    def roles(self, law: LawSection) -> dict[PointId, Role | None]:
        """What a law does with every point. A verified point is never fitted; None: the law leaves it aside.

        A budget of 0 has no place in a law of D: such points are always left aside.
        """
        points = self.points()
        parts = Parts.of(points)
        return {point: None if point.budget.is_zero else role_of(law, point, parts) for point in points}

    def stage_block(self, stage: StageSection) -> Block:
        """A stage's block; with ``from:`` a stage of this file, scales and seeds left out are that stage's."""
        source = self.source_of(stage.name)
        inherited = BlockSection.model_construct()
        if source is not None and source.point is not None and source.experiment is None:
            base = self.stage_block(next(each for each in self.stages or () if each.name == source.point.stage))
            reference = source.point
            inherited = BlockSection.model_construct(
                scales=tuple(scale for scale in base.scales if reference.scale in (None, scale.name)),
                seeds=base.seeds if reference.seed is None else (reference.seed,),
            )
        return _filled(stage, over=inherited, stage=stage.name)


def _filled(section: BlockSection, *, over: BlockSection, stage: str | None) -> Block:
    architectures, scales, budgets = (
        getattr(section, key) or getattr(over, key) for key in ("architectures", "scales", "budgets")
    )
    assert all((architectures, scales, budgets)), "a block without points: parse_grid refuses it"
    return Block(
        stage=stage,
        architectures=architectures,
        scales=scales,
        budgets=budgets,
        seeds=section.seeds or over.seeds or (0,),
    )
