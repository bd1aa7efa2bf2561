"""Figures of laws as plotly objects, and as files: pure functions of laws and points; only ``save`` writes.

What is drawn is described once, in ``gridlaw.pipelines.figures``, and the grid's report shows the same. HTML is
self-contained; PNG, SVG and PDF are drawn by matplotlib (static.py), since plotly's own export needs a browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from gridlaw.pipelines.figures import laws as drawings
from gridlaw.pipelines.figures import surface
from gridlaw.pipelines.figures.colours import LIGHT, resolved
from gridlaw.pipelines.figures.drawn import DrawnLaw, size_name, style_of
from gridlaw.pipelines.figures.marks import Panel
from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.laws.verify import Verification
from gridlaw.platform.errors import BadInput

HeldOut = Mapping[str, Verification]


def _drawn(laws: Mapping[str, LawFit], held_out: HeldOut | None = None) -> list[DrawnLaw]:
    if not laws:
        raise BadInput("laws", seen=0, allowed="at least one law")
    return [DrawnLaw.of(name, law, (held_out or {}).get(name)) for name, law in laws.items()]


def as_figure(panel: Panel, title: str, *, legend: bool = True) -> go.Figure:
    """A panel by itself: on white, with a title, and a legend with one entry a key (``meta``) or named line."""
    traces, listed = [], set()
    for trace in resolved(panel.traces, LIGHT):
        name, key = trace.get("name", ""), trace.pop("meta", "")
        entry = legend and bool(name) and name not in listed and trace.get("showlegend", True)
        listed |= {name} if entry else set()
        traces.append(trace | {"showlegend": entry, "legendgroup": key or name})
    figure = go.Figure(data=traces, layout=resolved(panel.layout, LIGHT))
    figure.update_layout(
        title={"text": title, "font": {"size": 16}}, height=None, showlegend=legend, margin={"t": 50, "l": 70, "r": 20},
        paper_bgcolor=LIGHT["paper"], plot_bgcolor=LIGHT["paper"], legend={"orientation": "h", "y": -0.22},
    )  # fmt: skip
    return figure


def curves(
    laws: Mapping[str, LawFit],
    *,
    target: str = "loss",
    num_params: float | None = None,
    held_out: HeldOut | None = None,
    reach: float = 3.0,
) -> go.Figure:
    """Measured points and fitted curves against tokens, with the bands of the curves.

    One law: a curve per scale. Several: one per architecture at ``num_params`` (default: the largest N of the first
    law). Held-out points are open marks. ``reach``: how far beyond the largest budget curves go.
    """
    drawn = _drawn(laws, held_out)
    if len(drawn) == 1:
        panel = drawings.curve_panels(drawn, style_of(drawn), target, reach=reach)[0]
        return as_figure(panel, f"{drawn[0].name}: {target} against tokens")
    size = _largest(laws) if num_params is None else num_params
    shown = drawings.curves_at(drawn, style_of(drawn), target, num_params=size, reach=reach)
    assert shown is not None, "fitted laws have points"
    return as_figure(shown, f"{target} against tokens at {size_name(size)}")


def _largest(laws: Mapping[str, LawFit]) -> float:
    return float(next(iter(laws.values())).points.num_params.max())


def gaps(
    laws: Mapping[str, LawFit], *, target: str = "loss", num_params: float | None = None, reach: float = 3.0
) -> go.Figure:
    """Each law minus the one that is lowest at the largest budget, over tokens at one N, with intervals.

    ``num_params``: default the largest N of the first law. BadInput for fewer than two laws with intervals.
    """
    drawn = _drawn(laws)
    size = _largest(laws) if num_params is None else num_params
    panel = drawings.gaps_at(drawn, style_of(drawn), target, num_params=size, reach=reach)
    if panel is None:
        raise BadInput("laws", seen=list(laws), allowed="two or more laws fitted with intervals")
    return as_figure(panel, f"{target}: {panel.title[0].lower()}{panel.title[1:]}")


def predicted_against_measured(
    laws: Mapping[str, LawFit], *, target: str = "loss", held_out: HeldOut | None = None
) -> go.Figure:
    """Predicted against measured values, fitted (filled) and held out (open, with their intervals), and the
    diagonal.
    """
    drawn = _drawn(laws, held_out)
    panel = drawings.predicted_panel(drawn, style_of(drawn), target)
    assert panel is not None, "fitted laws have points"
    return as_figure(panel, f"{target}: predicted against measured")


def contours(
    law: LawFit,
    *,
    name: str = "law",
    target: str = "loss",
    held_out: Verification | None = None,
    flops_per_param_token: float = surface.FLOPS_PER_PARAM_TOKEN,
    reach: float = 10.0,
) -> go.Figure:
    """The law over N and D: contours, iso-FLOP lines (flops_per_param_token · N · D), the compute-optimal path and
    the points. BadInput for a form without both N and D.
    """
    drawn = _drawn({name: law}, {name: held_out} if held_out is not None else None)
    panels = surface.contour_panels(
        drawn, target, flops_per_param_token=flops_per_param_token, reach=reach
    )  # fmt: skip
    if not panels:
        raise BadInput("form", seen=law.form, allowed="nd or nde")
    return as_figure(panels[0], f"{name}: {target} over N and D, dotted: equal FLOPs")


def residual_plot(
    law: LawFit, *, name: str = "law", target: str = "loss", held_out: Verification | None = None
) -> go.Figure:
    """Log residuals by budget (tokens per parameter), one mark per scale; outliers are ringed, held-out points open."""
    drawn = _drawn({name: law}, {name: held_out} if held_out is not None else None)
    return as_figure(drawings.residual_panels(drawn, style_of(drawn))[0], f"{name}: residuals of {target}")


def exponent_clouds(laws: Mapping[str, LawFit]) -> go.Figure:
    """alpha and beta of the resamples of each law, with the fits as large marks and their intervals as bars.
    BadInput without a law that has both.
    """
    drawn = _drawn(laws)
    panel = surface.cloud_panel(drawn, style_of(drawn))
    if panel is None:
        raise BadInput("laws", seen=list(laws), allowed="a law with alpha and beta (form nd or nde)")
    return as_figure(panel, panel.title)


def save(figure: go.Figure, path: Path | str, *, width: int = 900, height: int = 560) -> Path:
    """Write a figure by its ending: .html (self-contained) or .png, .svg, .pdf (drawn by matplotlib, in pixels at 100
    dpi).
    """
    path = Path(path)
    if path.suffix == ".html":
        figure.write_html(path, include_plotlyjs=True, full_html=True)
        return path
    if path.suffix not in STATIC_ENDINGS:
        raise BadInput("figure", seen=path.name, allowed=f"a name ending in .html, {', '.join(STATIC_ENDINGS)}")
    from gridlaw.pipelines.laws.static import draw  # matplotlib loads only for this

    draw(figure, path, width=width, height=height)
    return path


STATIC_ENDINGS: Sequence[str] = (".png", ".svg", ".pdf")


def all_figures(laws: Mapping[str, LawFit], *, target: str = "loss", held_out: HeldOut | None = None) -> dict[str, Any]:
    """Every figure that these laws allow, by a name fit for a file."""
    found: dict[str, Any] = {"predicted": predicted_against_measured(laws, target=target, held_out=held_out)}
    found |= comparison_figures(laws, target=target, held_out=held_out) if len(laws) > 1 else {}
    if any({"alpha", "beta"} <= set(law.parameters) for law in laws.values()):
        found["exponents"] = exponent_clouds(laws)
    for name, law in laws.items():
        held = (held_out or {}).get(name)
        found[f"curves-{name}"] = curves({name: law}, target=target, held_out=held_out)
        found[f"residuals-{name}"] = residual_plot(law, name=name, target=target, held_out=held)
        if {"alpha", "beta"} <= set(law.parameters):
            found[f"contours-{name}"] = contours(law, name=name, target=target, held_out=held)
    return found


def comparison_figures(
    laws: Mapping[str, LawFit],
    *,
    target: str = "loss",
    num_params: float | None = None,
    held_out: HeldOut | None = None,
) -> dict[str, Any]:
    """Architectures against each other at one N: their curves, and their gaps where the laws have intervals."""
    found: dict[str, Any] = {"curves": curves(laws, target=target, num_params=num_params, held_out=held_out)}
    if sum(len(law.draws) > 0 for law in laws.values()) > 1:
        found["gaps"] = gaps(laws, target=target, num_params=num_params)
    return found
