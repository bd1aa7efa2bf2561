"""The stages that make models: a trunk up to its next branch point, the decay from there to one point, and a base's
weights under another architecture.

A task is plain JSON. Metrics go to a journal beside the checkpoints, which the driver sends to MLflow, so training
neither waits for a tracking server nor fails with it; progress goes to a small file that the driver's live table reads.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from gridlaw.modules.training.build import adopt as adopt_weights
from gridlaw.modules.training.fit import fit
from gridlaw.modules.training.job import FitJob
from gridlaw.platform.ledger.journal import Journal
from gridlaw.platform.ledger.records import TRAIN_LOSS
from gridlaw.platform.progress import ProgressWriter, device_name
from gridlaw.platform.store.base import STOP_FILE


class JournalLogger(Logger):
    """Lightning's logger that appends to a journal; hyperparameters are the driver's to record."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    @property
    def name(self) -> str:
        return "journal"

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        named = {TRAIN_LOSS if name == "loss" else name: value for name, value in metrics.items()}
        self._journal.log(named, step=step or 0)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        return None


def train_segment(task: dict[str, Any]) -> dict[str, Any]:
    """Continue a trunk to ``job.until_step``. Returns FitResult as a dict."""
    return _train(task, stage="trunk")


def decay(task: dict[str, Any]) -> dict[str, Any]:
    """Train a branch to its point's last step and export the model. Returns FitResult as a dict."""
    return _train(task, stage="decay")


def adopt(task: dict[str, Any]) -> dict[str, Any]:
    """A point of budget 0: another point's weights under its own architecture, exported and not trained.

    task: model, seed, start_weights (folder), folder (of this point's attempt). Returns FitResult as a dict.
    """
    folder = Path(task["folder"])
    folder.mkdir(exist_ok=True)  # no further up: a store that vanished is not made again
    result = adopt_weights(task["model"], seed=task["seed"], start_weights=task["start_weights"], folder=folder)
    return result.to_dict()


def _train(task: dict[str, Any], *, stage: str) -> dict[str, Any]:
    """task: job (FitJob as a dict), run_id (of the run that its metrics belong to)."""
    job = FitJob.from_dict(task["job"])
    folder = Path(job.folder)
    folder.mkdir(exist_ok=True)  # no further up: a store that vanished is not made again
    own_stop = folder / STOP_FILE  # asks this task alone, as ``job.stop_file`` asks all
    writer = ProgressWriter(folder, stage=stage, device=device_name(job.accelerator))

    def progress(step: int, tokens: int, loss: float, tokens_per_second: float) -> None:
        writer.update(
            step=step, until_step=job.until_step, tokens=tokens, tokens_per_second=tokens_per_second, loss=loss
        )

    with Journal(folder, task["run_id"], tracking_uri=None) as journal:
        result = fit(job, logger=JournalLogger(journal), progress=progress, should_stop=own_stop.exists)
    return result.to_dict()
