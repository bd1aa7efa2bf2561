"""What a grid file's ``run:`` makes of a training task. No task is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridlaw.modules.training.job import FitJob
from gridlaw.pipelines.grid.tasks import TaskBuilder
from gridlaw.pipelines.plan import make_plan
from gridlaw.platform.spec.load import grid_from_mapping
from gridlaw.platform.store.open import open_store


def job_of(run: dict[str, Any], folder: Path) -> FitJob:
    grid = {"name": "g", "architectures": ["full"], "scales": ["n1"], "budgets": ["5N"], "data": {"context": 64}}
    training = {"batch_tokens": 512, "precision": "fp32"}
    plan = make_plan(grid_from_mapping(grid | {"training": training, "run": run}, source="test", base_folder=folder))
    store = open_store(folder / "store", create=True)
    tasks = TaskBuilder(store=store, run=plan.spec.run, accelerator="cpu", stop="stop")
    task = tasks.segment(plan.trunks[0], until_step=9, run_id="r", weights=None, micro_batch=None)
    return FitJob.from_dict(task["job"])


@pytest.mark.parametrize(
    ("run", "field", "value"),
    [
        ({}, "activation_checkpointing", False),
        ({}, "log_every_steps", 1),
        ({"activation_checkpointing": True}, "activation_checkpointing", True),
        ({"compile": True}, "compile", True),
        ({"data_workers": 2}, "num_workers", 2),
        ({"log_every_steps": 10}, "log_every_steps", 10),
        ({"checkpoint_every_steps": 7}, "checkpoint_every_steps", 7),
        ({"hardware": {"peak_tflops": 3.5}}, "peak_tflops", 3.5),
    ],
)
def test_how_training_is_executed_comes_from_run(run: dict[str, Any], field: str, value: Any, tmp_path: Path) -> None:
    assert getattr(job_of(run, tmp_path), field) == value
