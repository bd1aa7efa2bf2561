"""Figures of evaluations, from what an evaluation returns as its details: needles, and where attention is full.

Plotly objects; ``gridlaw.pipelines.laws.figures.save`` writes them as HTML, PNG, SVG or PDF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from gridlaw.pipelines.figures import routing
from gridlaw.pipelines.figures.needles import MEASURES, needle_panel
from gridlaw.pipelines.laws.figures import as_figure

NEEDLES = "full attention while answering (below the line: needle in the window)"


def figures(
    result: Mapping[str, Any], *, title: str, training: Mapping[str, Any] | None = None
) -> dict[str, go.Figure]:
    """All figures that there are of one result, by names fit for files.

    training: how the share of full attention came about (``pipelines.grid.curves.full_ratio_curve``), for ``routing``.
    """
    return heat_maps(result, title=title) | routing_figures({title: result}, training={title: training or {}})


def routing_figures(
    results: Mapping[str, Mapping[str, Any]], *, training: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, go.Figure]:
    """Where models take full attention, from their ``routing`` results by name: several are drawn over each other.

    layers, loss, position; training where ``training`` has a curve (``pipelines.grid.curves.full_ratio_curve``);
    needles of one model, needles-1 and so on of several. None for other evaluations, and where nothing is chosen.
    """
    curves = training or {}
    details = {name: {**result["details"], "training": curves.get(name) or {}} for name, result in results.items()}
    models = routing.Routed.of({name: kept for name, kept in details.items() if "by_layer" in kept})
    panels = {
        "layers": routing.layer_panel(models),
        "training": routing.training_panel(models),
        "loss": routing.loss_panel(models),
        "position": routing.position_panel(models),
    }
    whose = models[0].name if len(models) == 1 else routing.SHARE
    drawn = {
        key: as_figure(panel, f"{whose}: {panel.title[0].lower()}{panel.title[1:]}")
        for key, panel in panels.items()
        if panel is not None
    }
    maps = routing.needle_panels(models)
    for number, panel in enumerate(maps, 1):
        key = f"needles-{number}" if len(maps) > 1 else "needles"
        drawn[key] = as_figure(panel, f"{panel.title}: {NEEDLES}", legend=False)
    return drawn


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
