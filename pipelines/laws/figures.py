"""Figures of laws as plotly objects: pure functions of laws and points; nothing is written here except by ``save``.

Colours are Okabe and Ito's (2008), told apart by people with any colour vision; marks and dashes repeat the
distinction, so that a print in grey can be read. HTML is self-contained; PNG, SVG and PDF are drawn by matplotlib
(static.py), since plotly's own export needs a browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from gridlaw.pipelines.laws.diagnostics import residuals
from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.laws.forms import Array
from gridlaw.pipelines.laws.optimum import optimal_path
from gridlaw.pipelines.laws.verify import Verification
from gridlaw.platform.errors import BadInput

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
STEPS = 80
CLOUD_POINTS = 400  # draws shown per law: more only make the page heavy


def _colour(place: int, opacity: float = 1.0) -> str:
    red, green, blue = (int(PALETTE[place % len(PALETTE)][i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def _layout(figure: go.Figure, *, title: str, x: str, y: str, log_x: bool = True, log_y: bool = False) -> go.Figure:
    figure.update_layout(
        template="simple_white", title={"text": title, "font": {"size": 16}}, font={"family": "sans-serif", "size": 13},
        legend={"orientation": "h", "y": -0.22}, margin={"l": 70, "r": 20, "t": 50, "b": 60}, hovermode="closest",
    )  # fmt: skip
    figure.update_xaxes(title_text=x, type="log" if log_x else "linear", exponentformat="power", showgrid=True)
    figure.update_yaxes(title_text=y, type="log" if log_y else "linear", exponentformat="power", showgrid=True)
    return figure


def _size(num_params: float) -> str:
    for limit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if num_params >= limit:
            return f"{num_params / limit:.3g}{letter}"
    return f"{num_params:.3g}"


def _band(figure: go.Figure, x: Array, low: Array, high: Array, place: int, group: str) -> None:
    figure.add_trace(
        go.Scatter(
            x=np.concatenate([x, x[::-1]]), y=np.concatenate([high, low[::-1]]), fill="toself", mode="lines",
            fillcolor=_colour(place, 0.16), line={"width": 0}, hoverinfo="skip", showlegend=False, legendgroup=group,
        )
    )  # fmt: skip


def _token_grid(tokens: Array, reach: float) -> Array:
    return np.geomspace(float(tokens.min()) / 1.3, float(tokens.max()) * reach, STEPS)


def curves(
    laws: Mapping[str, LawFit],
    *,
    target: str = "loss",
    num_params: float | None = None,
    held_out: Mapping[str, Verification] | None = None,
    reach: float = 3.0,
) -> go.Figure:
    """Measured points and fitted curves against tokens, with the bands of the curves.

    One law: a curve per scale. Several: one per architecture at ``num_params`` (default: the largest N of the first
    law). Held-out points are open marks. ``reach``: how far beyond the largest budget curves go.
    """
    if not laws:
        raise BadInput("laws", seen=0, allowed="at least one law")
    figure = go.Figure()
    held = held_out or {}
    if len(laws) == 1:
        name, law = next(iter(laws.items()))
        sizes = np.unique(law.points.num_params)
        if name in held:
            sizes = np.unique(np.concatenate([sizes, held[name].num_params]))
        for place, size in enumerate(sizes):
            _curve(figure, law, float(size), place, f"N = {_size(size)}", held.get(name), reach)
        title = f"{name}: {target} against tokens"
    else:
        first = next(iter(laws.values()))
        size = float(first.points.num_params.max()) if num_params is None else num_params
        for place, (name, law) in enumerate(laws.items()):
            _curve(figure, law, size, place, name, held.get(name), reach)
        title = f"{target} against tokens at N = {_size(size)}"
    return _layout(figure, title=title, x="training tokens D", y=target)


def _curve(
    figure: go.Figure, law: LawFit, size: float, place: int, label: str, held: Verification | None, reach: float
) -> None:
    points = law.points
    grid = _token_grid(points.num_tokens, reach)
    if len(law.draws):
        low, high = law.predict_interval(size, grid, kind="curve")
        _band(figure, grid, low, high, place, label)
    line = {"color": _colour(place), "width": 2, "dash": DASHES[place % len(DASHES)]}
    figure.add_trace(
        go.Scatter(x=grid, y=law.predict(size, grid), mode="lines", line=line, name=label, legendgroup=label)
    )
    mine = np.isclose(points.num_params, size, rtol=1e-6)
    sets = [(points.num_tokens[mine], points.values[mine], SYMBOLS[place % len(SYMBOLS)], "measured")]
    if held is not None:
        out = np.isclose(held.num_params, size, rtol=1e-6)
        sets.append((held.num_tokens[out], held.values[out], SYMBOLS[place % len(SYMBOLS)] + "-open", "held out"))
    for tokens, values, symbol, kind in sets:
        if len(tokens):
            marker = {"color": _colour(place), "symbol": symbol, "size": 9, "line": {"width": 1.5}}
            figure.add_trace(
                go.Scatter(
                    x=tokens, y=values, mode="markers", marker=marker, legendgroup=label, showlegend=False,
                    name=f"{label}, {kind}",
                )
            )  # fmt: skip


def predicted_against_measured(
    laws: Mapping[str, LawFit], *, target: str = "loss", held_out: Mapping[str, Verification] | None = None
) -> go.Figure:
    """Predicted against measured values, fitted (filled) and held out (open, with their intervals), and the
    diagonal.
    """
    figure = go.Figure()
    ends = []
    for place, (name, law) in enumerate(laws.items()):
        points = law.points
        ends += [points.values.min(), points.values.max()]
        marker = {"color": _colour(place), "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 8}
        predicted = law.predict(points.num_params, points.num_tokens)
        figure.add_trace(
            go.Scatter(x=points.values, y=predicted, mode="markers", marker=marker, name=f"{name}, fitted")
        )
        held = (held_out or {}).get(name)
        if held is not None:
            ends += [held.values.min(), held.values.max()]
            marker = {**marker, "symbol": SYMBOLS[place % len(SYMBOLS)] + "-open", "size": 10}
            bars = {
                "type": "data",
                "symmetric": False,
                "array": held.high - held.predicted,
                "arrayminus": held.predicted - held.low,
            }
            if not np.isfinite(held.low).all():
                bars = {}
            figure.add_trace(
                go.Scatter(
                    x=held.values,
                    y=held.predicted,
                    mode="markers",
                    marker=marker,
                    error_y=bars,
                    name=f"{name}, held out",
                )
            )
    span = [min(ends), max(ends)]
    figure.add_trace(
        go.Scatter(x=span, y=span, mode="lines", line={"color": "grey", "width": 1, "dash": "dot"}, name="equal")
    )
    return _layout(figure, title=f"{target}: predicted against measured", x="measured", y="predicted", log_x=False)


def contours(
    law: LawFit, *, name: str = "", target: str = "loss", flops_per_param_token: float = 6.0, reach: float = 10.0
) -> go.Figure:
    """The law over N and D: contours, iso-FLOP lines (flops_per_param_token · N · D), the compute-optimal path and
    the points.
    """
    points = law.points
    n = np.geomspace(points.num_params.min() / 2, points.num_params.max() * reach, STEPS)
    d = np.geomspace(points.num_tokens.min() / 2, points.num_tokens.max() * reach, STEPS)
    figure = go.Figure(
        go.Contour(
            x=n, y=d, z=law.predict(n[None, :], d[:, None]), colorscale="Cividis", ncontours=16,
            contours={"coloring": "lines", "showlabels": True}, line={"width": 1.5}, colorbar={"title": target},
            name=target,
        )
    )  # fmt: skip
    lowest, highest = flops_per_param_token * n[0] * d[0], flops_per_param_token * n[-1] * d[-1]
    for exponent in range(int(np.ceil(np.log10(lowest))), int(np.log10(highest)) + 1):
        tokens = 10.0**exponent / (flops_per_param_token * n)
        seen = (tokens >= d[0]) & (tokens <= d[-1])
        if seen.sum() > 1:
            line = {"color": "grey", "width": 1, "dash": "dot"}
            label = f"10<sup>{exponent}</sup> FLOPs"
            marked = int(np.flatnonzero(seen)[len(np.flatnonzero(seen)) // 8])
            figure.add_trace(
                go.Scatter(x=n[seen], y=tokens[seen], mode="lines", line=line, name=label, showlegend=False)
            )
            figure.add_trace(
                go.Scatter(
                    x=[n[marked]], y=[tokens[marked]], mode="text", text=[label], textposition="top right",
                    textfont={"color": "grey", "size": 11}, showlegend=False, hoverinfo="skip",
                )
            )  # fmt: skip
    if law.alpha and law.beta:
        flops = np.geomspace(lowest, highest, STEPS)
        best_n, best_d = optimal_path(law, flops, flops_per_param_token=flops_per_param_token)
        inside = (best_n >= n[0]) & (best_n <= n[-1]) & (best_d >= d[0]) & (best_d <= d[-1])
        line = {"color": PALETTE[1], "width": 3}
        figure.add_trace(
            go.Scatter(x=best_n[inside], y=best_d[inside], mode="lines", line=line, name="compute-optimal")
        )
    marker = {"color": PALETTE[6], "symbol": "circle", "size": 7}
    figure.add_trace(go.Scatter(x=points.num_params, y=points.num_tokens, mode="markers", marker=marker, name="points"))
    title = f"{name + ': ' if name else ''}{target} over N and D, dotted: equal FLOPs"
    return _layout(figure, title=title, x="parameters N", y="training tokens D", log_y=True)


def residual_plot(law: LawFit, *, name: str = "", target: str = "loss") -> go.Figure:
    """Log residuals against tokens, one mark per scale; outliers are ringed."""
    frame = residuals(law)
    figure = go.Figure()
    for place, (size, rows) in enumerate(frame.groupby("num_params")):
        marker = {"color": _colour(place), "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 9}
        label = f"N = {_size(float(size))}"  # type: ignore[arg-type]
        figure.add_trace(
            go.Scatter(x=rows.num_tokens, y=100 * rows.log_residual, mode="markers", marker=marker, name=label)
        )
    outliers = frame[frame.outlier]
    if len(outliers):
        marker = {"color": "black", "symbol": "circle-open", "size": 17, "line": {"width": 1.5}}
        figure.add_trace(
            go.Scatter(
                x=outliers.num_tokens, y=100 * outliers.log_residual, mode="markers", marker=marker, name="outlier"
            )
        )
    span = [frame.num_tokens.min() / 1.3, frame.num_tokens.max() * 1.3]
    line = {"color": "grey", "width": 1, "dash": "dot"}
    figure.add_trace(go.Scatter(x=span, y=[0, 0], mode="lines", line=line, showlegend=False))
    title = f"{name + ': ' if name else ''}residuals of {target}"
    return _layout(figure, title=title, x="training tokens D", y="log residual, %")


def exponent_clouds(laws: Mapping[str, LawFit], *, reach: float = 1.0) -> go.Figure:
    """alpha and beta of the resamples of each law, with the fits as large marks. Axes end at ``reach`` × 99th
    percentile.
    """
    figure = go.Figure()
    ends: list[list[float]] = [[], []]
    shown = {name: law for name, law in laws.items() if {"alpha", "beta"} <= set(law.parameters)}
    if not shown:
        raise BadInput("laws", seen=list(laws), allowed="a law with alpha and beta (form nd or nde)")
    for place, (name, law) in enumerate(shown.items()):
        columns = [list(law.parameters).index(exponent) for exponent in ("alpha", "beta")]
        if len(law.draws):
            drawn = law.draws[:CLOUD_POINTS, columns]
            marker = {"color": _colour(place, 0.35), "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 4}
            figure.add_trace(
                go.Scatter(
                    x=drawn[:, 0], y=drawn[:, 1], mode="markers", marker=marker, showlegend=False, hoverinfo="skip"
                )
            )
            for end, column in zip(ends, drawn.T, strict=True):
                end.append(float(np.percentile(column, 97.5)))
        marker = {
            "color": _colour(place),
            "symbol": SYMBOLS[place % len(SYMBOLS)],
            "size": 13,
            "line": {"color": "white", "width": 2},
        }
        figure.add_trace(go.Scatter(x=[law.alpha], y=[law.beta], mode="markers", marker=marker, name=name))
        for end, value in zip(ends, (law.alpha, law.beta), strict=True):
            end.append(float(value or 0.0))
    _layout(figure, title="Exponents under resampling", x="alpha (N)", y="beta (D)", log_x=False)
    figure.update_xaxes(range=[0, 1.15 * reach * max(ends[0])])
    figure.update_yaxes(range=[0, 1.15 * reach * max(ends[1])])
    return figure


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


def all_figures(
    laws: Mapping[str, LawFit], *, target: str = "loss", held_out: Mapping[str, Verification] | None = None
) -> dict[str, Any]:
    """Every figure that these laws allow, by a name fit for a file."""
    found: dict[str, Any] = {"predicted": predicted_against_measured(laws, target=target, held_out=held_out)}
    if len(laws) > 1:
        found["curves"] = curves(laws, target=target, held_out=held_out)
    if any({"alpha", "beta"} <= set(law.parameters) for law in laws.values()):
        found["exponents"] = exponent_clouds(laws)
    for name, law in laws.items():
        found[f"curves-{name}"] = curves({name: law}, target=target, held_out=held_out)
        found[f"residuals-{name}"] = residual_plot(law, name=name, target=target)
        if {"alpha", "beta"} <= set(law.parameters):
            found[f"contours-{name}"] = contours(law, name=name, target=target)
    return found
