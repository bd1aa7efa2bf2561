"""Routing figures show the evaluation's own numbers, each in its place, and where needles leave the window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import routing
from gridlaw.pipelines.evaluations.figures import figures, routing_figures
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.pipelines.laws.figures import save

SWITCH = "swiattn-64"
NEEDLES = {"lengths": [90, 130, 180], "depths": 3, "samples": 1}
CURVE = {"tokens": [512.0, 1024.0, 1536.0], "mean": [0.5, 0.4, 0.2], "by_layer": [[0.6, 0.6, 0.4], [0.4, 0.2, 0.0]]}


@pytest.fixture
def result(make_run: Callable[..., EvaluationRun]) -> dict[str, Any]:
    with torch.no_grad():
        return routing.compute(make_run({"routing": {"tokens": 600, "needles": NEEDLES}}, architecture=SWITCH))


def named(figure: Any, name: str) -> Any:
    return next(trace for trace in figure.data if trace.name == name and "markers" in (trace.mode or ""))


def test_every_figure_has_the_details_numbers(result: dict[str, Any], tmp_path: Path) -> None:
    details = result["details"]
    drawn = figures(result, title="mine", training=CURVE)
    assert set(drawn) == {"layers", "training", "loss", "position", "needles"}
    layers = named(drawn["layers"], "mine")
    assert (list(layers.x), list(layers.y)) == ([0, 1], details["by_layer"])
    assert list(named(drawn["layers"], "answering needles").y) == details["needles"]["by_layer"]
    for key, rows in (("loss", details["by_loss"]), ("position", details["by_position"])):
        assert list(named(drawn[key], "mine").y) == [row["full_ratio"] for row in rows]
    ticks = drawn["loss"].layout.xaxis.ticktext
    assert ticks[0] == f"{details['by_loss'][0]['from']:g}–{details['by_loss'][0]['to']:g}"
    lines = {trace.name: list(trace.y) for trace in drawn["training"].data}
    assert lines == {"mean": CURVE["mean"], "layer 0": CURVE["by_layer"][0], "layer 1": CURVE["by_layer"][1]}
    assert {tuple(trace.x) for trace in drawn["training"].data} == {tuple(CURVE["tokens"])}
    for figure in drawn.values():
        assert save(figure, tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_map_has_a_row_a_depth_and_the_windows_edge(result: dict[str, Any]) -> None:
    needles = result["details"]["needles"]
    figure = figures(result, title="mine")["needles"]
    cells = figure.data[0]
    assert (list(cells.x), list(cells.y)) == (["90", "130", "180"], ["0%", "50%", "100%"])
    for column, length in enumerate(needles["full_ratio_grid"]):
        assert [row[column] for row in cells.z] == length
    assert cells.zmax >= max(max(row) for row in needles["full_ratio_grid"])
    assert [shape.y0 for shape in figure.layout.shapes] == [1.5, 1.5, 1.5], "only needles at the end are near"


def test_the_edge_follows_the_window(result: dict[str, Any]) -> None:
    near = [[0.0, 1.0, 1.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]]
    details = result["details"] | {"needles": result["details"]["needles"] | {"near_grid": near}}
    figure = figures(result | {"details": details}, title="mine")["needles"]
    flat = [(shape.x0, shape.x1, shape.y0) for shape in figure.layout.shapes if shape.y0 == shape.y1]
    assert flat == [(-0.5, 0.5, 0.5), (0.5, 1.5, 1.5), (1.5, 2.5, 2.5)]
    steep = [(shape.x0, shape.y0, shape.y1) for shape in figure.layout.shapes if shape.x0 == shape.x1]
    assert steep == [(0.5, 0.5, 1.5), (1.5, 1.5, 2.5)]


def test_several_models_are_drawn_over_each_other(
    result: dict[str, Any], make_run: Callable[..., EvaluationRun], models: Callable[[str], DecoderLM]
) -> None:
    fixed = routing.compute(make_run("routing", model_config=models("full").config.to_dict()))
    drawn = routing_figures({"one": result, "two": result, "full": fixed}, training={"two": CURVE})
    assert set(drawn) == {"layers", "training", "loss", "position", "needles-1", "needles-2"}
    assert [trace.name for trace in drawn["layers"].data if trace.showlegend] == ["one", "two"]
    assert named(drawn["layers"], "one").marker.color != named(drawn["layers"], "two").marker.color
    ranges = {drawn[f"needles-{number}"].data[0].zmax for number in (1, 2)}
    assert len(ranges) == 1, "two maps are compared by their colours"
    assert figures(fixed, title="full") == {}
