"""Figures of evaluations, from what an evaluation returns as its details: the needles' depth × length heat maps.

Plotly objects; ``gridlaw.pipelines.laws.figures.save`` writes them as HTML, PNG, SVG or PDF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

MEASURES = {"rank_grid": "ranked first", "generate_grid": "generated"}
SCALE = ((0.0, "#b2182b"), (0.5, "#fddbc7"), (1.0, "#2166ac"))
"""From all wrong to all right; told apart by people who do not see red and green."""


def heat_maps(result: Mapping[str, Any], *, title: str) -> dict[str, go.Figure]:
    """By a name fit for a file: one map per measure of a niah result, depth over length; none for other evaluations.

    result: what ``evaluate`` returns. A cell is the share of its samples that were right, 0 to 1.
    """
    details = result["details"]
    return {
        measure.removesuffix("_grid"): _heat_map(details, measure, f"{title}: needle {word}")
        for measure, word in MEASURES.items()
        if measure in details
    }


def _heat_map(details: Mapping[str, Any], measure: str, title: str) -> go.Figure:
    lengths, depths = [str(length) for length in details["lengths"]], [f"{depth:.0%}" for depth in details["depths"]]
    shares = [list(column) for column in zip(*details[measure], strict=True)]  # lengths × depths → a row per depth
    chance = f", chance {details['chance']:.1%}" if measure == "rank_grid" else ""
    figure = go.Figure(
        go.Heatmap(
            x=lengths, y=depths, z=shares, zmin=0.0, zmax=1.0, colorscale=[list(stop) for stop in SCALE],
            colorbar={"title": {"text": "share right"}},
        )
    )  # fmt: skip
    figure.update_layout(
        title={"text": f"{title} ({details['samples_per_cell']} samples a cell{chance})", "font": {"size": 16}},
        xaxis={"title": {"text": "length (tokens)"}, "type": "category"},
        yaxis={"title": {"text": "depth of the needle"}, "type": "category", "autorange": "reversed"},
    )
    return figure
