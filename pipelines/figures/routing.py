"""Where layers that choose take full attention: by layer, over training, against token loss, by position, and needles.

Drawn from the details of the evaluation ``routing``, so that a figure's numbers are the evaluation's; ``training``
beside them is what the runs logged (``pipelines.grid.curves.full_ratio_curve``). Layers are counted from 0, as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gridlaw.pipelines.figures.colours import NUM_SCALE_COLOURS, Style
from gridlaw.pipelines.figures.marks import Panel, layout, line, linear_axis, log_axis, markers, round_step
from gridlaw.pipelines.figures.needles import FULL, needle_panel
from gridlaw.pipelines.report import words

SHARE = "share of full attention"
ANSWERING = "answering needles"
Binned = list[tuple["Routed", list[tuple[float, Mapping[str, Any]]]]]
"""Models with their bins: the place on the axis, and the evaluation's row."""
LEAST_TOP = 0.05  # an axis reaches at least this share, so that noise near 0 is not blown up


@dataclass(frozen=True, kw_only=True)
class Routed:
    """One model. routing: details of the evaluation, with ``training`` where a run is known. key: its legend entry."""

    name: str
    routing: Mapping[str, Any]
    key: str
    colour: str
    symbol: str

    @staticmethod
    def of(results: Mapping[str, Mapping[str, Any]]) -> list[Routed]:
        """From details by name, coloured in order; results of fixed patterns are left out: there is nothing to see."""
        kept = {name: routing for name, routing in results.items() if routing and not routing.get("fixed")}
        style = Style(scales=(), architectures=tuple(kept))
        return [
            Routed(name=name, routing=routing, key=name, colour=colour, symbol=symbol)
            for name, routing in kept.items()
            for colour, symbol in [style.architecture(name)]
        ]


def layer_panel(models: Sequence[Routed]) -> Panel | None:
    """Shares by layer on held-out text (a line) and, for one model, while it answers needles (open marks)."""
    if not models:
        return None
    traces: list[dict[str, Any]] = []
    shown: list[float] = []
    for model in models:
        shares = model.routing["by_layer"]
        layers = list(range(len(shares)))
        labels = _labels(model.name, shares)
        traces += _marked_line(model, layers, shares, labels)
        shown += shares
        if len(models) == 1 and (needles := model.routing.get("needles")):
            answering = needles["by_layer"]
            labels = _labels(ANSWERING, answering)
            marks = markers(layers, answering, labels, colour="--arch-1", symbol="diamond", key=ANSWERING, filled=False)
            traces.append(marks)
            shown += answering
    most = max(len(model.routing["by_layer"]) for model in models)
    ticks = list(range(0, most, math.ceil(most / 12)))
    x_axis = linear_axis(-0.5, most - 0.5, "layer", tickvals=ticks, ticktext=[str(tick) for tick in ticks])
    return Panel(
        title="By layer",
        alt=f"Share of full attention by layer: {_spread(models, 'by_layer')}.",
        traces=traces,
        layout=layout(x_axis, _share_axis(shown)),
    )


def _marked_line(
    model: Routed, xs: Sequence[float], shares: Sequence[float], labels: Sequence[str]
) -> list[dict[str, Any]]:
    return [
        line(xs, shares, model.colour, model.key, width=1.6) | {"showlegend": False},
        markers(xs, shares, labels, colour=model.colour, symbol=model.symbol, key=model.key),
    ]


def _labels(name: str, shares: Sequence[float]) -> list[str]:
    return [f"{name}\nlayer {layer}: {words.percent(share)}" for layer, share in enumerate(shares)]


def loss_panel(models: Sequence[Routed]) -> Panel | None:
    """Shares by the loss of the token that the gate's own token predicts, in the evaluation's bins."""
    bins = sorted({(row["from"], row["to"]) for model in models for row in model.routing["by_loss"]})
    if not bins:
        return None
    places = {each: float(place) for place, each in enumerate(bins)}
    names = [f"{start:g}–{stop:g}" if stop < 1e6 else f"≥ {start:g}" for start, stop in bins]
    x_axis = linear_axis(
        -0.5, len(bins) - 0.5, "loss of the next token (nats)", tickvals=list(places.values()), ticktext=names
    )
    rows: Binned = [
        (model, [(places[row["from"], row["to"]], row) for row in model.routing["by_loss"]]) for model in models
    ]
    return _binned("Against token loss", rows, x_axis, dict(zip(places.values(), names, strict=True)))


