"""The report's figures as plotly.js descriptions: plain dicts, one per panel, coloured by names instead of values.

A colour is written ``var:--scale-2`` or ``var:--scale-2/0.15`` (with opacity); the page's script puts in the value of
that CSS variable, so one description serves light, dark and print. Nothing here imports plotly. All text that plotly
shows is escaped, because plotly reads a small HTML of its own.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.data import LawPoint, LawRow, PointRow, ReportData, finite

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "hexagon")
NUM_ARCHITECTURE_COLOURS = 7
NUM_SCALE_COLOURS = 6
FINE_STEPS = ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
WIDE_STEPS = ((1, 2, 5), (1, 3), (1,))  # for labels such as 200K beside each other on a narrow screen
MIN_LOG_RANGE = 1.15  # a panel spans at least this factor, so that noise is not blown up to a cliff


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing: its heading, what it says to who cannot see it, and its traces and layout."""

    title: str
    alt: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Style:
    """Colour name and symbol of each scale and architecture, the same in every figure."""

    scales: tuple[str, ...]
    architectures: tuple[str, ...]

    def scale(self, name: str) -> tuple[str, str]:
        """Colour and symbol; the ramp runs from the smallest scale to the largest, whatever their number."""
        index = self.scales.index(name) if name in self.scales else 0
        steps = max(len(self.scales) - 1, 1)
        return f"--scale-{round(index * (NUM_SCALE_COLOURS - 1) / steps)}", SYMBOLS[index % len(SYMBOLS)]

    def architecture(self, name: str) -> tuple[str, str]:
        """Colour and symbol; beyond seven architectures colours repeat with other symbols."""
        index = self.architectures.index(name) if name in self.architectures else 0
        shift = index // NUM_ARCHITECTURE_COLOURS
        return f"--arch-{index % NUM_ARCHITECTURE_COLOURS}", SYMBOLS[(index + shift) % len(SYMBOLS)]


def style_of(data: ReportData) -> Style:
    return Style(scales=tuple(words.scales(data)), architectures=tuple(words.architectures(data)))


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
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


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


def _tick(value: float) -> str:
    return f"{value:.4g}" if 1e-3 <= value < 1e5 else words.scientific(value, 1).replace("1×", "")


def _layout(x_axis: dict[str, Any], y_axis: dict[str, Any], height: int = 290) -> dict[str, Any]:
    axis = {
        "gridcolor": "var:--grid",
        "linecolor": "var:--line",
        "zeroline": False,
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


def _markers(
    xs: Sequence[float],
    ys: Sequence[float],
    labels: Sequence[str],
    *,
    colour: str,
    symbol: str,
    key: str,
    filled: bool = True,
    errors: tuple[Sequence[float], Sequence[float]] | None = None,
) -> dict[str, Any]:
    """One set of points. ``key`` names the legend entry that shows and hides it; errors: distances above and below."""
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": list(xs),
        "y": list(ys),
        "text": ["<br>".join(text(line) for line in label.split("\n")) for label in labels],
        "hovertemplate": "%{text}<extra></extra>",
        "meta": key,
        "cliponaxis": False,
        "marker": {
            "symbol": symbol,
            "size": 9,
            "color": f"var:{colour}" if filled else "var:--paper",
            "line": {"width": 1 if filled else 2.2, "color": "var:--paper" if filled else f"var:{colour}"},
        },
    }
    if errors:
        trace["error_y"] = {
            "type": "data",
            "array": list(errors[0]),
            "arrayminus": list(errors[1]),
            "color": f"var:{colour}/0.7",
            "thickness": 1.4,
            "width": 4,
        }
    return trace


def _bars(
    values: Sequence[float], lows: Sequence[float | None], highs: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """Lengths of error bars above and below; 0 where an end is not known."""

    def length(value: float, end: float | None, sign: float) -> float:
        return max(sign * (end - value), 0.0) if end is not None and finite(end) is not None else 0.0

    above = [length(value, end, 1.0) for value, end in zip(values, highs, strict=True)]
    below = [length(value, end, -1.0) for value, end in zip(values, lows, strict=True)]
    return above, below


def _line(xs: Sequence[float], ys: Sequence[float | None], colour: str, key: str, width: float = 2) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(xs),
        "y": list(ys),
        "line": {"color": f"var:{colour}", "width": width},
        "hoverinfo": "skip",
        "meta": key,
    }


