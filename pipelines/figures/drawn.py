"""What figures of laws are drawn from: a fitted law, the points it was fitted to, and those it was held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gridlaw.pipelines.figures.colours import Style
from gridlaw.pipelines.figures.marks import band, line
from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.laws.forms import Array
from gridlaw.pipelines.laws.verify import Verification
from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.data import finite

STEPS = 48
TOKENS_TITLE = "training tokens D"


@dataclass(frozen=True, kw_only=True)
class DrawnPoint:
    """A point as figures show it. value, predicted, low, high: in the law's target; low and high: of a new measurement.

    role: fitted (a filled mark), held out or excluded (open marks), or measured (filled; there is no law).
    """

    num_params: float
    tokens: float
    value: float
    scale: str
    role: str = "fitted"
    name: str = ""
    predicted: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def filled(self) -> bool:
        return self.role in ("fitted", "measured")

    def label(self, *more: str) -> str:
        """Lines shown on hovering."""
        size = f"D = {words.count(self.tokens)} tokens, N = {words.count(self.num_params)}"
        return "\n".join([f"{self.name or self.scale} ({self.role})", size, *more])


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnLaw:
    """A law of one architecture and its points; without a law the points alone are shown."""

    name: str
    law: LawFit | None
    points: tuple[DrawnPoint, ...]

    @staticmethod
    def of(name: str, law: LawFit, held_out: Verification | None = None) -> DrawnLaw:
        """From a fit and what it was held against; scales are named by their N."""
        fitted = law.points
        predicted = np.asarray(law.predict(fitted.num_params, fitted.num_tokens))
        nothing = np.full(len(fitted), np.nan)
        sets = [("fitted", fitted.num_params, fitted.num_tokens, fitted.values, predicted, nothing, nothing)]
        if held_out is not None:
            out = held_out
            sets.append(
                ("held out", out.num_params, out.num_tokens, out.values, out.predicted, out.low, out.high)
            )  # fmt: skip
        points = tuple(
            DrawnPoint(
                num_params=n, tokens=d, value=y, scale=size_name(n), role=role, predicted=p, low=low, high=high
            )
            for role, *columns in sets
            for n, d, y, p, low, high in zip(*(column.tolist() for column in columns), strict=True)
        )  # fmt: skip
        return DrawnLaw(name=name, law=law, points=points)

    def predict(self, num_params: float, tokens: float) -> float | None:
        """The law there, if there is one and it gives a number."""
        return finite(self.law.predict(num_params, tokens)) if self.law is not None else None


def size_name(num_params: float) -> str:
    """A scale that has no name of its own."""
    return f"N = {words.count(num_params)}"


def style_of(laws: Sequence[DrawnLaw]) -> Style:
    """Colours and symbols for laws that stand alone: scales from small to large, architectures in order."""
    sizes = {point.scale: point.num_params for law in laws for point in law.points}
    return Style(scales=tuple(sorted(sizes, key=lambda name: sizes[name])), architectures=tuple(x.name for x in laws))


def with_exponents(laws: Iterable[DrawnLaw]) -> list[tuple[DrawnLaw, LawFit]]:
    """Laws with a term in N and one in D."""
    return [(each, each.law) for each in laws if each.law is not None and {"alpha", "beta"} <= set(each.law.parameters)]


def token_grid(tokens: Sequence[float], reach: float) -> Array:
    return np.geomspace(min(tokens) / 1.3, max(tokens) * reach, STEPS)


def curve(
    law: LawFit, num_params: float, tokens: Sequence[float], colour: str, key: str, reach: float
) -> list[dict[str, Any]]:
    grid = token_grid(tokens, reach)
    values = np.asarray(law.predict(num_params, grid))
    if not np.isfinite(values).all():  # an exponent that ran away comes with a coefficient beyond all floats
        return []
    traces = []
    if len(law.draws):
        low, high = law.predict_interval(num_params, grid, kind="curve")
        if np.isfinite(low).all() and np.isfinite(high).all():
            traces.append(band(grid.tolist(), low.tolist(), high.tolist(), colour, key))
    traces.append(line(grid.tolist(), values.tolist(), colour, key))
    return traces


def value_label(point: DrawnPoint, label: str) -> str:
    lines = [f"{label} = {words.significant(point.value)}"]
    if finite(point.predicted) is not None:
        lines.append(f"law: {words.significant(point.predicted)}")
    return point.label(*lines)
