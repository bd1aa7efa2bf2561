"""Which points a law fits, verifies and leaves out, by parts of points' names (``n3/20N``, ``S1/100N``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from gridlaw.platform.spec.blocks import PointId
from gridlaw.platform.spec.problems import listed, nearest
from gridlaw.platform.spec.quantities import BadQuantity, parse_budget
from gridlaw.platform.spec.sections import LawSection, SelectionSection

Role = Literal["fit", "verify", "exclude"]


class UnknownPart(ValueError):
    """A part of a name that no point of the grid has: ``allowed`` and ``hint`` of the message to come."""

    def __init__(self, allowed: str, hint: str = "") -> None:
        super().__init__(allowed)
        self.allowed, self.hint = allowed, hint


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the points of a grid are named by."""

    stages: tuple[str, ...]
    architectures: tuple[str, ...]
    scales: tuple[str, ...]
    budgets: tuple[str, ...]
    seeds: tuple[str, ...]

    @staticmethod
    def of(points: Iterable[PointId]) -> Parts:
        """The parts of ``points``, each once, in order."""
        every = list(points)
        return Parts(
            stages=tuple(dict.fromkeys(point.stage for point in every if point.stage is not None)),
            architectures=tuple(dict.fromkeys(point.architecture for point in every)),
            scales=tuple(dict.fromkeys(point.scale for point in every)),
            budgets=tuple(dict.fromkeys(point.budget.label for point in every)),
            seeds=tuple(dict.fromkeys(f"seed{point.seed}" for point in every)),
        )

    def words(self, key: str, value: Any) -> str:
        """A value of a selection's ``key`` as the part it means; UnknownPart if no point has it."""
        word = str(value)
        if key == "budgets":
            word = _budget_label(value) or word
        elif key == "seeds" and isinstance(value, int) and not isinstance(value, bool):
            word = f"seed{value}"
        known: tuple[str, ...] = getattr(self, key)
        if word not in known:
            shown = [name.removeprefix("seed") for name in known] if key == "seeds" else known
            raise UnknownPart(f"{key} of this grid: {listed(shown)}", _near(word, known))
        return word

    def pattern(self, text: str) -> frozenset[tuple[str, str]]:
        """``n3/20N`` → {("scales", "n3"), ("budgets", "20N")}; UnknownPart for a part that no point has."""
        found: dict[str, str] = {}
        for part in text.split("/"):
            key, word = self._kind(part)
            if key in found:
                raise UnknownPart("parts of one point's name", f"{found[key]} and {word} are both {key}")
            found[key] = word
        return frozenset(found.items())

    def _kind(self, part: str) -> tuple[str, str]:
        for key in ("architectures", "scales", "stages", "budgets", "seeds"):
            if part in getattr(self, key):
                return key, part
        label = _budget_label(part)
        if label in self.budgets:
            return "budgets", str(label)
        every = (*self.architectures, *self.scales, *self.stages, *self.budgets, *self.seeds)
        raise UnknownPart(
            f"parts of this grid's points: {listed(every)}", _near(part, every) or f"{part!r} is no part of any"
        )


def _budget_label(value: Any) -> str | None:
    try:
        return parse_budget(value).label
    except BadQuantity:
        return None


def _near(word: str, known: Iterable[str]) -> str:
    found = nearest(word, known)
    return f"Did you mean {found}?" if found else ""


def _parts_of(point: PointId) -> frozenset[tuple[str, str]]:
    keys = ("architectures", "scales", "budgets", "seeds")
    return frozenset(zip(keys if point.stage is None else ("stages", *keys), point.parts, strict=True))


def selects(selection: SelectionSection, point: PointId, parts: Parts) -> bool:
    """True if every key that the selection has names the point."""
    mine = _parts_of(point)
    for key in ("stages", "architectures", "scales", "budgets", "seeds"):
        wanted = getattr(selection, key)
        if wanted is not None and not mine & {(key, parts.words(key, value)) for value in wanted}:
            return False
    return selection.points is None or any(parts.pattern(text) <= mine for text in selection.points)


def matches(pattern: str, point: PointId, parts: Parts) -> bool:
    """True if the point has all parts of ``pattern``."""
    return parts.pattern(pattern) <= _parts_of(point)


def role_of(law: LawSection, point: PointId, parts: Parts) -> Role | None:
    """``exclude`` before ``verify`` before ``fit``; None for a point that the law's selections leave aside."""
    if any(matches(pattern, point, parts) for pattern in law.exclude):
        return "exclude"
    if law.verify is not None and selects(law.verify, point, parts):
        return "verify"
    if law.fit is None or selects(law.fit, point, parts):
        return "fit"
    return None
