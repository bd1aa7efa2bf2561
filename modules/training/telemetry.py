"""What a fit tells about itself: rows of metrics for a Lightning Logger, progress for a live table, steps made.

Rows are kept and handed over about once a second and before every checkpoint, so that a logger that writes to a
database is called seldom, and no step before a checkpoint lacks its row after a kill. Names and units:

    loss, lr, grad_norm     of the optimizer step; the loss is the mean over its micro-batches, without auxiliary terms
    auxiliary_loss          the mixers' own loss (switch: the regulariser), of models that have one
    train_full_ratio, train_full_ratio/LAYER    share of full attention, mean over tokens and layers and by layer, of
                            models with a layer that chooses (switch, duo)
    gamma_factor            what gamma_base is multiplied with after the step, where a controller steers it
    tokens                  seen since the run's beginning
    tokens_per_second, data_wait_share, memory_bytes, seconds_left, mfu     over the time since the last hand-over, on
                            its last row; mfu is against ``peak_tflops``, and absent without it
"""

from __future__ import annotations

import os
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger

from gridlaw.modules.training.module import LanguageModelModule

SECONDS_BETWEEN_FLUSHES = 1.0
SECONDS_BETWEEN_PROGRESS = 0.25

FULL_RATIO = "train_full_ratio"

Progress = Callable[[int, int, float, float], None]
"""Called with (step, tokens, loss, tokens per second), a few times a second at most."""


class TimedLoader:
    """An iterable of batches that adds up how long its user waited for them. No length: training has no epochs."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.wait_seconds = loader, 0.0

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            started = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.wait_seconds += time.perf_counter() - started
            yield batch


class StepCounter:
    """Optimizer steps made in a folder by all attempts together, kept in a file that a killed process leaves right."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        stored = os.pread(self._descriptor, 8, 0)
        self.before = struct.unpack("<q", stored)[0] if len(stored) == 8 else 0
        self.now = 0

    def add(self) -> None:
        """One more step. A system call, no fsync: it survives the process, not the machine."""
        self.now += 1
        os.pwrite(self._descriptor, struct.pack("<q", self.total), 0)

    @property
    def total(self) -> int:
        """Of all attempts."""
        return self.before + self.now

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Telemetry(pl.Callback):
    """Counts steps, logs rows and reports progress at the end of every optimizer step.

    flops_per_token: of training, forward and backward. until_step: for the time left.
    """

    def __init__(
        self,
        *,
        batch_tokens: int,
        until_step: int,
        counter: StepCounter,
        loader: TimedLoader,
        logger: Logger | None,
        progress: Progress | None,
        log_every_steps: int,
        flops_per_token: float | None,
        peak_tflops: float | None,
    ) -> None:
        self.batch_tokens, self.until_step = batch_tokens, until_step
        self.counter, self.loader, self.logger, self.progress = counter, loader, logger, progress
        self.log_every_steps = log_every_steps
        self.peak_flops = peak_tflops * 1e12 if peak_tflops and flops_per_token else None
        self.flops_per_token = flops_per_token
        self._rows: list[tuple[int, dict[str, float]]] = []
        self._flushed_at = self._progress_at = self._started = 0.0
        self._flushed_steps, self._flushed_wait, self._rate = 0, 0.0, 0.0
        self.seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clocks: what came before is start-up."""
        self._started = self._flushed_at = self._progress_at = time.perf_counter()
        self._flushed_wait = self.loader.wait_seconds

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One row for the step, if this micro-batch ended one."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        assert isinstance(pl_module, LanguageModelModule)
        self.counter.add()
        step, now = trainer.global_step, time.perf_counter()
        if step % self.log_every_steps == 0 or step == self.until_step or pl_module.extra_metrics:
            self._rows.append((step, self._row(pl_module, step)))
            pl_module.extra_metrics.clear()
        if now - self._flushed_at >= SECONDS_BETWEEN_FLUSHES:
            self.flush(step)
        if self.progress is not None and now - self._progress_at >= SECONDS_BETWEEN_PROGRESS:
            self._progress_at = now
            self._report(pl_module, step)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hand over what is left."""
        self.flush(trainer.global_step)
        self.seconds = time.perf_counter() - self._started
        if self.progress is not None and self.counter.now:
            assert isinstance(pl_module, LanguageModelModule)
            self._report(pl_module, trainer.global_step)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Hand over what is left: rows up to a divergence are worth having."""
        self.flush(trainer.global_step)

    def flush(self, step: int) -> None:
        """Hand all rows to the logger, the rates since the last time with the last row."""
        now = time.perf_counter()
        steps, seconds = self.counter.now - self._flushed_steps, now - self._flushed_at
        if not steps:
            return
        self._rate = steps * self.batch_tokens / max(seconds, 1e-9)
        wait = self.loader.wait_seconds - self._flushed_wait
        self._flushed_at, self._flushed_steps, self._flushed_wait = now, self.counter.now, self.loader.wait_seconds
        rows, self._rows = self._rows, []
        if self.logger is None or not rows:
            return
        rows[-1][1].update(self._rates(step, wait / max(seconds, 1e-9)))
        for row_step, row in rows:
            self.logger.log_metrics(row, row_step)

    def _row(self, module: LanguageModelModule, step: int) -> dict[str, float]:
        row = {
            "loss": module.last_loss,
            "lr": module.last_lr,
            "grad_norm": module.last_grad_norm,
            "tokens": float(step * self.batch_tokens),
        }
        if module.last_auxiliary is not None:
            row["auxiliary_loss"] = module.last_auxiliary
        if ratios := module.last_full_ratios:
            row[FULL_RATIO] = sum(ratios) / len(ratios)
            row |= {f"{FULL_RATIO}/{layer}": ratio for layer, ratio in enumerate(ratios)}
        if module.gamma_controller is not None:
            row["gamma_factor"] = module.gamma_controller.factor
        return {**row, **module.extra_metrics}

    def _rates(self, step: int, data_wait_share: float) -> dict[str, float]:
        rates = {
            "tokens_per_second": self._rate,
            "data_wait_share": min(1.0, data_wait_share),
            "memory_bytes": float(memory_bytes()),
            "seconds_left": (self.until_step - step) * self.batch_tokens / self._rate,
        }
        if self.peak_flops is not None and self.flops_per_token is not None:
            rates["mfu"] = self._rate * self.flops_per_token / self.peak_flops
            rates["peak_tflops"] = self.peak_flops / 1e12
        return rates

    def _report(self, module: LanguageModelModule, step: int) -> None:
        assert self.progress is not None
        rate = self._rate
        if not rate:  # before the first hand-over
            rate = self.counter.now * self.batch_tokens / max(time.perf_counter() - self._started, 1e-9)
        self.progress(step, step * self.batch_tokens, module.last_loss, rate)


def memory_bytes() -> int:
    """The peak of device memory on CUDA, of resident memory elsewhere: bytes."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
