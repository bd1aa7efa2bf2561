"""When a fit saves and when it stops: both only at the end of an optimizer step, never inside an accumulation."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl

from gridlaw.modules.training import checkpoint_files
from gridlaw.modules.training.errors import Stopped
from gridlaw.modules.training.telemetry import Telemetry

SECONDS_BETWEEN_LOOKS = 0.2
EXIT_CODE = 128


class Checkpointer(pl.Callback):
    """Saves every ``every_steps`` steps, at ``keep_steps`` and, if ``save_last``, at ``until_step``; prunes the rest.

    Own instead of Lightning's ModelCheckpoint: that one would delete a trunk's checkpoint under its branch.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every_steps: int,
        keep_steps: Iterable[int],
        keep_last: int,
        until_step: int,
        save_last: bool,
        telemetry: Telemetry,
    ) -> None:
        self.folder, self.every_steps, self.keep_last = folder, every_steps, keep_last
        self.keep_steps = frozenset(keep_steps)
        self.until_step, self.save_last, self.telemetry = until_step, save_last, telemetry
        self.saved_step: int | None = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save where a checkpoint is due."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        step = trainer.global_step
        if step == self.until_step:
            due = self.save_last
        else:
            due = step in self.keep_steps or (self.every_steps > 0 and step % self.every_steps == 0)
        if due:
            self.save(trainer)

    def save(self, trainer: pl.Trainer) -> Path:
        """Save the current step, unless it was just saved."""
        step = trainer.global_step
        path = self.folder / checkpoint_files.checkpoint_name(step)
        if self.saved_step != step:
            self.telemetry.flush(step)
            trainer.save_checkpoint(path, weights_only=False)
            self.saved_step = step
            checkpoint_files.prune(self.folder, keep_steps=self.keep_steps | {step}, keep_last=self.keep_last)
        return path


class StopOnRequest(pl.Callback):
    """Ends the fit at the end of an optimizer step, after saving, when it is asked to: raises ``Stopped``.

    Asked by SIGTERM or SIGINT (handlers can be installed in the main thread only), by a file that appears, or by
    ``should_stop()``. Lightning's own answer to SIGTERM stops inside an accumulation, saves nothing and exits with 0.
    """

    def __init__(
        self, checkpointer: Checkpointer, *, stop_file: Path | None, should_stop: Callable[[], bool] | None
    ) -> None:
        self.checkpointer, self.stop_file, self.should_stop = checkpointer, stop_file, should_stop
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}
        self._looked_at = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install the handlers after Lightning has installed its own."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and stop, if asked and if a step has just ended; the last step ends by itself."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches or trainer.global_step >= self.checkpointer.until_step:
            return
        if self.signal is None and not self._asked():
            return
        path = self.checkpointer.save(trainer)
        raise Stopped(EXIT_CODE + (self.signal or signal.SIGTERM), trainer.global_step, str(path))

    def _asked(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at < SECONDS_BETWEEN_LOOKS:
            return False
        self._looked_at = now
        if self.stop_file is not None and self.stop_file.exists():
            return True
        return self.should_stop is not None and self.should_stop()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put the handlers back."""
        self._restore()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Put the handlers back."""
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler)
