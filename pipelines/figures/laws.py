"""Figures of fitted laws, the same in the report, in files and in notebooks: laws and points in, panels out.

Here: curves with bands, predicted against measured, residuals, and architectures against each other; the laws over N
and D and the clouds of their exponents are in surface.py. Nothing is computed here that ``gridlaw.pipelines.laws`` does
not compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gridlaw.pipelines.figures.colours import Style
from gridlaw.pipelines.figures.drawn import (
    TOKENS_TITLE,
    DrawnLaw,
    DrawnPoint,
    curve,
    size_name,
    token_grid,
    value_label,
)
from gridlaw.pipelines.figures.marks import (
    MIDDLE,
    TALL,
    Panel,
    band,
    bars,
    layout,
    line,
    linear_axis,
    log_axis,
    markers,
)
from gridlaw.pipelines.laws.compare import gap
from gridlaw.pipelines.laws.diagnostics import residuals
from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.data import finite


def curve_panels(laws: Sequence[DrawnLaw], style: Style, label: str, *, reach: float = 1.3) -> list[Panel]:
    """One panel per architecture: points over tokens, coloured by scale, with the law's curves and bands.

    label: of the target. reach: how far beyond the largest budget curves go. All panels share their axes, so that
    heights can be compared across them.
    """
    shown = [point for each in laws for point in each.points]
    if not shown:
        return []
    x_axis, y_axis = _curve_axes(shown, [each for each in laws if each.law is not None], label, reach)
    panels = []
    for each in laws:
        if not each.points:
            continue
        traces = _curves(each, style, reach) + _point_traces(each.points, style, label)
        about = f"{each.name}: {words.plural(len(each.points), 'point')} of {label} over training tokens"
        if each.law is not None:
            about += f", with the fitted law {each.law.formula}"
        panels.append(Panel(title=each.name, alt=about + ".", traces=traces, layout=layout(x_axis, y_axis)))
    return panels


def _curve_axes(
    points: Sequence[DrawnPoint], laws: Sequence[DrawnLaw], label: str, reach: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Axes over the points and the ends of the curves; a runaway curve widens them by half at most."""
    tokens, values = [point.tokens for point in points], [point.value for point in points]
    low, high = min(values) / 1.5, max(values) * 1.5
    ends = [
        value
        for each in laws
        for point in each.points
        for d in (point.tokens, max(tokens) * reach)
        if (value := each.predict(point.num_params, d)) is not None and low < value < high
    ]
    x_axis = log_axis([*tokens, max(tokens) * reach / 1.2], TOKENS_TITLE, counts=True)
    return x_axis, log_axis([*values, *ends], label)


def _curves(each: DrawnLaw, style: Style, reach: float) -> list[dict[str, Any]]:
    """A curve and its band at each N that has points; one for all where the law does not know N."""
    if each.law is None:
        return []
    if "n" not in each.law.form:
        return curve(each.law, each.points[0].num_params, [p.tokens for p in each.points], "--ink", "", reach)
    traces = []
    for scale, num_params in dict.fromkeys((point.scale, point.num_params) for point in each.points):
        tokens = [point.tokens for point in each.points if point.scale == scale]
        traces += curve(each.law, num_params, tokens, style.scale(scale)[0], scale, reach)
    return traces


def _point_traces(points: Sequence[DrawnPoint], style: Style, label: str) -> list[dict[str, Any]]:
    """Marks by scale, filled and open ones apart."""
    traces = []
    for scale in style.scales:
        colour, symbol = style.scale(scale)
        for filled in (True, False):
            chosen = [point for point in points if point.scale == scale and point.filled is filled]
            if chosen:
                traces.append(
                    markers(
                        [point.tokens for point in chosen], [point.value for point in chosen],
                        [value_label(point, label) for point in chosen],
                        colour=colour, symbol=symbol, key=scale, filled=filled,
                    )
                )  # fmt: skip
    return traces


