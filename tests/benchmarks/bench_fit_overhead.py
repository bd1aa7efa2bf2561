"""What Trainer, telemetry, checkpoints and data cost against a bare loop over the same model.

    python tests/benchmarks/bench_fit_overhead.py [--scales n1 n2 n3 n4] [--optimizer adamw] [--batch-tokens 4096]
                                                  [--steps 40] [--rounds 9]

Both sides make the same steps on the same batches; the bare loop has its batches in memory and logs nothing. They are
measured in pairs, one right after the other, the first of a pair by turns, in CPU time: whatever slows the machine for
a while slows both sides of a pair. What is told is the median of the pairs' ratios. Aim: at most 5 % at nano scale.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import torch

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.batches import train_loader
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.prepare import PreparedData, prepare
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.training.cross_entropy import cross_entropy
from gridlaw.modules.training.fit import FitJob, fit
from gridlaw.modules.training.json_logger import JsonLinesLogger
from gridlaw.modules.training.optimizer import build_optimizer
from gridlaw.modules.training.settings import TrainingSettings
from gridlaw.modules.training.surroundings import keep_heap

CONTEXT = 256


class LoopTime(pl.Callback):
    """CPU seconds between the first and the last step."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.started = time.process_time()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds = time.process_time() - self.started


def bare_seconds(job: FitJob, prepared: PreparedData) -> float:
    """CPU seconds of the same steps without anything around them."""
    settings = TrainingSettings.from_dict(job.training)
    batch_size = settings.sequences_per_step(CONTEXT)
    batches = iter(train_loader(prepared, seed=job.seed, batch_size=batch_size, micro_batch=batch_size))
    steps = [next(batches) for _ in range(job.until_step)]
    model = DecoderLM(ModelConfig.from_dict(job.model)).initialise(job.seed)
    optimizer = build_optimizer(model, settings.optimizer)
    started = time.process_time()
    for batch in steps:
        optimizer.zero_grad()
        loss, _ = cross_entropy(model.hidden(batch[:, :-1]), model.head.weight, batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
    return time.process_time() - started


def fit_seconds(job: FitJob) -> tuple[float, float]:
    """(CPU seconds of the loop, CPU seconds of start-up and end) of a fit with a logger and progress."""
    loop, started = LoopTime(), time.process_time()
    ignore: Callable[..., None] = lambda *_: None  # noqa: E731
    fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"), progress=ignore, callbacks=[loop])
    return loop.seconds, time.process_time() - started - loop.seconds


def compare(scale_name: str, given: argparse.Namespace, folder: Path, prepared: PreparedData) -> None:
    """Print one line for a scale."""
    steps, rounds, optimizer = given.steps, given.rounds, given.optimizer
    scale = resolve_scale(scale_name)
    config = model_config(resolve_architecture("full"), scale, vocab_size=257, context=CONTEXT)
    training = {"batch_tokens": given.batch_tokens, "precision": "fp32", "optimizer": {"name": optimizer}}
    job = FitJob(
        model=config.to_dict(),
        training=TrainingSettings.from_dict(training, scale=scale).to_dict(),
        seed=0,
        data=str(prepared.folder),
        context=CONTEXT,
        folder="",
        until_step=steps,
        accelerator="cpu",
    )
    torch.set_num_threads(1)
    keep_heap()  # for both sides
    bare_seconds(replace(job, until_step=3), prepared)
    bare, loop, around = [], [], []
    for number in range(rounds):
        pair = [job, replace(job, folder=str(folder / f"{scale_name}-{number}"))]
        for each in pair if number % 2 == 0 else pair[::-1]:
            if each.folder:
                inside, outside = fit_seconds(each)
                loop.append(inside)
                around.append(outside)
            else:
                bare.append(bare_seconds(each, prepared))
    ratios = sorted(inside / alone - 1 for inside, alone in zip(loop, bare, strict=True))
    print(
        f"{scale_name} {optimizer}: bare {statistics.median(bare) / steps * 1e3:.2f} ms a step, "
        f"fit {statistics.median(loop) / steps * 1e3:.2f} ms; extra {statistics.median(ratios):+.1%} "
        f"({ratios[0]:+.1%} to {ratios[-1]:+.1%} over {rounds} pairs), start and end {statistics.median(around):.2f} s",
        flush=True,
    )


def main() -> None:
    """Parse the command line and print a line per scale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scales", nargs="+", default=["n1", "n2", "n3", "n4"])
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        declaration = declare({}, base_folder=folder, context=CONTEXT)
        prepared = prepare(declaration, folder / prepared_name(declaration))
        for scale_name in given.scales:
            compare(scale_name, given, folder, prepared)


if __name__ == "__main__":
    main()
