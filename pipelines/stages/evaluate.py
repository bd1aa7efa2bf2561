"""The stage that evaluates one finished checkpoint with one evaluation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gridlaw.pipelines.evaluations.run import evaluate as run_evaluation
from gridlaw.platform.progress import ProgressWriter


def evaluate(task: dict[str, Any]) -> dict[str, Any]:
    """task: name, settings, model and data (folders), work (this evaluation's folder). Returns metrics and details."""
    import torch

    torch.set_num_threads(task.get("num_threads", 1))
    work = Path(task["work"])
    work.mkdir(parents=True, exist_ok=True)
    writer = ProgressWriter(work, stage=task["name"])
    started = time.perf_counter()
    result = run_evaluation(
        task["name"],
        task["settings"],
        model_folder=Path(task["model"]),
        prepared_folder=Path(task["data"]),
        work_folder=work,
        progress=lambda done, total: void(writer.update(step=done, until_step=total)),
    )
    return {**result, "seconds": time.perf_counter() - started}


def void(_: object) -> None:
    """A callback's return value that nobody reads."""