def predicted_panel(laws: Sequence[DrawnLaw], style: Style, label: str) -> Panel | None:
    """Predicted against measured for every law: fitted points filled, held-out ones open with their intervals."""
    traces: list[dict[str, Any]] = []
    values: list[float] = []
    for each in laws:
        colour, symbol = style.architecture(each.name)
        for role in ("fitted", "held out"):
            kept = [(p, predicted) for p in each.points if p.role == role and (predicted := finite(p.predicted))]
            if not kept:
                continue
            chosen, line_values = [p for p, _ in kept], [value for _, value in kept]
            values += [value for p, predicted in kept for value in (p.value, predicted)]
            errors = None
            if role == "held out":
                errors = bars(line_values, [p.low for p in chosen], [p.high for p in chosen])
                values += [min(v + up, 1.3 * v) for v, up in zip(line_values, errors[0], strict=True)]
                values += [max(v - down, v / 1.3) for v, down in zip(line_values, errors[1], strict=True)]
            traces.append(
                markers(
                    [p.value for p in chosen], line_values, [_predicted_label(p, v) for p, v in kept],
                    colour=colour, symbol=symbol, key=each.name, filled=role == "fitted", y_errors=errors,
                )
            )  # fmt: skip
    if not values:
        return None
    x_axis, y_axis = log_axis(values, "measured"), log_axis(values, "predicted by the law")
    ends = [10**value for value in x_axis["range"]]
    diagonal = line(ends, ends, "--muted", "", width=1, dash="dash", name="equal")
    return Panel(
        title="Predicted against measured",
        alt=f"Predicted against measured {label} for {words.listing(each.name for each in laws if each.law)}.",
        traces=[diagonal, *traces],
        layout=layout(x_axis, y_axis, height=TALL),
    )


def _predicted_label(point: DrawnPoint, predicted: float) -> str:
    error = words.percent(predicted / point.value - 1, 2, sign=True)
    return (
        f"{point.name or point.scale} ({point.role})\n"
        f"measured {words.significant(point.value)}, predicted {words.significant(predicted)} ({error})"
    )


def residual_panels(laws: Sequence[DrawnLaw], style: Style) -> list[Panel]:
    """One panel per law: log residuals in percent by budget (tokens per parameter) and scale; outliers are ringed.

    Held-out points are open marks. The axes are shared.
    """
    found = [(each, *_residuals(each)) for each in laws if each.law is not None]
    shown = [each for each in found if each[1]]  # a law's points may be trained again, and have no value meanwhile
    if not shown:
        return []
    most = max(abs(value) for _, rows, _ in shown for _, value in rows)
    x_axis = log_axis(
        [point.tokens / point.num_params for _, rows, _ in shown for point, _ in rows], "tokens per parameter D/N"
    )
    y_axis = linear_axis(-1.15 * most, 1.15 * most, "log residual, %", zeroline=False)
    panels = []
    for each, rows, outliers in shown:
        traces = [line([10**v for v in x_axis["range"]], [0.0, 0.0], "--muted", "", width=1, dash="dash", name="law")]
        for scale in style.scales:
            colour, symbol = style.scale(scale)
            for filled in (True, False):
                chosen = [(p, value) for p, value in rows if p.scale == scale and p.filled is filled]
                if chosen:
                    traces.append(
                        markers(
                            [p.tokens / p.num_params for p, _ in chosen], [value for _, value in chosen],
                            [p.label(f"residual {words.percent(value / 100, 2, sign=True)}") for p, value in chosen],
                            colour=colour, symbol=symbol, key=scale, filled=filled,
                        )
                    )  # fmt: skip
        if outliers:
            traces.append(_rings([(p.tokens / p.num_params, value) for p, value in outliers]))
        alt = f"{each.name}: log residuals of {words.plural(len(rows), 'point')} by tokens per parameter and scale"
        alt += f"; {words.plural(len(outliers), 'outlier')}." if outliers else "; no outliers."
        panels.append(Panel(title=each.name, alt=alt, traces=traces, layout=layout(x_axis, y_axis, height=250)))
    return panels


def _residuals(each: DrawnLaw) -> tuple[list[tuple[DrawnPoint, float]], list[tuple[DrawnPoint, float]]]:
    """Points with their log residuals in percent, and the outliers among the fitted ones."""
    assert each.law is not None, "residuals are of a law"
    frame = residuals(each.law)
    out = {
        (row.num_params, row.num_tokens, row.value)
        for row in frame[frame.outlier].itertuples()
    }  # fmt: skip
    rows = [
        (point, 100.0 * float(np.log(point.value / predicted)))
        for point in each.points
        if point.role in ("fitted", "held out") and (predicted := each.predict(point.num_params, point.tokens))
    ]
    fitted = [(point, value) for point, value in rows if point.role == "fitted"]
    return rows, [(p, value) for p, value in fitted if (p.num_params, p.tokens, p.value) in out]


