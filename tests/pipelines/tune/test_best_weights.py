"""Which trial weights choose on a front, and weights that choose none."""

from __future__ import annotations

import pytest

from gridlaw.pipelines.tune.best import _weighted
from gridlaw.pipelines.tune.results import Results
from gridlaw.platform.errors import BadInput
from gridlaw.platform.tuning.study import TrialRecord

FRONT = [
    TrialRecord(number=number, state="complete", params={}, values={"loss": loss, "full_ratio": share})
    for number, (loss, share) in enumerate([(2.0, 0.9), (2.1, 0.3), (3.0, 0.1)])
]
RESULTS = Results(
    experiment="e", study="s", storage="", sampler="tpe", objectives={"loss": "min", "full_ratio": "min"},
    constraints={}, parameters=(), planned=3, trials=tuple(FRONT), front=(0, 1, 2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "chosen"), [(["loss=1"], 0), (["full_ratio=1"], 2), (["loss=1", "full_ratio=1"], 1)]
)
def test_weights_over_each_metrics_range(weights: list[str], chosen: int) -> None:
    assert _weighted(RESULTS, FRONT, weights).number == chosen


@pytest.mark.parametrize("weight", ["loss=0", "loss=-1", "loss=nan", "loss=1e400", "loss=inf", "loss", "=1", "los=1"])
def test_weights_that_are_none_are_refused(weight: str) -> None:
    """An infinite one would take whichever trial comes first."""
    with pytest.raises(BadInput, match="--weight"):
        _weighted(RESULTS, FRONT, [weight])
