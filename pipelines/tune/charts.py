"""Figures of a study as plotly.js descriptions: the front, values over trials, slices along each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from gridlaw.pipelines.figures.marks import Panel, layout, log_axis, text
from gridlaw.pipelines.tune.results import Results, settings_text, values_text
from gridlaw.platform.tuning.space import show
from gridlaw.platform.tuning.study import TrialRecord

PLAIN, CHOSEN, FIRST = "--scale-3", "--arch-1", "--arch-2"
MOST_PAIRS = 6


def front_panels(results: Results) -> list[Panel]:
    """Each pair of objectives: every complete trial, those of the front joined and filled."""
    panels = []
    for left, right in list(combinations(results.objectives, 2))[:MOST_PAIRS]:
        chosen = sorted((results.trial(number) for number in results.front), key=lambda each: each.values[left])
        traces = [_dots(results, results.complete, lambda each, at=left: each.values[at], right)]
        if len(results.objectives) == 2:
            traces.insert(0, _line([t.values[left] for t in chosen], [t.values[right] for t in chosen]))
        panels.append(
            Panel(
                title=f"{right} against {left}",
                alt=f"{right} against {left} of {len(results.complete)} trials, {len(chosen)} of them on the front.",
                traces=traces,
                layout=layout(_axis(left), _axis(right), 400),
            )
        )
    return panels


def history_panels(results: Results) -> list[Panel]:
    """Each objective over the trials' numbers, with the best so far of those that meet the constraints."""
    panels = []
    for name, direction in results.objectives.items():
        pick = min if direction == "min" else max
        numbers: list[float] = []
        best: list[float] = []
        for each in results.complete:
            if each.feasible:
                numbers.append(float(each.number))
                best.append(pick([each.values[name], *best[-1:]]))
        traces = [_line(numbers, best, steps=True), _dots(results, results.complete, lambda each: each.number, name)]
        panels.append(
            Panel(
                title=name, alt=f"{name} of every complete trial in its order, and the best so far.", traces=traces,
                layout=layout(_axis("trial"), _axis(name)),
            )
        )  # fmt: skip
    return panels


def slice_panels(results: Results, objective: str) -> list[Panel]:
    """An objective along each parameter."""
    panels = []
    for name in results.parameters:
        able = [each for each in results.complete if name in each.params]
        values = [each.params[name] for each in able]
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if not able:
            continue
        if name in results.logarithmic and numeric:
            axis = log_axis([float(value) for value in values], name)
        else:
            axis = _axis(name) | ({} if numeric else {"type": "category"})
        dots = _dots(
            results, able, lambda each, at=name, plain=numeric: each.params[at] if plain else show(each.params[at]),
            objective,
        )  # fmt: skip
        alt = f"{objective} along {name} of {len(able)} trials."
        panels.append(Panel(title=name, alt=alt, traces=[dots], layout=layout(axis, _axis(objective))))
    return panels


def _dots(results: Results, trials: Sequence[TrialRecord], x_of: Any, y_name: str) -> dict[str, Any]:
    """Trials as points: filled on the front, open where a constraint is not met, a square for the first."""
    labels = [
        f"trial{each.number}<br>{text(values_text(each))}<br>{text(settings_text(each.params))}" for each in trials
    ]
    colours = [f"var:{CHOSEN if each.number in results.front else PLAIN}" for each in trials]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x_of(each) for each in trials],
        "y": [each.values[y_name] for each in trials],
        "text": labels,
        "hovertemplate": "%{text}<extra></extra>",
        "meta": "",
        "cliponaxis": False,
        "marker": {
            "symbol": ["square" if each.number == 0 and results.has_first else "circle" for each in trials],
            "size": [11 if each.number in results.front else 8 for each in trials],
            "color": [colour if each.feasible else "var:--paper" for colour, each in zip(colours, trials, strict=True)],
            "line": {"width": 1.6, "color": colours},
        },
    }


def _line(xs: Sequence[float], ys: Sequence[float], *, steps: bool = False) -> dict[str, Any]:
    line = {"color": f"var:{CHOSEN}", "width": 1.6} | ({"shape": "hv"} if steps else {})
    return {
        "type": "scatter", "mode": "lines", "x": list(xs), "y": list(ys), "line": line, "hoverinfo": "skip", "meta": "",
    }  # fmt: skip


def _axis(title: str) -> dict[str, Any]:
    return {"title": {"text": text(title), "standoff": 6}}