def _rings(places: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "x": [x for x, _ in places], "y": [y for _, y in places],
        "marker": {"symbol": "circle-open", "size": 18, "color": "var:--bad", "line": {"width": 2}},
        "hoverinfo": "skip", "meta": "", "name": "outlier",
    }  # fmt: skip


def curves_at(
    laws: Sequence[DrawnLaw], style: Style, label: str, *, num_params: float, reach: float = 1.3
) -> Panel | None:
    """One curve per architecture at one N, with bands, and the points measured there."""
    fitted = [(each, each.law) for each in laws if each.law is not None]
    tokens = [point.tokens for each, _ in fitted for point in each.points]
    if not tokens:
        return None
    traces, marks = [], []
    heights: list[float] = []
    for each, law in fitted:
        colour, symbol = style.architecture(each.name)
        traces += curve(law, num_params, tokens, colour, each.name, reach)
        ends = (each.predict(num_params, d) for d in (min(tokens), max(tokens)))
        mine = [point for point in each.points if np.isclose(point.num_params, num_params, rtol=1e-6)]
        heights += [*(value for value in ends if value is not None), *(point.value for point in mine)]
        for filled in (True, False):
            chosen = [point for point in mine if point.filled is filled]
            if chosen:
                marks.append(
                    markers(
                        [p.tokens for p in chosen], [p.value for p in chosen], [value_label(p, label) for p in chosen],
                        colour=colour, symbol=symbol, key=each.name, filled=filled,
                    )
                )  # fmt: skip
    if not heights:
        return None
    names = words.listing(each.name for each, _ in fitted)
    x_axis = log_axis([*tokens, max(tokens) * reach / 1.2], TOKENS_TITLE, counts=True)
    return Panel(
        title=f"Laws at {size_name(num_params)}",
        alt=f"{label} over training tokens at {size_name(num_params)} by the laws of {names}.",
        traces=[*traces, *marks],
        layout=layout(x_axis, log_axis(heights, label), height=MIDDLE),
    )


def gaps_at(
    laws: Sequence[DrawnLaw], style: Style, label: str, *, num_params: float, reach: float = 1.3
) -> Panel | None:
    """Each law minus the one that is lowest at the largest budget, over tokens at one N, with intervals."""
    fitted = [(each, each.law) for each in laws if each.law is not None and len(each.law.draws)]
    tokens = [point.tokens for each, _ in fitted for point in each.points]
    predicted = {each.name: value for each, _ in fitted if (value := each.predict(num_params, max(tokens))) is not None}
    if len(predicted) < 2:
        return None
    best = min(predicted, key=lambda name: predicted[name])
    reference = next(law for each, law in fitted if each.name == best)
    grid = token_grid(tokens, reach)
    traces, most, widest = [line(grid.tolist(), [0.0] * len(grid), style.architecture(best)[0], best)], 0.0, 0.0
    for each, law in fitted:
        if each.name == best or each.name not in predicted:
            continue
        colour, _ = style.architecture(each.name)
        found = gap(law, reference, num_params, grid)
        if not np.isfinite([found.gap, found.low, found.high]).all():
            continue
        traces.insert(0, band(grid.tolist(), found.low.tolist(), found.high.tolist(), colour, each.name))
        traces.append(line(grid.tolist(), found.gap.tolist(), colour, each.name))
        most = max(most, float(np.abs(found.gap).max()))
        widest = max(widest, float(np.abs([found.low, found.high]).max()))
    end = 1.1 * max(min(widest, 4 * most), 1e-9)
    names = words.listing(each.name for each, _ in fitted if each.name != best)
    x_axis = log_axis([*tokens, max(tokens) * reach / 1.2], TOKENS_TITLE, counts=True)
    return Panel(
        title=f"Gap to {best} at {size_name(num_params)}",
        alt=f"Predicted {label} of {names} minus that of {best} over training tokens at {size_name(num_params)}.",
        traces=traces,
        layout=layout(x_axis, linear_axis(-end, end, f"{label}, minus {best}"), height=MIDDLE),
    )
