"""Draw the figures of figures.py with matplotlib, for PNG, SVG and PDF without a browser.

It knows the traces that they use (lines, marks, filled bands, error bars, text, contours, heat maps) and no
others: an unknown kind is an assertion, so a new figure cannot be exported half drawn.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

_MARKS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "star": "*", "triangle-down": "v",
    "hexagon": "h",
}  # fmt: skip
_DASHES: dict[str, Any] = {"solid": "-", "dash": "--", "dot": ":"}
_DPI = 100


def draw(figure: go.Figure, path: Path, *, width: int, height: int) -> None:
    """Write ``figure`` to ``path`` in the format its ending names; width and height in pixels."""
    canvas = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    if figure.data and figure.data[0].type == "heatmap":
        _heat_map(canvas, axes, figure)
        canvas.savefig(path)
        return
    for trace in figure.data:
        if trace.type == "contour":
            _contour(axes, trace)
        else:
            assert trace.type == "scatter", f"no drawing for {trace.type} traces"
            _scatter(axes, trace)
    layout = figure.layout
    _axis(axes, "x", layout.xaxis)
    _axis(axes, "y", layout.yaxis)
    axes.set_title(_plain(layout.title.text), loc="left", fontsize=12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        canvas.legend(handles, labels, fontsize=9, frameon=False, loc="outside lower center", ncols=4)
    canvas.savefig(path)


def _heat_map(canvas: Any, axes: Any, figure: go.Figure) -> None:
    """A map of categories by categories, the first row on top; lines are in the numbers of the categories."""
    trace, layout = figure.data[0], figure.layout
    ramp = LinearSegmentedColormap.from_list("shares", [(stop, colour) for stop, colour in trace.colorscale])
    drawn = axes.imshow(
        np.asarray(trace.z, dtype=float), cmap=ramp, vmin=trace.zmin, vmax=trace.zmax, aspect="auto", origin="upper"
    )
    for letter, names in (("x", trace.x), ("y", trace.y)):
        shown = range(0, len(names), max(1, len(names) // 12))
        getattr(axes, f"set_{letter}ticks")(list(shown), [names[index] for index in shown])
        getattr(axes, f"set_{letter}label")(_plain(layout[f"{letter}axis"].title.text))
    for shape in layout.shapes:
        assert shape.type == "line", f"no drawing for {shape.type} shapes"
        axes.plot([shape.x0, shape.x1], [shape.y0, shape.y1], color=shape.line.color, linewidth=shape.line.width)
    axes.set_title(_plain(layout.title.text), loc="left", fontsize=12)
    canvas.colorbar(drawn, label=_plain(trace.colorbar.title.text))


def _axis(axes: Any, letter: str, described: Any) -> None:
    """Scale, limits, ticks and title of one axis; plotly gives the limits of a logarithmic one as exponents."""
    logarithmic = described.type == "log"
    getattr(axes, f"set_{letter}scale")("log" if logarithmic else "linear")
    if described.range is not None:
        ends = [10.0**end for end in described.range] if logarithmic else described.range
        getattr(axes, f"set_{letter}lim")(*ends)
    axis = getattr(axes, f"{letter}axis")
    if described.tickvals is not None:
        axis.set_major_locator(FixedLocator(list(described.tickvals)))
        axis.set_major_formatter(FixedFormatter(list(described.ticktext)))
        axis.set_minor_locator(NullLocator())
    axis.set_label_text(_plain(described.title.text))


def _plain(text: str | None) -> str:
    """Plotly's small HTML as matplotlib's small TeX."""
    text = re.sub(r"<sup>(.*?)</sup>", r"$^{\1}$", text or "")
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _rgba(text: str | None) -> Any:
    match = re.fullmatch(r"rgba\(([\d.]+),([\d.]+),([\d.]+),([\d.]+)\)", text or "")
    if match is None:
        return text or "black"
    red, green, blue, opacity = (float(part) for part in match.groups())
    return red / 255, green / 255, blue / 255, opacity


def _scatter(axes: Any, trace: Any) -> None:
    x, y = np.asarray(trace.x, dtype=float), np.asarray(trace.y, dtype=float)
    label = _plain(trace.name) if trace.showlegend is not False and trace.name else "_"
    if trace.fill == "toself":
        axes.fill(x, y, color=_rgba(trace.fillcolor), linewidth=0)
        return
    if "lines" in trace.mode:
        style = _DASHES[trace.line.dash or "solid"]
        axes.plot(x, y, color=_rgba(trace.line.color), linewidth=trace.line.width or 2, linestyle=style, label=label)
    if "text" in trace.mode:
        for x_, y_, text in zip(x, y, trace.text, strict=True):
            axes.annotate(_plain(text), (x_, y_), color=_rgba(trace.textfont.color), fontsize=8, clip_on=True)
    if "markers" in trace.mode:
        _marks(axes, trace, x, y, label)


def _marks(axes: Any, trace: Any, x: np.ndarray, y: np.ndarray, label: str) -> None:
    marker = trace.marker
    symbol = marker.symbol or "circle"
    face = "none" if symbol.endswith("-open") else _rgba(marker.color)
    edge = _rgba(marker.color) if symbol.endswith("-open") or marker.line.color is None else _rgba(marker.line.color)
    for direction, error in (("xerr", trace.error_x), ("yerr", trace.error_y)):
        if error.array is not None:
            spans = np.array([error.arrayminus, error.array], dtype=float)
            axes.errorbar(x, y, **{direction: spans}, fmt="none", ecolor=_rgba(error.color), elinewidth=1, capsize=2)
    axes.plot(
        x, y, linestyle="none", marker=_MARKS[symbol.removesuffix("-open")], markersize=0.75 * (marker.size or 6),
        markerfacecolor=face, markeredgecolor=edge, markeredgewidth=0.75 * (marker.line.width or 0), label=label,
    )  # fmt: skip


def _contour(axes: Any, trace: Any) -> None:
    z = np.array(trace.z, dtype=float)
    described = trace.contours
    levels = np.arange(described.start, described.end + described.size / 2, described.size)
    colours = [colour for _, colour in trace.colorscale]
    ramp = LinearSegmentedColormap.from_list("scales", colours[::-1] if trace.reversescale else colours)
    drawn = axes.contour(
        trace.x, trace.y, np.ma.masked_invalid(z), levels=levels, cmap=ramp, vmin=trace.zmin, vmax=trace.zmax,
        linewidths=1,
    )  # fmt: skip
    axes.clabel(drawn, fontsize=8)
