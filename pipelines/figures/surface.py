"""Laws over N and D, and the spread of their exponents, as panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gridlaw.pipelines.figures.colours import RAMP, Style
from gridlaw.pipelines.figures.drawn import STEPS, TOKENS_TITLE, DrawnLaw, DrawnPoint, value_label, with_exponents
from gridlaw.pipelines.figures.marks import MIDDLE, TALL, Panel, bars, layout, line, log_axis, markers, note, round_step
from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.laws.forms import Array
from gridlaw.pipelines.laws.optimum import optimal_path
from gridlaw.pipelines.report import words

CLOUD_POINTS = 400  # resamples shown of a law: more only make the page heavy
LEAST_EXPONENT = 0.01  # on the axes of clouds: a term with less hardly falls
MOST_LEVELS = 20
FLOPS_PER_PARAM_TOKEN = 6.0
PARAMS_TITLE = "parameters N"


def contour_panels(
    laws: Sequence[DrawnLaw],
    label: str,
    *,
    flops_per_param_token: float = FLOPS_PER_PARAM_TOKEN,
    reach: float = 10.0,
) -> list[Panel]:
    """One panel per law in N and D: contours, dotted lines of equal FLOPs (flops_per_param_token · N · D), the
    compute-optimal split, and the points. The axes and levels are shared.
    """
    chosen = with_exponents(laws)
    points = [point for each, _ in chosen for point in each.points]
    if not points:
        return []
    n = _around([point.num_params for point in points], reach)
    d = _around([point.tokens for point in points], reach)
    levels = _levels([law for _, law in chosen], points, n, d)
    panels = []
    for each, law in chosen:
        traces = [_contour(law, n, d, levels, label), *_iso_flops(n, d, flops_per_param_token)]
        traces += _optimum(law, n, d, flops_per_param_token)
        for filled in (True, False):
            mine = [point for point in each.points if point.filled is filled]
            if mine:
                traces.append(
                    markers(
                        [p.num_params for p in mine], [p.tokens for p in mine], [value_label(p, label) for p in mine],
                        colour="--ink", symbol="circle", key="", filled=filled, size=6,
                    ) | {"name": "fitted" if filled else "held out"}
                )  # fmt: skip
        about = f"{each.name}: contours of {label} by the law {law.formula} over parameters and tokens, lines of equal "
        about += "FLOPs and the compute-optimal split."
        x_axis, y_axis = log_axis(n, PARAMS_TITLE, counts=True), log_axis(d, TOKENS_TITLE, counts=True)
        panels.append(Panel(title=each.name, alt=about, traces=traces, layout=layout(x_axis, y_axis, height=MIDDLE)))
    return panels


def _around(values: Sequence[float], reach: float) -> Array:
    return np.geomspace(min(values) / 2, max(values) * reach, STEPS)


def _levels(laws: Sequence[LawFit], points: Sequence[DrawnPoint], n: Array, d: Array) -> tuple[float, float, float]:
    """First, last and step of the contours: round, from the lowest value drawn to the highest among the points."""
    corner = min(point.num_params for point in points), min(point.tokens for point in points)
    lows = [value for law in laws if np.isfinite(value := law.predict(n[-1], d[-1]))]
    highs = [value for law in laws if np.isfinite(value := law.predict(*corner))]
    highest = max([*(point.value for point in points), *(min(v, 2 * max(p.value for p in points)) for v in highs)])
    lowest = min([*(point.value for point in points), *lows])
    step = round_step(lowest, highest, MOST_LEVELS) if highest > lowest else 1.0
    return step * np.ceil(lowest / step), step * np.floor(highest / step), step


def _contour(law: LawFit, n: Array, d: Array, levels: tuple[float, float, float], label: str) -> dict[str, Any]:
    z = np.asarray(law.predict(n[None, :], d[:, None]))
    z = np.where(z <= levels[1] + levels[2], z, np.nan)  # beyond the last level a runaway law is all cliff
    cells = [[value if np.isfinite(value) else None for value in row] for row in z.tolist()]
    return {
        "type": "contour", "x": n.tolist(), "y": d.tolist(), "z": cells, "colorscale": RAMP, "reversescale": True,
        "zmin": levels[0], "zmax": levels[1], "showscale": False, "line": {"width": 1.3}, "meta": "", "name": label,
        "contours": {
            "coloring": "lines", "showlabels": True, "start": levels[0], "end": levels[1], "size": levels[2],
            "labelfont": {"size": 10, "color": "var:--ink"},
        },
        "hovertemplate": "N %{x:.3s}, D %{y:.3s}: %{z:.4g}<extra></extra>",
    }  # fmt: skip


def _iso_flops(n: Array, d: Array, flops_per_param_token: float) -> list[dict[str, Any]]:
    traces = []
    lowest, highest = flops_per_param_token * n[0] * d[0], flops_per_param_token * n[-1] * d[-1]
    for exponent in range(int(np.ceil(np.log10(lowest))), int(np.log10(highest)) + 1):
        tokens = 10.0**exponent / (flops_per_param_token * n)
        seen = np.flatnonzero((tokens >= d[0]) & (tokens <= d[-1]))
        if len(seen) > 1:
            name = f"10<sup>{exponent}</sup> FLOPs"
            traces.append(
                line(n[seen].tolist(), tokens[seen].tolist(), "--muted", "", width=1, dash="dot", name=name)
                | {"name": name, "showlegend": False}
            )
            marked = seen[len(seen) // 8]
            traces.append(note(float(n[marked]), float(tokens[marked]), f"10<sup>{exponent}</sup>"))
    return traces


def _optimum(law: LawFit, n: Array, d: Array, flops_per_param_token: float) -> list[dict[str, Any]]:
    if not law.alpha or not law.beta:
        return []
    flops = flops_per_param_token * np.geomspace(n[0] * d[0], n[-1] * d[-1], STEPS)
    best_n, best_d = optimal_path(law, flops, flops_per_param_token=flops_per_param_token)
    inside = (best_n >= n[0]) & (best_n <= n[-1]) & (best_d >= d[0]) & (best_d <= d[-1])
    if inside.sum() < 2:
        return []
    return [line(best_n[inside].tolist(), best_d[inside].tolist(), "--arch-1", "", width=3, name="compute-optimal")]


def cloud_panel(laws: Sequence[DrawnLaw], style: Style) -> Panel | None:
    """alpha and beta of the resamples of each law, the fits as large marks with their intervals as bars.

    The axes hold 95 % of every cloud; what lies beyond is drawn at their edge.
    """
    chosen = with_exponents(laws)
    if not chosen:
        return None
    clouds = [_cloud(law) for _, law in chosen]
    axes = [
        _exponent_axis([law.parameters[name] for _, law in chosen], [cloud[:, place] for cloud in clouds], title)
        for place, (name, title) in enumerate((("alpha", "α, exponent of N"), ("beta", "β, exponent of D")))
    ]
    ends_2E = np.array([[10.0 ** axis["range"][end] for axis in axes] for end in (0, 1)])
    traces, marks = [], []
    for (each, law), cloud in zip(chosen, clouds, strict=True):
        colour, symbol = style.architecture(each.name)
        if len(cloud):
            traces.append(_cloud_trace(np.clip(cloud, *ends_2E), colour, symbol, each.name))
        marks.append(_exponents_mark(each.name, law, colour, symbol, ends_2E))
    names = words.listing(each.name for each, _ in chosen)
    alt = f"Exponents alpha and beta of {names} under resampling, with the fits and their intervals."
    title = "Exponents under resampling"
    return Panel(title=title, alt=alt, traces=[*traces, *marks], layout=layout(axes[0], axes[1], height=TALL))


def _cloud(law: LawFit) -> Array:
    """(alpha, beta) of resamples, evenly thinned, [R, 2]."""
    columns = [list(law.parameters).index(name) for name in ("alpha", "beta")]
    draws: Array = law.draws[:: max(1, len(law.draws) // CLOUD_POINTS), columns]
    return draws[np.isfinite(draws).all(axis=1)]


def _exponent_axis(fitted: Sequence[float], drawn: Sequence[Array], title: str) -> dict[str, Any]:
    """A logarithmic axis over the fits and the middle 95 % of every cloud; an exponent of 0 is at its lower edge."""
    values = [*fitted, *(float(np.percentile(column, at)) for column in drawn if len(column) for at in (2.5, 97.5))]
    return log_axis([max(value, LEAST_EXPONENT) for value in values], title)


def _cloud_trace(cloud: Array, colour: str, symbol: str, key: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "x": cloud[:, 0].tolist(), "y": cloud[:, 1].tolist(),
        "marker": {"color": f"var:{colour}/0.35", "symbol": symbol, "size": 4},
        "hoverinfo": "skip", "meta": key, "showlegend": False,
    }  # fmt: skip


def _exponents_mark(name: str, law: LawFit, colour: str, symbol: str, ends_2E: Array) -> dict[str, Any]:
    texts, places, errors = [name], [], []
    for number, (exponent, letter) in enumerate((("alpha", "α"), ("beta", "β"))):
        value, span = law.parameters[exponent], law.intervals.get(exponent, (None, None))
        shown, *bounds = (None if x is None else float(np.clip(x, *ends_2E[:, number])) for x in (value, *span))
        assert shown is not None, "a fit has a value"
        places.append(shown)
        errors.append(bars([shown], [bounds[0]], [bounds[1]]))
        texts.append(f"{letter} {words.significant(value, 3)} {words.interval(*span)}")
    return markers(
        [places[0]], [places[1]], ["\n".join(texts)],
        colour=colour, symbol=symbol, key=name, size=13, x_errors=errors[0], y_errors=errors[1],
    )  # fmt: skip
