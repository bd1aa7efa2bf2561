"""Draw the figures of figures.py with matplotlib, for PNG, SVG and PDF without a browser.

It knows the traces that figures.py uses (lines, marks, filled bands, error bars, contours) and no others: an unknown
kind is an assertion, so a new figure cannot be exported half drawn.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_MARKS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "cross": "P", "star": "*",
}  # fmt: skip
_DASHES: dict[str, Any] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 3))}
_DPI = 100


def draw(figure: go.Figure, path: Path, *, width: int, height: int) -> None:
    """Write ``figure`` to ``path`` in the format its ending names; width and height in pixels."""
    canvas = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    layout = figure.layout
    axes.set_xscale(layout.xaxis.type or "linear")
    axes.set_yscale(layout.yaxis.type or "linear")
    for trace in figure.data:
        if trace.type == "contour":
            _contour(axes, trace)
        else:
            assert trace.type == "scatter", f"no drawing for {trace.type} traces"
            _scatter(axes, trace)
    axes.set_xlabel(layout.xaxis.title.text or "")
    axes.set_ylabel(layout.yaxis.title.text or "")
    axes.set_title(layout.title.text or "", loc="left", fontsize=12)
    for axis, limits in ((layout.xaxis, axes.set_xlim), (layout.yaxis, axes.set_ylim)):
        if axis.range is not None:
            limits(*axis.range)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, fontsize=9, frameon=False)
    canvas.savefig(path)


def _rgba(text: str | None) -> Any:
    match = re.fullmatch(r"rgba\(([\d.]+),([\d.]+),([\d.]+),([\d.]+)\)", text or "")
    if match is None:
        return text or "black"
    red, green, blue, opacity = (float(part) for part in match.groups())
    return red / 255, green / 255, blue / 255, opacity


def _scatter(axes: Any, trace: Any) -> None:
    x, y = np.asarray(trace.x, dtype=float), np.asarray(trace.y, dtype=float)
    label = trace.name if trace.showlegend is not False and trace.name else "_"
    if trace.fill == "toself":
        axes.fill(x, y, color=_rgba(trace.fillcolor), linewidth=0)
        return
    if "lines" in trace.mode:
        line = trace.line
        axes.plot(
            x,
            y,
            color=_rgba(line.color),
            linewidth=line.width or 2,
            linestyle=_DASHES[line.dash or "solid"],
            label=label,
        )
    if "text" in trace.mode:
        for x_, y_, text in zip(x, y, trace.text, strict=True):
            words = re.sub(r"<sup>(.*?)</sup>", r"$^{\1}$", text)
            axes.annotate(words, (x_, y_), color=_rgba(trace.textfont.color), fontsize=8, clip_on=True)
    if "markers" in trace.mode:
        marker = trace.marker
        colour, symbol = _rgba(marker.color), marker.symbol or "circle"
        open_mark = symbol.endswith("-open")
        axes.plot(
            x, y, linestyle="none", marker=_MARKS[symbol.removesuffix("-open")], markersize=0.75 * (marker.size or 6),
            color=colour, markerfacecolor="none" if open_mark else colour, label=label,
        )  # fmt: skip
        if trace.error_y.array is not None:
            spans = np.array([trace.error_y.arrayminus, trace.error_y.array], dtype=float)
            axes.errorbar(x, y, yerr=spans, fmt="none", ecolor=colour, elinewidth=1, capsize=2)


def _contour(axes: Any, trace: Any) -> None:
    drawn = axes.contour(
        trace.x, trace.y, np.asarray(trace.z), levels=trace.ncontours or 12, cmap="cividis", linewidths=1
    )
    axes.clabel(drawn, fontsize=8)
