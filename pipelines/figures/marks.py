"""Parts of figures as plotly.js descriptions: plain dicts, coloured by names instead of values.

A colour is written ``var:--scale-2`` or ``var:--scale-2/0.15`` (with opacity). The report's script puts in the value of
that CSS variable, so one description serves light, dark and print; ``colours.resolved`` does it for files. Nothing here
imports plotly. All text that plotly shows is escaped, because plotly reads a small HTML of its own. A trace's ``meta``
names the legend entry that shows and hides it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.data import finite

FINE_STEPS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
WIDE_STEPS = ((1, 2, 5), (1, 3), (1,))  # for labels such as 200K beside each other on a narrow screen
TALL, MIDDLE = 400, 340  # heights of drawings that stand two and three in a row; others are as `layout` says
MIN_LOG_RANGE = 1.15  # a panel spans at least this factor, so that noise is not blown up to a cliff


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing: its heading, what it says to who cannot see it, and its traces and layout."""

    title: str
    alt: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]


def text(value: str) -> str:
    """Text as plotly shows it literally."""
    return html.escape(value, quote=False)


def log_ticks(
    low: float, high: float, most: int = 6, *, steps: tuple[tuple[float, ...], ...] = FINE_STEPS
) -> list[float]:
    """Round tick values for a logarithmic axis from low to high (both positive), at most about ``most``.

    steps: multiples of each power of ten to try, the finest first.
    """
    if high / low >= 3:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for multiples in steps:
            ticks = [step * 10.0**exponent for exponent in exponents for step in multiples]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) <= most:
                return ticks
        return ticks[:: math.ceil(len(ticks) / most)]
    step = round_step(low, high, most)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def round_step(low: float, high: float, most: int) -> float:
    """1, 2, 2.5 or 5 times a power of ten: the least such that about ``most`` of them cover low to high."""
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)


def log_axis(values: Iterable[float], title: str, *, counts: bool = False) -> dict[str, Any]:
    """A logarithmic axis with some room around the positive values; counts: ticks such as 200K and 1M."""
    kept = [value for value in values if finite(value) is not None and value > 0]
    low, high = (min(kept), max(kept)) if kept else (1.0, 10.0)
    if high / low < MIN_LOG_RANGE:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(MIN_LOG_RANGE), middle * math.sqrt(MIN_LOG_RANGE)
    room = (high / low) ** 0.06
    low, high = low / room, high * room
    ticks = log_ticks(low, high, 5, steps=WIDE_STEPS) if counts else log_ticks(low, high)
    labels = [words.count(tick) if counts else _tick(tick) for tick in ticks]
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": labels,
        "tickangle": 0,
        "title": {"text": text(title), "standoff": 6},
    }


def linear_axis(low: float, high: float, title: str, **more: Any) -> dict[str, Any]:
    """A linear axis from low to high."""
    return {"type": "linear", "range": [low, high], "title": {"text": text(title), "standoff": 6}} | more


def _tick(value: float) -> str:
    return f"{value:.4g}" if 1e-3 <= value < 1e5 else words.scientific(value, 1).replace("1×", "")


def layout(x_axis: dict[str, Any], y_axis: dict[str, Any], height: int = 290) -> dict[str, Any]:
    """The layout that all drawings share; no legend, because a page has its own."""
    axis = {
        "gridcolor": "var:--grid",
        "linecolor": "var:--line",
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "showline": True,
    }
    return {
        "height": height,
        "margin": {"l": 48, "r": 12, "t": 8, "b": 44},
        "showlegend": False,
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var:--ink"},
        "hoverlabel": {"bgcolor": "var:--paper", "bordercolor": "var:--line", "font": {"color": "var:--ink"}},
        "xaxis": {**axis, **x_axis},
        "yaxis": {**axis, **y_axis},
    }


def markers(
    xs: Sequence[float],
    ys: Sequence[float],
    labels: Sequence[str],
    *,
    colour: str,
    symbol: str,
    key: str,
    filled: bool = True,
    size: float = 9,
    x_errors: tuple[Sequence[float], Sequence[float]] | None = None,
    y_errors: tuple[Sequence[float], Sequence[float]] | None = None,
) -> dict[str, Any]:
    """One set of points. labels: for hovering, lines apart by newlines; errors: distances up and down (``bars``)."""
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": list(xs),
        "y": list(ys),
        "text": ["<br>".join(text(line) for line in label.split("\n")) for label in labels],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": key,
        "name": text(key),
        "cliponaxis": False,
        "marker": {
            "symbol": symbol,
            "size": size,
            "color": f"var:{colour}" if filled else "var:--paper",
            "line": {"width": 1 if filled else 2.2, "color": "var:--paper" if filled else f"var:{colour}"},
        },
    }
    for direction, errors in (("error_x", x_errors), ("error_y", y_errors)):
        if errors:
            trace[direction] = {
                "type": "data",
                "symmetric": False,
                "array": list(errors[0]),
                "arrayminus": list(errors[1]),
                "color": f"var:{colour}/0.7",
                "thickness": 1.4,
                "width": 4,
            }
    return trace


def bars(
    values: Sequence[float], lows: Sequence[float | None], highs: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """Lengths of error bars above and below; 0 where an end is not known."""

    def length(value: float, end: float | None, sign: float) -> float:
        return max(sign * (end - value), 0.0) if end is not None and finite(end) is not None else 0.0

    above = [length(value, end, 1.0) for value, end in zip(values, highs, strict=True)]
    below = [length(value, end, -1.0) for value, end in zip(values, lows, strict=True)]
    return above, below


def line(
    xs: Sequence[float],
    ys: Sequence[float | None],
    colour: str,
    key: str,
    *,
    width: float = 2,
    dash: str = "solid",
    name: str = "",
) -> dict[str, Any]:
    """A line; name: its legend entry in a file where it is not ``key``."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(xs),
        "y": list(ys),
        "line": {"color": f"var:{colour}", "width": width, "dash": dash},
        "hoverinfo": "skip",
        "meta": key,
        "name": text(name or key),
    }


def band(xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str, key: str) -> dict[str, Any]:
    """The area between two lines."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*xs, *reversed(xs)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": f"var:{colour}/0.16",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "meta": key,
    }


def note(x: float, y: float, words_there: str, key: str = "") -> dict[str, Any]:
    """Small text inside a drawing; plotly's own small HTML (<sup>) is taken as it is."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": [x],
        "y": [y],
        "text": [words_there],
        "textposition": "top right",
        "textfont": {"color": "var:--muted", "size": 10},
        "hoverinfo": "skip",
        "meta": key,
    }
