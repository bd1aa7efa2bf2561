"""A nano model that retrieves: induction first, needles on top of it. The docs' heat map is of this grid.

In a mixture neither forms within 1,500 steps (docs/log.md); as two stages both do within about 4 million tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

STAGES: list[dict[str, Any]] = [
    {"name": "induce", "architectures": ["full"], "scales": ["n3"], "budgets": ["28N"]},
    {
        "name": "retrieve",
        "from": "induce/full/28N",
        "architectures": ["full"],
        "budgets": ["12N"],
        "data": {
            "mixture": [
                {"source": "generate:repeat", "settings": {"documents": 6000, "longest": 24, "seed": 1}},
                {"source": "generate:needle", "settings": {"documents": 6000, "words": 16}},
            ]
        },
    },
]
REST: dict[str, Any] = {
    "data": {
        "tokenizer": "bytes",
        "context": 256,
        "mixture": [{"source": "generate:repeat", "settings": {"documents": 24000, "longest": 24}}],
    },
    "training": {
        "batch_tokens": 4096,
        "optimizer": {"name": "muon"},
        "schedule": {"name": "wsd", "warmup_steps": 20, "decay_fraction": 0.1, "decay_shape": "1-sqrt"},
        "precision": "fp32",
    },
    "evaluate": ["loss", {"niah": {"depths": 5, "lengths": [96, 128, 192, 256], "samples": 10}}],
}


@pytest.mark.slow
def test_a_nano_model_retrieves_far_above_chance(new_workplace: Callable[[], Any]) -> None:
    place = new_workplace()
    place.write_stages(STAGES, REST)
    done = place.run(timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    points = {run.data.tags["gridlaw.name"]: run.data.metrics for run in place.runs("point")}
    found = points["retrieve/full/n3/12N/seed0"]
    assert found["niah_rank_chance"] == 0.125
    assert found["niah_rank_sigmas"] > 3.0, found

    drawn = place.gridlaw(
        "evaluate", "grid.yaml:retrieve/full/n3/12N/seed0", "niah", "--json", "--figures", "maps",
        "--set", "niah.depths=5", "--set", "niah.lengths=[96,128,192,256]", "--set", "niah.samples=10",
    )  # fmt: skip
    assert drawn.returncode == 0, drawn.stderr
    again = json.loads(drawn.stdout)["retrieve/full/n3/12N/seed0"]["niah"]["metrics"]
    assert again["niah_rank_accuracy"] == found["niah_rank_accuracy"]
    assert len(list((place.folder / "maps").glob("niah-rank-*.png"))) == 1
    (report,) = (place.store / "reports").glob("*.html")
    assert "retrieve/full/n3/12N/seed0: ranked first" in report.read_text()
