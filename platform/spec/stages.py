"""``stages:`` of a grid file: where a stage's weights come from, and settings laid over the grid's.

``from:`` names a point of an earlier stage by parts of its name (``pretrain/full/100N``: at each scale and seed of this
stage, the point with that scale and seed), a point of another experiment (``paper-grid:full/S1/100N``), or a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from gridlaw.platform.spec.blocks import BlockSection
from gridlaw.platform.spec.forms import PartName, Settings, wrong
from gridlaw.platform.spec.quantities import BadQuantity, Budget, parse_budget

_DEFAULT_NAMES = {"optimizer": "muon", "schedule": "wsd"}
_SEED = re.compile(r"seed(0|[1-9][0-9]*)")
_FOLDER = re.compile(r"[./~]|[a-z0-9+]+://")
FROM_ALLOWED = "a point of an earlier stage (pretrain/full/100N), EXPERIMENT:POINT, or a folder (./weights)"


class StageSection(BlockSection):
    """One entry of ``stages:``. Its name enters points' names and no identity."""

    name: PartName = Field(description="the stage's name, the first part of its points' names")
    source: str | None = Field(
        default=None, alias="from", min_length=1, description="where the weights come from; left out: a fresh start"
    )
    training: Settings | None = Field(default=None, description="training settings over the grid's")
    data: Settings | None = Field(default=None, description="data settings over the grid's")
    rope: Settings | None = Field(default=None, description="rotary positions over the grid's")
    evaluated_on: PartName | None = Field(
        default=None, description="the stage whose held-out text its points are measured on; left out: its own"
    )


@dataclass(frozen=True, kw_only=True)
class PointReference:
    """A point named by parts: what is left open is None."""

    stage: str | None = None
    architecture: str
    scale: str | None = None
    budget: Budget
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a stage's weights come from. Exactly one of ``point`` and ``folder`` is set.

    experiment: the ledger's experiment that holds the point, or None for this grid's own.
    """

    point: PointReference | None = None
    experiment: str | None = None
    folder: str | None = None


def read_source(text: str, stage_names: list[str]) -> Source:
    """``from:`` in parts. stage_names: stages of this file. Raises ``wrong`` for what it cannot be."""
    if _FOLDER.match(text):
        return Source(folder=text)
    experiment, colon, name = text.rpartition(":")
    point = read_point(name, None if colon else stage_names)
    if point is None or (colon and not experiment):
        raise wrong(FROM_ALLOWED, _source_hint(text))
    return Source(point=point, experiment=experiment if colon else None)


def _source_hint(text: str) -> str:
    if "/" not in text:
        return f"For a folder write ./{text}" if not re.search(r":", text) else "A point's name ends with its budget"
    return "A point's name has a budget, such as 100N"


def read_point(name: str, stage_names: list[str] | None) -> PointReference | None:
    """``[STAGE/]ARCHITECTURE[/SCALE]/BUDGET[/seedK]`` in parts, or None if it is none.

    stage_names: what may be a stage; None for another experiment, where two parts before the budget are architecture
    and scale, and three are stage, architecture and scale.
    """
    parts = name.split("/")
    seed: int | None = None
    if parts and (match := _SEED.fullmatch(parts[-1])):
        seed = int(match[1])
        parts = parts[:-1]
    if len(parts) < 2 or not all(parts) or not parts[-1][0].isdigit():
        return None
    try:
        budget = parse_budget(parts[-1])
    except BadQuantity:
        return None
    *before, _ = parts
    has_stage = len(before) == 3 or (len(before) == 2 and before[0] in (stage_names or ()))
    stage = before.pop(0) if has_stage else None
    if not 1 <= len(before) <= 2:
        return None
    scale = before[1] if len(before) == 2 else None
    return PointReference(stage=stage, architecture=before[0], scale=scale, budget=budget, seed=seed)


def merged(base: dict[str, Any], over: dict[str, Any] | None) -> dict[str, Any]:
    """``over`` laid over ``base``, mapping by mapping; lists and values are replaced whole.

    A mapping that names another optimizer or schedule than the one below replaces it: its settings are the other's.
    """
    result = dict(base)
    for key, value in (over or {}).items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            renamed = "name" in value and value["name"] != below.get("name", _DEFAULT_NAMES.get(key))
            result[key] = dict(value) if renamed else merged(below, value)
        else:
            result[key] = value
    return result
