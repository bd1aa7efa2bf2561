"""The report's figures: its laws by ``gridlaw.pipelines.figures``, and what only a report shows.

Plain dicts, one panel each, coloured by names (``gridlaw.pipelines.figures.marks``). Nothing here imports plotly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gridlaw.pipelines.figures.colours import Style
from gridlaw.pipelines.figures.drawn import DrawnLaw, DrawnPoint
from gridlaw.pipelines.figures.marks import MIDDLE, Panel, bars, layout, line, linear_axis, log_axis, markers, text
from gridlaw.pipelines.figures.needles import needle_panel
from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.data import LawRow, PointRow, ReportData, finite


def style_of(data: ReportData) -> Style:
    """Colours and symbols of the report's scales and architectures."""
    return Style(scales=tuple(words.scales(data)), architectures=tuple(words.architectures(data)))


def target_title(target: str) -> str:
    """A target as the title of an axis, with its unit."""
    unit = words.METRIC_UNITS.get(target)
    return f"{words.metric_label(target)}{f' ({unit})' if unit else ''}"


def drawn_laws(data: ReportData, target: str) -> list[DrawnLaw]:
    """The law that is drawn of each architecture (``words.main_law``) with its finished points."""
    found = []
    for architecture in words.architectures(data):
        row = words.main_law(data, target, architecture)
        law = LawFit.from_dict(row.fit) if row is not None and row.fit else None
        held_out = {point.name: point for point in row.held_out} if row is not None else {}
        points = []
        for point, value in _drawn(data, target, architecture):
            held = held_out.get(point.name)
            points.append(
                DrawnPoint(
                    name=point.name, scale=point.scale, num_params=point.num_params, tokens=point.tokens or 0,
                    value=value, role=_role(row, point.name),
                    predicted=finite(law.predict(point.num_params, point.tokens or 0)) if law is not None else None,
                    low=held.low if held else None, high=held.high if held else None,
                )
            )  # fmt: skip
        found.append(DrawnLaw(name=architecture, law=law, points=tuple(points)))
    return found


def _role(row: LawRow | None, name: str) -> str:
    if row is None:
        return "measured"
    if name in {point.name for point in row.fitted}:
        return "fitted"
    return "held out" if name in {point.name for point in row.held_out} else "excluded"


def _drawn(data: ReportData, target: str, architecture: str) -> list[tuple[PointRow, float]]:
    """Finished points of an architecture with positive value and tokens: what a logarithmic panel can show."""
    pairs = ((p, words.target_value(p, target)) for p in data.points if p.architecture == architecture)
    return [(p, v) for p, v in pairs if p.status == "done" and v is not None and v > 0 and p.tokens]


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
        traces.append(markers(flops, [v for _, v in kept], labels, colour=colour, symbol=symbol, key=architecture))
        xs, ys = xs + flops, ys + [v for _, v in kept]
    if not traces:
        return None
    alt = f"{words.metric_label(target)} over training FLOPs for {words.listing(style.architectures)}."
    drawn = layout(log_axis(xs, "training FLOPs"), log_axis(ys, words.metric_label(target)), height=MIDDLE)
    return Panel(title="Against training compute", alt=alt, traces=traces, layout=drawn)


def chance_panels(data: ReportData, metric: str, style: Style) -> list[Panel]:
    """One panel per architecture of a metric with a chance level: values with intervals and a dashed chance line."""
    rows = [p for p in data.points if p.status == "done" and metric in p.metrics and p.tokens]
    rows = [p for p in rows if finite(p.metrics[metric].value) is not None]
    if not rows:
        return []
    x_axis = log_axis([p.tokens or 0 for p in rows], "training tokens D", counts=True)
    top = max(max(p.metrics[metric].value, p.metrics[metric].high or 0, p.metrics[metric].chance or 0) for p in rows)
    y_axis = linear_axis(
        0, min(max(top * 1.12, 0.1), 1.04), words.metric_label(metric), tickformat=".0%", rangemode="tozero"
    )
    panels = []
    for architecture in style.architectures:
        mine = [p for p in rows if p.architecture == architecture]
        if not mine:
            continue
        chance = next((c for p in mine if (c := p.metrics[metric].chance) is not None), None)
        traces = []
        if chance is not None:
            ends = [10**value for value in x_axis["range"]]
            traces.append(line(ends, [chance, chance], "--muted", "", width=1.5, dash="dash"))
        traces += [
            _chance_trace(mine, scale, metric, style) for scale in style.scales if any(p.scale == scale for p in mine)
        ]
        about = words.chance_sentence(metric, [p.metrics[metric] for p in mine])
        panels.append(
            Panel(title=architecture, alt=f"{architecture}: {about}", traces=traces, layout=layout(x_axis, y_axis))
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
    return markers(
        [p.tokens or 0 for p in mine],
        [m.value for m in measured],
        labels,
        colour=colour,
        symbol=symbol,
        key=scale,
        y_errors=bars([m.value for m in measured], [m.low for m in measured], [m.high for m in measured]),
    )


def _percent_interval(low: float | None, high: float | None) -> str:
    return (
        f"[{words.percent(low)}, {words.percent(high)}]" if finite(low) is not None and finite(high) is not None else ""
    )


def heat_panels(data: ReportData) -> list[Panel]:
    """One map per architecture and measure: needles that were right by depth and length."""
    panels = []
    for each in data.heat_maps:
        panel = needle_panel(each.to_dict(), "shares", title=f"{each.point}: {each.measure}", bar="share right")
        guess = f" Chance is {words.percent(each.chance)}." if each.chance is not None else ""
        panels.append(replace(panel, alt=f"Needles, {panel.alt}{guess}"))
    return panels


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
            line(
                trunk.curve_tokens,
                [finite(y) for y in trunk.curve_loss],
                style.scale(trunk.scale)[0],
                trunk.scale,
                width=1.6,
            )
            | {"text": text(trunk.name), "hoverinfo": "text+x+y"}
            for trunk in mine
        ]
        if traces:
            alt = f"{architecture}: training loss over tokens of {words.plural(len(mine), 'trunk')}."
            panels.append(Panel(title=architecture, alt=alt, traces=traces, layout=layout(x_axis, y_axis, height=250)))
    return panels
