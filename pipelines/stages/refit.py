"""The stage that fits one law to the points of one architecture, again with each point gained."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gridlaw.pipelines.laws.fit import LawFit, fit_law, score
from gridlaw.pipelines.report.data import LawParameter, LawPoint, LawRow
from gridlaw.platform.errors import BadInput


def refit(task: dict[str, Any]) -> dict[str, Any]:
    """Fit, and predict the held-out points.

    task: architecture, target, form, num_resamples, excluded (name → why), and points: a list of {name, scale,
    num_params, tokens, value (the metric), trunk, role}. Returns {row: LawRow as a dict, fit: LawFit with its resamples
    as a dict or None, seconds}. Points that allow no fit give a row without parameters and the reason.
    """
    started = time.perf_counter()
    points = [{**point, "value": _target(task["target"], point["value"])} for point in task["points"]]
    fitted = [point for point in points if point["role"] == "fit"]
    held_out = [point for point in points if point["role"] == "verify"]
    common = {"target": task["target"], "architecture": task["architecture"], "form": task["form"]}
    try:
        law = fit_law(
            [point["num_params"] for point in fitted],
            [point["tokens"] for point in fitted],
            [point["value"] for point in fitted],
            form=task["form"],
            num_resamples=task["num_resamples"],
            groups=[point["trunk"] for point in fitted],
        )
    except BadInput as error:
        row = LawRow(**common, reason=str(error), excluded=task["excluded"])
        return {"row": row.to_dict(), "fit": None, "seconds": time.perf_counter() - started}
    row = LawRow(
        **common,
        parameters=tuple(_parameter(law, name) for name in law.parameters),
        r2=law.r2,
        r2_held_out=_r2(law, held_out),
        converged=law.converged,
        identified=law.identified,
        verdict=law.verdict,
        interval_level=law.level,
        interval_method=law.interval_method,
        fitted=tuple(_point(law, point) for point in fitted),
        held_out=tuple(_point(law, point) for point in held_out),
        excluded=task["excluded"],
    )
    return {"row": row.to_dict(), "fit": law.to_dict(), "seconds": time.perf_counter() - started}


def _target(target: str, value: float) -> float:
    """The value that is fitted: the metric, or its logarithm for ``log:METRIC``; NaN where that has none."""
    if not target.startswith("log:"):
        return value
    return math.log(value) if value > 0 else math.nan


def _parameter(law: LawFit, name: str) -> LawParameter:
    low, high = law.intervals.get(name, (math.nan, math.nan))
    return LawParameter(name=name, value=law.parameters[name], low=low, high=high)


def _point(law: LawFit, point: dict[str, Any]) -> LawPoint:
    low, high = law.predict_interval(point["num_params"], point["tokens"])
    return LawPoint(
        name=point["name"],
        num_params=point["num_params"],
        tokens=point["tokens"],
        measured=point["value"],
        predicted=law.predict(point["num_params"], point["tokens"]),
        low=low,
        high=high,
        scale=point["scale"],
    )


def _r2(law: LawFit, points: Sequence[dict[str, Any]]) -> float | None:
    """Of held-out points; one point alone has no spread to explain."""
    if len(points) < 2:
        return None
    values = np.array([point["value"] for point in points])
    predicted = law.predict([point["num_params"] for point in points], [point["tokens"] for point in points])
    return score(values, predicted).r2