def _band(xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str, key: str) -> dict[str, Any]:
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


def _point_label(point: PointRow, target: str, value: float, predicted: float | None, role: str) -> str:
    lines = [f"{point.name} ({role})", f"D = {words.count(point.tokens)} tokens, N = {words.count(point.num_params)}"]
    lines.append(f"{words.metric_label(target)} = {words.significant(value)}")
    if predicted is not None:
        lines.append(f"law: {words.significant(predicted)}")
    return "\n".join(lines)


def _drawn(data: ReportData, target: str, architecture: str) -> list[tuple[PointRow, float]]:
    """Finished points of an architecture with positive value and tokens: what a logarithmic panel can show."""
    pairs = ((p, words.target_value(p, target)) for p in data.points if p.architecture == architecture)
    return [(p, v) for p, v in pairs if p.status == "done" and v is not None and v > 0 and p.tokens]


def law_panels(data: ReportData, target: str, style: Style) -> list[Panel]:
    """One panel per architecture: points over tokens, coloured by scale, with the law's curves and bands.

    All panels share their axes, so that heights can be compared across them.
    """
    groups = {name: _drawn(data, target, name) for name in words.architectures(data)}
    shown = [pair for pairs in groups.values() for pair in pairs]
    if not shown:
        return []
    unit = words.METRIC_UNITS.get(target)
    x_axis = log_axis([p.tokens or 0 for p, _ in shown], "training tokens D", counts=True)
    y_axis = log_axis([v for _, v in shown], f"{words.metric_label(target)}{f' ({unit})' if unit else ''}")
    panels = []
    for architecture, pairs in groups.items():
        if not pairs:
            continue
        law = words.main_law(data, target, architecture)
        traces = _curve_traces(law, pairs, style) if law else []
        traces += [trace for scale in style.scales for trace in _point_traces(law, pairs, scale, target, style)]
        about = (
            f"{architecture}: {words.plural(len(pairs), 'point')} of {words.inline_label(target)} over training tokens"
        )
        if law:
            about += f", with the fitted law: {words.exponents_text(law)}"
        panels.append(Panel(title=architecture, alt=about + ".", traces=traces, layout=_layout(x_axis, y_axis)))
    return panels


def _point_traces(
    law: LawRow | None, pairs: list[tuple[PointRow, float]], scale: str, target: str, style: Style
) -> list[dict[str, Any]]:
    colour, symbol = style.scale(scale)
    held_out = {point.name for point in law.held_out} if law else set()
    traces = []
    for filled in (True, False):
        chosen = []
        for point, value in pairs:
            out = point.name in held_out or (law is not None and point.name in law.excluded)
            if point.scale != scale or out is filled:
                continue
            role = (
                "excluded" if law and point.name in law.excluded else "held out" if out else "fitted" if law else "done"
            )
            predicted = law.predict(point.num_params, point.tokens or 0) if law else None
            chosen.append((point, value, _point_label(point, target, value, predicted, role)))
        if chosen:
            labels = [label for *_, label in chosen]
            trace = _markers(
                [p.tokens or 0 for p, *_ in chosen],
                [v for _, v, _ in chosen],
                labels,
                colour=colour,
                symbol=symbol,
                key=scale,
                filled=filled,
            )
            traces.append(trace)
    return traces


def _curve_traces(law: LawRow, pairs: list[tuple[PointRow, float]], style: Style) -> list[dict[str, Any]]:
    """The law's own samples where given, else its formula over the range of the points, at each scale's N."""
    traces: list[dict[str, Any]] = []
    for curve in law.curves:
        colour = style.scale(curve.scale)[0]
        if curve.low and curve.high:
            traces.append(_band(curve.tokens, curve.low, curve.high, colour, curve.scale))
        traces.append(_line(curve.tokens, curve.values, colour, curve.scale))
    if law.curves:
        return traces
    low, high = min(p.tokens or 1 for p, _ in pairs), max(p.tokens or 1 for p, _ in pairs)
    tokens = [low * (high / low) ** (step / 40) for step in range(41)] if high > low else [low * 0.8, low * 1.25]
    sizes = {p.scale: p.num_params for p, _ in pairs}
    for scale, num_params in [("", 1)] if law.form == "d" else sorted(sizes.items(), key=lambda item: item[1]):
        values = [value for t in tokens if (value := law.predict(num_params, t)) is not None]
        if len(values) == len(tokens):
            traces.append(_line(tokens, values, style.scale(scale)[0] if scale else "--ink", scale))
    return traces


