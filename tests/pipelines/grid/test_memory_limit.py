"""Limits on the memory of workers, under which training at the first micro-batch, or an evaluation, really runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

WINDOWS, CONTEXT = 512, 256
"""Of one optimizer step: its activations take about 1 GiB at once."""
LIMIT_MIB = 700


def test_out_of_memory_leads_to_a_smaller_micro_batch_at_the_same_token_batch(
    new_workplace: Callable[[], Any],
) -> None:
    """ray #14394 #12208."""
    place = new_workplace()
    place.install_faulty_mixer()
    limited = {"name": "limited", "pattern": [{"mixer": "faulty", "fault": "limit", "after": LIMIT_MIB}]}
    place.write(
        {
            "architectures": [limited],
            "scales": [{"name": "m", "layers": 2, "d_model": 64, "ffn_dim": 128, "heads": 2, "kv_heads": 1}],
            "budgets": [4 * WINDOWS * CONTEXT],
            "data": {"context": CONTEXT},
            "training": {
                "batch_tokens": WINDOWS * CONTEXT,
                "precision": "fp32",
                "optimizer": {"name": "adamw"},
                "schedule": {"warmup_steps": 1},
            },
            "laws": [],
        }
    )
    done = place.run("--plain", timeout=1500)
    assert done.returncode == 0, done.stderr
    assert "allocate memory" in done.stderr or "bad_alloc" in done.stderr
    assert "trying again (2 of 3)" in done.stderr
    (trunk,), (point,) = place.runs("trunk"), place.runs("point")
    assert int(trunk.data.tags["gridlaw.micro_batch"]) in (WINDOWS // 2, WINDOWS // 4)
    assert trunk.info.status == point.info.status == "FINISHED"
    assert int(point.data.tags["gridlaw.steps"]) == 4
    assert point.data.metrics["tokens"] == 4 * WINDOWS * CONTEXT


def test_an_evaluation_that_runs_out_of_memory_marks_itself_alone(new_workplace: Callable[[], Any]) -> None:
    """Its point stays finished, with what its other evaluation measured; other points have both."""
    place = new_workplace()
    place.install_faulty_mixer()
    limited = {"name": "limited", "pattern": [{"mixer": "faulty", "fault": "memory", "stage": "evaluate", "after": 1}]}
    place.write(
        {
            "architectures": ["full", limited],
            "scales": ["n1"],
            "budgets": ["1N"],
            "evaluate": [{"loss": {"tokens": 4096}}, {"efficiency": {"length": 32, "new_tokens": 2, "repeats": 1}}],
            "laws": [],
            "run": {"evaluations": {"loss": {"memory": "1GiB"}}},
        }
    )
    done = place.run("--plain", timeout=1500)
    assert done.returncode == 1, done.stderr
    evaluations = {run.data.tags["gridlaw.name"]: run for run in place.runs("evaluation")}
    statuses = {name: run.info.status for name, run in evaluations.items()}
    assert statuses == {
        "full/n1/1N/seed0/loss": "FINISHED",
        "full/n1/1N/seed0/efficiency": "FINISHED",
        "limited/n1/1N/seed0/loss": "FAILED",
        "limited/n1/1N/seed0/efficiency": "FINISHED",
    }
    failed = evaluations["limited/n1/1N/seed0/loss"].data.tags
    assert "memory" in failed["gridlaw.reason"]
    assert failed["gridlaw.attempts"] == "3"
    points = {run.data.tags["gridlaw.architecture"]: run for run in place.runs("point")}
    assert {run.info.status for run in points.values()} == {"FINISHED"}
    assert "loss" in points["full"].data.metrics
    assert "loss" not in points["limited"].data.metrics
    assert all("cache_bytes" in run.data.metrics for run in points.values())