def position_panel(models: Sequence[Routed]) -> Panel | None:
    """Shares by position in the text, in the evaluation's bins, each at its geometric middle."""
    rows: Binned = [
        (model, [(math.sqrt(max(row["from"], 1) * row["to"]), row) for row in model.routing["by_position"]])
        for model in models
    ]
    places = {x: f"{row['from']:,}–{row['to'] - 1:,}" for _, own in rows for x, row in own}
    if not places:
        return None
    return _binned("By position", rows, log_axis(places, "position (tokens)", counts=True), places)


def _binned(title: str, rows: Binned, x_axis: dict[str, Any], names: Mapping[float, str]) -> Panel:
    traces: list[dict[str, Any]] = []
    shown: list[float] = []
    for model, own in rows:
        xs, shares = [x for x, _ in own], [row["full_ratio"] for _, row in own]
        labels = [
            f"{model.name}\n{names[x]}: {words.percent(row['full_ratio'])} of {row['tokens']:,} tokens"
            for x, row in own
        ]
        traces += _marked_line(model, xs, shares, labels)
        shown += shares
    whose = words.listing([model.name for model, _ in rows], 6)
    alt = f"Share of full attention {title[0].lower()}{title[1:]}, of {whose}."
    return Panel(title=title, alt=alt, traces=traces, layout=layout(x_axis, _share_axis(shown)))


def training_panel(models: Sequence[Routed]) -> Panel | None:
    """Shares of the training batches over tokens: the mean of each model; of one model alone every layer, too."""
    kept = [model for model in models if model.routing.get("training", {}).get("tokens")]
    if not kept:
        return None
    traces: list[dict[str, Any]] = []
    shown: list[float] = []
    for model in kept:
        curve = model.routing["training"]
        layers = curve.get("by_layer", []) if len(kept) == 1 else []
        for layer, shares in enumerate(layers):
            colour = f"--scale-{round(layer * (NUM_SCALE_COLOURS - 1) / max(len(layers) - 1, 1))}"
            traces.append(line(curve["tokens"], shares, colour, f"layer {layer}", width=1))
            shown += shares
        colour = "--ink" if layers else model.colour
        traces.append(line(curve["tokens"], curve["mean"], colour, model.key, width=2.4, name="mean" if layers else ""))
        shown += curve["mean"]
    last = max(model.routing["training"]["tokens"][-1] for model in kept)
    x_axis = _axis(last, "tokens trained in this stage", words.count)
    ends = [f"{model.name} ends at {words.percent(model.routing['training']['mean'][-1])}" for model in kept[:6]]
    return Panel(
        title="Over training",
        alt=f"Share of full attention over training: {', '.join(ends)}.",
        traces=traces,
        layout=layout(x_axis, _share_axis(shown)),
    )


def needle_panels(models: Sequence[Routed]) -> list[Panel]:
    """A map of each model that answered needles, on one range of colours: share of full attention while it answers."""
    kept = {model.name: needles for model in models if (needles := model.routing.get("needles"))}
    most = max((share for needles in kept.values() for row in needles["full_ratio_grid"] for share in row), default=0.0)
    top = max(LEAST_TOP, math.ceil(most * 20) / 20)
    return [
        needle_panel(needles, "full_ratio_grid", title=name, bar=SHARE, ramp=FULL, most=top, edge=True)
        for name, needles in kept.items()
    ]


def _share_axis(shares: Iterable[float]) -> dict[str, Any]:
    top = max(shares, default=0.0)
    return _axis(min(max(top * 1.1, LEAST_TOP), 1.02), SHARE, lambda share: words.percent(share, 0))


def _axis(top: float, title: str, named: Callable[[float], str]) -> dict[str, Any]:
    """From 0 to ``top`` with named ticks, which files without a browser show, too."""
    step = round_step(0, top, 6)
    ticks = [step * index for index in range(math.floor(top / step + 1e-9) + 1)]
    return linear_axis(0, top, title, tickvals=ticks, ticktext=[named(tick) for tick in ticks])


def _spread(models: Sequence[Routed], key: str) -> str:
    parts = [
        f"{model.name} from {words.percent(min(model.routing[key]))} to {words.percent(max(model.routing[key]))}"
        for model in models[:6]
    ]
    return words.listing(parts, 6)
