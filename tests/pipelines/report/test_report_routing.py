"""The report's section about models that choose their attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gridlaw.pipelines.report.data import ReportData
from gridlaw.pipelines.report.markup import Figures
from gridlaw.pipelines.report.page import render
from gridlaw.pipelines.report.routing_section import routing_section, short_names


def routed(by_layer: list[float], *, shares: list[list[float]]) -> dict[str, Any]:
    mean = sum(by_layer) / len(by_layer)
    row = {"tokens": 900, "full_ratio": mean, "by_layer": by_layer}
    return {
        "by_layer": by_layer,
        "documents": 4,
        "tokens": 1800,
        "by_position": [{"from": 0, "to": 16, **row}, {"from": 16, "to": 32, **row}],
        "by_loss": [{"from": 0.0, "to": 0.03, **row}, {"from": 6.0, "to": 1e9, **row}],
        "needles": {
            "lengths": [128, 256], "depths": [0.0, 1.0], "samples_per_cell": 4, "window": 64, "by_layer": by_layer,
            "full_ratio_grid": shares, "answered_grid": [[1.0, 1.0], [0.5, 1.0]], "near_grid": [[0.0, 1.0], [0.0, 1.0]],
        },
        "training": {"tokens": [512.0, 1024.0], "mean": [0.5, mean]},
    }  # fmt: skip


@pytest.fixture
def report(make_report: Any) -> ReportData:
    made: ReportData = make_report()
    points = list(made.points)
    points[-2] = replace(points[-2], routing=routed([0.1, 0.3, 0.2], shares=[[0.4, 0.05], [0.45, 0.1]]))
    points[-1] = replace(points[-1], routing=routed([0.6, 0.5, 0.4], shares=[[0.6, 0.2], [0.62, 0.3]]))
    return replace(made, points=tuple(points))


def test_its_panels_have_the_points_numbers(report: ReportData) -> None:
    figures = Figures()
    section = routing_section(report, figures)
    titles = [panel.title for panel in figures.panels]
    assert titles[:4] == ["By layer", "Over training", "Against token loss", "By position"]
    last = [point for point in report.points if point.routing]
    layers = [trace["y"] for trace in figures.panels[0].traces if trace["mode"] == "markers"]
    assert layers == [point.routing["by_layer"] for point in last]
    maps = figures.panels[4:]
    assert [panel.traces[0]["z"][0] for panel in maps] == [[0.4, 0.45], [0.6, 0.62]]
    assert {panel.traces[0]["zmax"] for panel in maps} == {0.65}
    assert 'id="routing"' in section
    assert 'href="#routing"' in render(report)


def test_it_is_left_out_where_nothing_is_chosen(make_report: Any) -> None:
    page = render(make_report())
    assert 'id="routing"' not in page
    assert 'href="#routing"' not in page


def test_names_keep_what_tells_them_apart() -> None:
    names = ["cpt/swiattn-64/n3/20N/seed0", "cpt/V1/n3/20N/seed0"]
    assert list(short_names(names).values()) == ["swiattn-64", "V1"]
    assert short_names(names[:1]) == {names[0]: names[0]}
    several = ["cpt/a/n3/20N/seed0", "cpt/a/n3/20N/seed1"]
    assert list(short_names(several).values()) == ["a/seed0", "a/seed1"]
    assert list(short_names(["a/n3/20N/seed0", "s/a/n3/20N/seed0"]).values()) == ["a/n3/20N/seed0", "s/a/n3/20N/seed0"]
