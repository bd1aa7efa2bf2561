"""Which metrics a study may seek or bound, and how each is read from what a trial came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.platform.errors import BadInput
from gridlaw.platform.ledger.records import TRAIN_LOSS
from gridlaw.platform.spec.problems import did_you_mean, listed
from gridlaw.platform.spec.tuning import read_constraint

TRAIN_FULL_RATIO = "train_full_ratio"
OF_TRAINING = (TRAIN_LOSS, "train_seconds", "tokens_per_second")
"""Of a trial's training as a whole; the loss is the last step's."""
LOGGED_IN_TRAINING = (TRAIN_LOSS, "tokens_per_second")
"""Those that the training logs by itself, under these names, at every step."""
DURING_TRAINING: Mapping[str, str] = {
    "loss": TRAIN_LOSS,
    "bits_per_byte": TRAIN_LOSS,
    "longppl": TRAIN_LOSS,
    TRAIN_LOSS: TRAIN_LOSS,
    "full_ratio": TRAIN_FULL_RATIO,
}
"""Metric → what training reports of it at every step; both are better when smaller."""
_SHARES = ("_ratio", "_accuracy", "_share")


def bare(metric: str) -> str:
    """``log:longppl`` → ``longppl``."""
    return metric.removeprefix("log:")


def known_metrics(evaluations: Sequence[Evaluation]) -> list[str]:
    return [name for evaluation in evaluations for name in evaluation.kind.metrics] + list(OF_TRAINING)


def check_metrics(
    objectives: Mapping[str, str], constraints: Mapping[str, str], evaluations: Sequence[Evaluation]
) -> dict[str, tuple[str, float]]:
    """``BadInput`` for metrics that this file does not measure and bounds that mean nothing; the bounds in parts."""
    known = known_metrics(evaluations)
    for key, names in (("objectives", objectives), ("constraints", constraints)):
        for name in names:
            if bare(name) not in known:
                raise BadInput(
                    f"tune.{key}.{name}",
                    allowed=f"a metric of this file: {listed(known)}, or log: and one of them",
                    hint=did_you_mean(bare(name), known) or "Add the evaluation that measures it to evaluate:",
                )
    bounds = {}
    for name, text in constraints.items():
        operator, bound = read_constraint(text)
        if name.endswith(_SHARES) and not 0 <= bound <= 1:
            raise BadInput(f"tune.constraints.{name}", seen=text, allowed="a bound from 0 to 1: it is a share")
        bounds[name] = (operator, bound)
    return bounds


def value_of(metric: str, found: Mapping[str, float]) -> float | None:
    """A metric of a trial, or its logarithm for ``log:METRIC``; None where it was not measured, NaN without one."""
    value = found.get(bare(metric))
    if value is None or not metric.startswith("log:"):
        return value
    return math.log(value) if value > 0 else math.nan


def training_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """``OF_TRAINING`` of a training task's result."""
    found = {
        TRAIN_LOSS: result.get("final_loss"),
        "train_seconds": result.get("seconds"),
        "tokens_per_second": result.get("tokens_per_second"),
    }
    return {name: float(value) for name, value in found.items() if value is not None}
