"""The part of a grid file that says which points there are: architectures × scales × budgets × seeds, in blocks.

Names are checked for their form only; which architectures and scales exist is the pipelines' knowledge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from gridlaw.platform.spec.forms import (
    BudgetValue,
    PartName,
    Section,
    Seed,
    Settings,
    SomeItems,
    check_plain,
    keys_of,
    wrong,
)
from gridlaw.platform.spec.problems import nearest
from gridlaw.platform.spec.quantities import Budget


class _Entry(Section):
    """A name, or a mapping with a name and what the catalog knows of."""

    model_config = ConfigDict(extra="allow")

    name: PartName = Field(description="the name")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict):
            raise wrong("a name, or a mapping with a name", _quote_hint(value))
        check_plain(value, ())
        for key in value:
            known = keys_of(cls)
            meant = nearest(key, known) if key not in known else None
            if meant is not None and meant not in value:
                raise wrong(
                    f"the keys {', '.join(known)} and the settings of a mixer", f"Did you mean {meant}?", at=(key,)
                )
        return value


def _quote_hint(value: Any) -> str:
    return f'Put it in quotes if it is a name: "{value}"' if isinstance(value, (int, float)) else ""


class ArchitectureSection(_Entry):
    """One architecture: ``full``, ``{name, pattern: […]}`` or ``{name, of: full, …}``."""

    pattern: SomeItems[Any] | None = Field(default=None, description="layers in turn: names of mixers, or mappings")
    of: PartName | None = Field(default=None, description="the architecture that this one is a variant of")
    training: Settings | None = Field(default=None, description="training settings of its own")

    @model_validator(mode="after")
    def _one_way(self) -> ArchitectureSection:
        if self.pattern is not None and self.of is not None:
            raise wrong("either pattern or of", "Remove one of the two")
        for index, layer in enumerate(self.pattern or ()):
            if not (isinstance(layer, str) and layer) and not (isinstance(layer, dict) and layer):
                raise wrong("a name of a mixer, or a mapping", at=("pattern", index))
        return self

    @property
    def declared(self) -> str | dict[str, Any]:
        """What the catalog resolves: the bare name, or the mapping without ``training``."""
        given = self.given()
        given.pop("training", None)
        return self.name if set(given) == {"name"} else given


class ScaleSection(_Entry):
    """One scale: ``S1``, or ``{name, layers, d_model, …}``. Trunk identity but for the name."""

    @property
    def declared(self) -> str | dict[str, Any]:
        """What the catalog resolves: the bare name or the mapping."""
        given = self.given()
        return self.name if set(given) == {"name"} else given


class BlockSection(Section):
    """One block of points. What an ``also:`` block leaves out is the main block's."""

    architectures: SomeItems[ArchitectureSection] | None = Field(default=None, description="such as [full, swa-128]")
    scales: SomeItems[ScaleSection] | None = Field(default=None, description="such as [n1, n2]")
    budgets: SomeItems[BudgetValue] | None = Field(default=None, description="such as [5N, 10N]")
    seeds: SomeItems[Seed] | None = Field(default=None, description="such as [0, 1]; [0]")

    @property
    def has_lists(self) -> bool:
        """True unless all four lists are left out."""
        return any(value is not None for value in (self.architectures, self.scales, self.budgets, self.seeds))


@dataclass(frozen=True, kw_only=True)
class PointId:
    """One point of the grid. ``stage`` is None in a grid without ``stages:``."""

    stage: str | None
    architecture: str
    scale: str
    budget: Budget
    seed: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the name, the stage's first if there is one."""
        own = (self.architecture, self.scale, self.budget.label, f"seed{self.seed}")
        return own if self.stage is None else (self.stage, *own)

    @property
    def name(self) -> str:
        """``swa-128/S2/300N/seed0``, prefixed by the stage's name in a grid with stages."""
        return "/".join(self.parts)

    @property
    def trunk_name(self) -> str:
        """The name without the budget: the run of one (stage, architecture, scale, seed)."""
        return "/".join(part for part in self.parts if part != self.budget.label)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block with everything filled in: the product of its lists is its points."""

    stage: str | None
    architectures: tuple[ArchitectureSection, ...]
    scales: tuple[ScaleSection, ...]
    budgets: tuple[Budget, ...]
    seeds: tuple[int, ...]

    def points(self) -> list[PointId]:
        """Its points: by architecture, then scale, seed and budget, as the file lists them."""
        return [
            PointId(stage=self.stage, architecture=architecture.name, scale=scale.name, budget=budget, seed=seed)
            for architecture in self.architectures
            for scale in self.scales
            for seed in self.seeds
            for budget in self.budgets
        ]
