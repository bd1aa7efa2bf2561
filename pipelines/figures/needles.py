"""Heat maps of needle questions, depth over length: one description for files and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gridlaw.pipelines.figures.marks import Panel, layout, text
from gridlaw.pipelines.report import words

MEASURES = {"rank_grid": "ranked first", "generate_grid": "generated"}
"""What a result of ``niah`` calls its maps, and what is right in them."""
Ramp = Sequence[tuple[float, str]]
RIGHT: Ramp = ((0.0, "#b2182b"), (0.5, "#fddbc7"), (1.0, "#2166ac"))
"""From all wrong to all right; told apart by people who do not see red and green."""
FULL: Ramp = ((0.0, "#f7fbff"), (0.5, "#6baed6"), (1.0, "#08306b"))
"""From no full attention to the most; ordered in grey print, too."""


def needle_panel(
    details: Mapping[str, Any],
    grid: str,
    *,
    title: str,
    bar: str,
    ramp: Ramp = RIGHT,
    most: float = 1.0,
    edge: bool = False,
) -> Panel:
    """The map of ``details[grid]``, lengths × depths, with the shallowest needles on top.

    details: of ``niah``, or the needles of ``routing``. bar: what the colours from 0 to ``most`` mean. edge: a line
    between needles outside the answering token's window (above it) and inside, from ``near_grid``.
    """
    lengths, depths = [f"{length:,}" for length in details["lengths"]], [f"{depth:.0%}" for depth in details["depths"]]
    cells = [list(column) for column in zip(*details[grid], strict=True)]  # a row per depth
    heat = {
        "type": "heatmap",
        "x": lengths,
        "y": depths,
        "z": cells,
        "zmin": 0.0,
        "zmax": most,
        "colorscale": [list(stop) for stop in ramp],
        "colorbar": {"title": {"text": text(bar)}, "tickformat": ".0%"},
        "hovertemplate": "%{x} tokens, depth %{y}: %{z:.1%}<extra></extra>",
    }
    x_axis = {"type": "category", "title": {"text": "length (tokens)", "standoff": 6}}
    y_axis = {"type": "category", "autorange": "reversed", "title": {"text": "depth of the needle", "standoff": 6}}
    low, high = (words.percent(chosen([c for row in cells for c in row])) for chosen in (min, max))
    alt = f"{title}: {bar} by length ({lengths[0]} to {lengths[-1]} tokens) and depth, from {low} to {high}."
    drawn = layout(x_axis, y_axis)
    if edge:
        drawn["shapes"] = _edge(details["near_grid"])
    return Panel(title=title, alt=alt, traces=[heat], layout=drawn)


def _edge(near_grid: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Lines above the first depth of each length whose needles are mostly near, in the numbers of the categories."""
    line = {"color": "#c94f00", "width": 2.5}
    first = [next((row for row, near in enumerate(column) if near > 0.5), len(column)) - 0.5 for column in near_grid]
    level = [(index - 0.5, y, index + 0.5, y) for index, y in enumerate(first)]
    steps = [(index + 0.5, y, index + 0.5, after) for index, (y, after) in enumerate(pairwise(first)) if y != after]
    ends = ({"x0": x0, "y0": y0, "x1": x1, "y1": y1} for x0, y0, x1, y1 in (*level, *steps))
    return [{"type": "line", **end, "line": line} for end in ends]