def predicted_panel(data: ReportData, target: str, style: Style) -> Panel | None:
    """Predicted against measured for every architecture's drawn law: fitted filled, held out open with intervals."""
    laws = [law for name in style.architectures if (law := words.main_law(data, target, name))]
    traces: list[dict[str, Any]] = []
    values: list[float] = []
    for law in laws:
        colour, symbol = style.architecture(law.architecture)
        for points, filled in ((law.fitted, True), (law.held_out, False)):
            kept = [(p, m, v) for p in points if (m := finite(p.measured)) and (v := _predicted(law, p)) and m > 0 < v]
            if not kept:
                continue
            values += [value for _, m, v in kept for value in (m, v)]
            labels = [_predicted_label(law, p, m, v, filled) for p, m, v in kept]
            errors = None
            if not filled:
                errors = _bars([v for *_, v in kept], [p.low for p, *_ in kept], [p.high for p, *_ in kept])
                values += [min(v + up, 1.3 * v) for (*_, v), up in zip(kept, errors[0], strict=True)]
                values += [max(v - down, v / 1.3) for (*_, v), down in zip(kept, errors[1], strict=True)]
            traces.append(
                _markers(
                    [m for _, m, _ in kept],
                    [v for *_, v in kept],
                    labels,
                    colour=colour,
                    symbol=symbol,
                    key=law.architecture,
                    filled=filled,
                    errors=errors,
                )
            )
    if not values:
        return None
    x_axis, y_axis = log_axis(values, "measured"), log_axis(values, "predicted by the law")
    ends = [10**value for value in x_axis["range"]]
    diagonal = _line(ends, ends, "--muted", "", width=1) | {
        "line": {"color": "var:--muted", "width": 1, "dash": "dash"}
    }
    names = words.listing(law.architecture for law in laws)
    alt = f"Predicted against measured {words.inline_label(target)} for {names}."
    return Panel(
        title="Predicted against measured",
        alt=alt,
        traces=[diagonal, *traces],
        layout=_layout(x_axis, y_axis, height=400),
    )


def _predicted(law: LawRow, point: LawPoint) -> float | None:
    value = finite(point.predicted)
    return value if value is not None else finite(law.predict(point.num_params, point.tokens))


def _predicted_label(law: LawRow, point: LawPoint, measured: float, predicted: float, filled: bool) -> str:
    error = words.percent(predicted / measured - 1, 2, sign=True)
    lines = [
        f"{point.name} ({'fitted' if filled else 'held out'})",
        f"measured {words.significant(measured)}, predicted {words.significant(predicted)} ({error})",
    ]
    return "\n".join(lines)


def compute_panel(data: ReportData, target: str, style: Style) -> Panel | None:
    """The target over training FLOPs, all architectures in one drawing."""
    traces: list[dict[str, Any]] = []
    xs: list[float] = []
    ys: list[float] = []
    for architecture in style.architectures:
        kept = [
            (p, v) for p, v in _drawn(data, target, architecture) if finite(p.train_flops) and (p.train_flops or 0) > 0
        ]
        if not kept:
            continue
        colour, symbol = style.architecture(architecture)
        flops = [p.train_flops or 0.0 for p, _ in kept]
        labels = [f"{p.name}\n{words.scientific(p.train_flops)} FLOPs, {words.significant(v)}" for p, v in kept]
        traces.append(_markers(flops, [v for _, v in kept], labels, colour=colour, symbol=symbol, key=architecture))
        xs, ys = xs + flops, ys + [v for _, v in kept]
    if not traces:
        return None
    alt = f"{words.metric_label(target)} over training FLOPs for {words.listing(style.architectures)}."
    layout = _layout(log_axis(xs, "training FLOPs"), log_axis(ys, words.metric_label(target)), height=400)
    return Panel(title="Against training compute", alt=alt, traces=traces, layout=layout)


