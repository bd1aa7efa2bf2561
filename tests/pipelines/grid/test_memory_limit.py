"""A limit on the memory of a worker, under which training at the first micro-batch really runs out of it."""

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
