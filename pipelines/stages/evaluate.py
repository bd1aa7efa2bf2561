"""The stages that evaluate: examples that all models are asked, and one finished checkpoint with one evaluation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gridlaw.pipelines.evaluations.inputs import Inputs, Progress
from gridlaw.pipelines.evaluations.run import evaluate as run_evaluation
from gridlaw.pipelines.evaluations.run import make_examples
from gridlaw.platform.progress import ProgressWriter, device_name


def evaluate(task: dict[str, Any]) -> dict[str, Any]:
    """task: name, settings, model and data (folders), work (this evaluation's folder), inputs, accelerator. Returns
    metrics and details."""
    progress = _begin(task)
    started = time.perf_counter()
    result = run_evaluation(
        task["name"],
        task["settings"],
        model_folder=Path(task["model"]),
        prepared_folder=Path(task["data"]),
        work_folder=Path(task["work"]),
        progress=progress,
        inputs=Inputs(**task["inputs"]),
        device=_device(task),
    )
    return {**result, "seconds": time.perf_counter() - started}


def examples(task: dict[str, Any]) -> dict[str, Any]:
    """task: name, settings, data (folder), context (positions of the models), work, inputs, accelerator. Returns their
    number, their folder, and the files in it that are for people."""
    progress = _begin(task)
    started = time.perf_counter()
    number = make_examples(
        task["name"],
        task["settings"],
        prepared_folder=Path(task["data"]),
        context=task["context"],
        inputs=Inputs(**task["inputs"]),
        progress=progress,
        device=_device(task),
    )
    folder = Path(task["inputs"]["examples"])
    return {
        "examples": number,
        "folder": folder.name,
        "files": sorted(path.name for path in folder.glob("*.jsonl")),
        "seconds": time.perf_counter() - started,
    }


def _begin(task: dict[str, Any]) -> Progress:
    import torch

    torch.set_num_threads(task.get("num_threads", 1))
    work = Path(task["work"])
    work.mkdir(exist_ok=True)  # no further up: a store that vanished is not made again
    writer = ProgressWriter(work, stage=task["name"], device=device_name(task.get("accelerator", "")))

    def progress(done: int, total: int) -> None:
        writer.update(step=done, until_step=total)

    return progress


def _device(task: dict[str, Any]) -> str:
    """The GPU that Ray has given to the task, if it has one."""
    import torch

    return "cuda" if task.get("accelerator") == "gpu" and torch.cuda.is_available() else "cpu"
