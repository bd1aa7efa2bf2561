"""A tiny model, a small text corpus, and fits in processes of their own that can be killed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.prepare import PreparedData, prepare
from gridlaw.modules.training.checkpoint_files import checkpoint_name
from gridlaw.modules.training.fit import fit
from gridlaw.modules.training.job import FitJob
from gridlaw.modules.training.json_logger import JsonLinesLogger
from gridlaw.modules.training.settings import TrainingSettings

CONTEXT = 32
WINDOWS_PER_STEP = 4


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """The embedded corpus in short windows."""
    folder = tmp_path_factory.mktemp("data")
    declaration = declare({}, base_folder=folder, context=CONTEXT)
    return prepare(declaration, folder / prepared_name(declaration))


@pytest.fixture
def make_job(prepared: PreparedData, tmp_path: Path) -> Callable[..., FitJob]:
    """A job in ``tmp_path/name``; ``training`` and ``architecture`` change the recipe, the rest are FitJob's fields."""
    scale = resolve_scale(
        {"name": "tiny", "layers": 2, "d_model": 16, "ffn_dim": 24, "heads": 2, "kv_heads": 2, "head_dim": 8}
    )

    def make(
        name: str, *, architecture: str | dict[str, Any] = "full", training: dict[str, Any] | None = None, **fields: Any
    ) -> FitJob:
        given = {
            "batch_tokens": CONTEXT * WINDOWS_PER_STEP,
            "precision": "fp32",
            "optimizer": {"name": "muon", "lr": 0.01},
            "schedule": {"warmup_steps": 5},
            **(training or {}),
        }
        config = model_config(resolve_architecture(architecture), scale, vocab_size=257, context=CONTEXT)
        job = {
            "model": config.to_dict(),
            "training": TrainingSettings.from_dict(given).to_dict(),
            "seed": 3,
            "data": str(prepared.folder),
            "context": CONTEXT,
            "folder": str(tmp_path / name),
            "accelerator": "cpu",
            "checkpoint_every_steps": 3,
        }
        return FitJob.from_dict({**job, **fields})

    return make


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Processes forked from a server that has imported everything: real ones, without the seconds of imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gridlaw.modules.training.fit", "gridlaw.modules.training.json_logger"])
    return context


@pytest.fixture
def start(processes: ForkServerContext) -> Callable[[FitJob], ForkServerProcess]:
    """Start ``fit(job)`` in its own process, rows going to ``FOLDER.jsonl``."""

    def begin(job: FitJob) -> ForkServerProcess:
        process = processes.Process(target=fit, args=(job,), kwargs={"logger": log_of(job)})
        process.start()
        return process

    return begin


@pytest.fixture
def run(start: Callable[[FitJob], ForkServerProcess]) -> Callable[[FitJob], int]:
    """Run ``fit(job)`` in its own process to its end; the exit code."""

    def wait(job: FitJob) -> int:
        process = start(job)
        process.join(120)
        assert process.exitcode is not None, "did not end"
        return process.exitcode

    return wait


def log_of(job: FitJob) -> JsonLinesLogger:
    return JsonLinesLogger(job.folder + ".jsonl")


class Read:
    """What a fit left behind."""

    def rows(self, job: FitJob) -> list[dict[str, float]]:
        """All logged rows."""
        return log_of(job).rows()

    def losses(self, job: FitJob) -> dict[int, float]:
        """Loss by step; a step that was made twice must have given the same bits."""
        losses: dict[int, float] = {}
        for row in self.rows(job):
            step = int(row["step"])
            assert losses.setdefault(step, row["loss"]) == row["loss"], f"step {step} gave two losses"
        return losses

    def weights(self, job: FitJob) -> dict[str, torch.Tensor]:
        """The exported model."""
        return load_file(Path(job.folder) / "model" / "model.safetensors")

    def checkpoint(self, job: FitJob, step: int) -> Path:
        """Path of the checkpoint after ``step`` steps."""
        return Path(job.folder) / checkpoint_name(step)

    def same(self, job: FitJob, other: FitJob) -> bool:
        """Whether two exported models have the same bits."""
        mine, theirs = self.weights(job), self.weights(other)
        return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture
def read() -> Read:
    return Read()
