"""Figures of evaluations, from what an evaluation returns as its details: needles, and where attention is full.

Plotly objects; ``gridlaw.pipelines.laws.figures.save`` writes them as HTML, PNG, SVG or PDF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from gridlaw.pipelines.figures.needles import MEASURES, needle_panel
from gridlaw.pipelines.laws.figures import as_figure


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
    chance = f", chance {details['chance']:.1%}" if measure == "rank_grid" else ""
    panel = needle_panel(details, measure, title=title, bar="share right")
    return as_figure(panel, f"{title} ({details['samples_per_cell']} samples a cell{chance})", legend=False)
