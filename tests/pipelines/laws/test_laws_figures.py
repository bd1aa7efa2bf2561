"""Figures: what they show, that every one is written in every format, and colours that everyone can tell apart."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from gridlaw.pipelines.figures.colours import DARK, LIGHT, NUM_ARCHITECTURE_COLOURS, SYMBOLS
from gridlaw.pipelines.figures.drawn import DrawnLaw, style_of
from gridlaw.pipelines.figures.laws import residual_panels
from gridlaw.pipelines.laws import figures
from gridlaw.pipelines.laws.diagnostics import residuals
from gridlaw.pipelines.laws.fit import LawFit, fit_law
from gridlaw.pipelines.laws.static import _MARKS
from gridlaw.pipelines.laws.verify import Verification, verify
from gridlaw.platform.errors import BadInput

N = np.repeat([15e6, 31e6, 65e6], 4)
D = N * np.tile([100, 200, 400, 1000], 3)


def _law(seed: int) -> LawFit:
    y = (700 * N**-0.36 + 1200 * D**-0.32) * np.exp(0.01 * np.random.default_rng(seed).standard_normal(12))
    return fit_law(N, D, y, num_resamples=60)


@pytest.fixture(scope="module")
def laws() -> dict[str, LawFit]:
    return {"full": _law(0), "gdn": _law(1)}


@pytest.fixture(scope="module")
def held(laws: dict[str, LawFit]) -> dict[str, Verification]:
    n, d = np.array([104e6]), np.array([5e10])
    return {"full": verify(laws["full"], n, d, 700 * n**-0.36 + 1200 * d**-0.32)}


def marks(figure: go.Figure) -> list:
    return [trace for trace in figure.data if trace.mode == "markers"]


def filled(trace: go.Scatter) -> bool:
    return trace.marker.color != LIGHT["paper"]


def test_curves_of_one_law_show_each_scale_with_points_and_band(laws: dict, held: dict) -> None:
    figure = figures.curves({"full": laws["full"]}, held_out=held)
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    lines = [trace for trace in figure.data if trace.mode == "lines" and trace.fill is None]
    assert (len(bands), len(lines)) == (4, 4)
    assert sum(len(trace.x) for trace in marks(figure)) == 13
    assert [trace.name for trace in lines][-1] == "N = 104M"
    assert [trace.name for trace in figure.data if trace.showlegend] == ["N = 15M", "N = 31M", "N = 65M", "N = 104M"]
    shown = np.concatenate([trace.y for trace in marks(figure) if filled(trace)])
    np.testing.assert_allclose(np.sort(shown), np.sort(laws["full"].points.values))
    assert [len(trace.x) for trace in marks(figure) if not filled(trace)] == [1]


def test_a_law_in_tokens_alone_has_one_curve(laws: dict) -> None:
    points = laws["full"].points
    law = fit_law(points.num_params, points.num_tokens, points.values, form="d", num_resamples=60)
    lines = [trace for trace in figures.curves({"d": law}).data if trace.mode == "lines" and trace.fill is None]
    assert len(lines) == 1
    with pytest.raises(BadInput, match="nd or nde"):
        figures.contours(law)


def test_iso_flop_lines_and_the_optimum_path_are_where_they_should_be(laws: dict) -> None:
    figure = figures.contours(laws["full"])
    path = next(trace for trace in figure.data if trace.name == "compute-optimal")
    middle = len(path.x) // 2
    law, flops = laws["full"], 6 * path.x[middle] * path.y[middle]
    for factor in (0.7, 1.4):
        n = path.x[middle] * factor
        assert law.predict(n, flops / (6 * n)) > law.predict(path.x[middle], path.y[middle])
    iso = [trace for trace in figure.data if trace.name and "FLOPs" in trace.name]
    assert iso
    for trace in iso:
        np.testing.assert_allclose(6 * np.array(trace.x) * trace.y, 6 * trace.x[0] * trace.y[0])
    contour = figure.data[0]
    assert contour.z[5][7] == pytest.approx(law.predict(contour.x[7], contour.y[5]))


def test_residuals_are_those_of_the_diagnostics_and_outliers_are_ringed() -> None:
    y = 700 * N**-0.36 + 1200 * D**-0.32
    y[5] *= 1.2
    law = fit_law(N, D, y * np.exp(0.002 * np.random.default_rng(3).standard_normal(12)), num_resamples=60)
    figure = figures.residual_plot(law)
    ring = next(trace for trace in figure.data if trace.name == "outlier")
    assert ring.x[0] == pytest.approx(D[5] / N[5])
    shown = np.concatenate([trace.y for trace in marks(figure) if trace.name != "outlier"])
    np.testing.assert_allclose(np.sort(shown), np.sort(100 * residuals(law).log_residual))


def test_gaps_are_those_of_the_comparison(laws: dict) -> None:
    figure = figures.gaps(laws, num_params=65e6)
    lines = {trace.name: trace for trace in figure.data if trace.mode == "lines" and trace.fill is None}
    assert set(lines) == {"full", "gdn"}
    best = min(laws, key=lambda name: laws[name].predict(65e6, D.max()))
    assert not np.any(lines[best].y)
    other = next(name for name in laws if name != best)
    expected = laws[other].predict(65e6, np.array(lines[other].x)) - laws[best].predict(65e6, np.array(lines[other].x))
    np.testing.assert_allclose(lines[other].y, expected)
    with pytest.raises(BadInput, match="two or more laws"):
        figures.gaps({"full": laws["full"]})


def test_clouds_hold_every_resample_and_pile_up_at_the_edge(laws: dict) -> None:
    figure = figures.exponent_clouds(laws)
    clouds = [trace for trace in marks(figure) if trace.showlegend is False]
    assert [len(trace.x) for trace in clouds] == [len(law.draws) for law in laws.values()]
    low, high = (10**end for end in figure.layout.xaxis.range)
    assert all(low * 0.999 <= min(trace.x) and max(trace.x) <= high * 1.001 for trace in clouds)
    fit = next(trace for trace in marks(figure) if trace.name == "gdn" and trace.showlegend)
    assert (fit.x[0], fit.y[0]) == pytest.approx((laws["gdn"].alpha, laws["gdn"].beta))


def test_all_figures_are_written_in_every_format(laws: dict, held: dict, tmp_path: Path) -> None:
    drawn = figures.all_figures(laws, held_out=held)
    assert len(drawn) == 10
    for name in ("curves", "gaps", "predicted", "exponents", "contours-gdn", "residuals-full"):  # one of each kind
        png = figures.save(drawn[name], tmp_path / f"{name}.png")
        assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    svg = figures.save(drawn["contours-full"], tmp_path / "one.svg")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    html = figures.save(drawn["curves"], tmp_path / "one.html").read_text()
    assert "<script src=" not in html
    assert figures.save(drawn["curves"], tmp_path / "one.pdf").read_bytes()[:4] == b"%PDF"
    with pytest.raises(BadInput, match=r"\.svg"):
        figures.save(drawn["curves"], tmp_path / "one.gif")


def test_an_unknown_trace_is_not_half_drawn(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="bar"):
        figures.save(go.Figure(go.Bar(x=[1], y=[1])), tmp_path / "bar.png")


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stay_apart_for_every_kind_of_colour_vision(colours: dict[str, str]) -> None:
    # Viénot, Brettel and Mollon (1999), linear RGB: protanopia, deuteranopia
    kinds = {
        "protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
        "deutan": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    }
    palette = [colours[f"arch-{index}"] for index in range(NUM_ARCHITECTURE_COLOURS)]
    rgb = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in palette])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    for matrix in kinds.values():
        seen = np.clip(linear @ np.array(matrix).T, 0, 1) ** (1 / 2.2)
        distance = np.linalg.norm(seen[:, None] - seen[None], axis=2)
        assert distance[~np.eye(len(seen), dtype=bool)].min() > 0.1


def test_marks_differ_and_can_be_drawn_in_print() -> None:
    assert len(set(SYMBOLS)) == len(SYMBOLS) >= NUM_ARCHITECTURE_COLOURS
    assert set(SYMBOLS) == set(_MARKS)


def test_figures_of_laws_without_intervals_have_no_band(laws: dict) -> None:
    points = laws["full"].points
    bare = fit_law(points.num_params, points.num_tokens, points.values, intervals="none")
    assert not [trace for trace in figures.curves({"full": bare}).data if trace.fill]
    assert len(figures.all_figures({"full": bare})) == 5


def test_a_law_without_a_point_to_draw_has_no_residuals(laws: dict) -> None:
    """Its points are trained again, say: the others' panels are drawn as if it were not there."""
    drawn = [DrawnLaw.of("full", laws["full"]), DrawnLaw(name="gdn", law=laws["gdn"], points=())]
    assert [panel.title for panel in residual_panels(drawn, style_of(drawn))] == ["full"]
    assert residual_panels(drawn[1:], style_of(drawn)) == []