def chance_panels(data: ReportData, metric: str, style: Style) -> list[Panel]:
    """One panel per architecture of a metric with a chance level: values with intervals and a dashed chance line."""
    rows = [p for p in data.points if p.status == "done" and metric in p.metrics and p.tokens]
    rows = [p for p in rows if finite(p.metrics[metric].value) is not None]
    if not rows:
        return []
    x_axis = log_axis([p.tokens or 0 for p in rows], "training tokens D", counts=True)
    top = max(max(p.metrics[metric].value, p.metrics[metric].high or 0, p.metrics[metric].chance or 0) for p in rows)
    y_axis = {
        "range": [0, min(max(top * 1.12, 0.1), 1.04)],
        "tickformat": ".0%",
        "rangemode": "tozero",
        "title": {"text": text(words.metric_label(metric)), "standoff": 6},
    }
    panels = []
    for architecture in style.architectures:
        mine = [p for p in rows if p.architecture == architecture]
        if not mine:
            continue
        chance = next((c for p in mine if (c := p.metrics[metric].chance) is not None), None)
        traces = []
        if chance is not None:
            ends = [10**value for value in x_axis["range"]]
            traces.append(
                _line(ends, [chance, chance], "--muted", "")
                | {"line": {"color": "var:--muted", "width": 1.5, "dash": "dash"}}
            )
        traces += [
            _chance_trace(mine, scale, metric, style) for scale in style.scales if any(p.scale == scale for p in mine)
        ]
        about = words.chance_sentence(metric, [p.metrics[metric] for p in mine])
        panels.append(
            Panel(title=architecture, alt=f"{architecture}: {about}", traces=traces, layout=_layout(x_axis, y_axis))
        )
    return panels


def _chance_trace(points: list[PointRow], scale: str, metric: str, style: Style) -> dict[str, Any]:
    colour, symbol = style.scale(scale)
    mine = [p for p in points if p.scale == scale]
    measured = [p.metrics[metric] for p in mine]
    labels = [
        f"{p.name}\n{words.percent(m.value)} {_percent_interval(m.low, m.high)}, chance {words.percent(m.chance)}"
        for p, m in zip(mine, measured, strict=True)
    ]
    errors = _bars([m.value for m in measured], [m.low for m in measured], [m.high for m in measured])
    return _markers(
        [p.tokens or 0 for p in mine],
        [m.value for m in measured],
        labels,
        colour=colour,
        symbol=symbol,
        key=scale,
        errors=errors,
    )


def _percent_interval(low: float | None, high: float | None) -> str:
    return (
        f"[{words.percent(low)}, {words.percent(high)}]" if finite(low) is not None and finite(high) is not None else ""
    )


def training_panels(data: ReportData, style: Style) -> list[Panel]:
    """One panel per architecture: the trunks' training loss over tokens, coloured by scale."""
    trunks = [trunk for trunk in data.trunks if len(trunk.curve_tokens) > 1]
    xs = [x for trunk in trunks for x in trunk.curve_tokens]
    ys = [y for trunk in trunks for y in trunk.curve_loss]
    x_axis, y_axis = log_axis(xs, "tokens seen", counts=True), log_axis(ys, "training loss (nats per token)")
    panels = []
    for architecture in style.architectures:
        mine = [trunk for trunk in trunks if trunk.architecture == architecture]
        traces = [
            _line(
                trunk.curve_tokens, [finite(y) for y in trunk.curve_loss], style.scale(trunk.scale)[0], trunk.scale, 1.6
            )
            | {"text": text(trunk.name), "hoverinfo": "text+x+y"}
            for trunk in mine
        ]
        if traces:
            alt = f"{architecture}: training loss over tokens of {words.plural(len(mine), 'trunk')}."
            panels.append(Panel(title=architecture, alt=alt, traces=traces, layout=_layout(x_axis, y_axis, height=250)))
    return panels
