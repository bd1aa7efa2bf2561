"""From an evaluation's flat numbers to values with interval, chance level and number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridlaw.pipelines.report.data import MetricValue, finite

Z_95 = 1.959963984540054


def metric_value(
    name: str,
    metrics: Mapping[str, float],
    num_samples: int | None = None,
    details: Mapping[str, Any] | None = None,
) -> MetricValue:
    """The metric ``name`` with what the other numbers of the same evaluation say about it.

    details: low, high and chance of the metric as the evaluation itself tells them; what it leaves open is looked for
    among ``metrics``: ``X_accuracy`` belongs with ``X_low``, ``X_high`` (its 95% interval) and ``X_chance``; ``X`` with
    ``X_low`` and ``X_high``, or with ``X_stderr``, from which the 95% interval is made. KeyError without the metric
    itself.
    """
    stem = name.removesuffix("_accuracy")
    value, told = float(metrics[name]), details or {}
    low, high, chance = (finite(told.get(key, metrics.get(f"{stem}_{key}"))) for key in ("low", "high", "chance"))
    error = finite(metrics.get(f"{stem}_stderr"))
    if (low is None or high is None) and error is not None:
        low, high = value - Z_95 * error, value + Z_95 * error
    return MetricValue(value=value, low=low, high=high, chance=chance, num_samples=num_samples)
