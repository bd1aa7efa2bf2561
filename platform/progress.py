"""Progress from workers to the driver's live table: one small file per run, written seldom and read cheaply.

Not a record of anything: the ledger and the checkpoints are. A lost or late progress file changes no result, so writing
one never raises and never flushes to the disk, and reading one that is half there gives the last whole one.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gridlaw.platform.store.local import TEMPORARY_PREFIX

FILE = "progress.json"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a trial stands.

    stage: trunk, decay, evaluate … for people. step, until_step: optimizer steps. loss: newest training loss, None
    before the first. seconds: since the epoch, by the worker's clock.
    """

    stage: str = ""
    step: int = 0
    until_step: int = 0
    tokens: int = 0
    tokens_per_second: float = 0.0
    loss: float | None = None
    host: str = ""
    pid: int = 0
    device: str = ""
    seconds: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimate from the tokens of the steps left at the present speed; None while unknown."""
        if self.step <= 0 or self.tokens <= 0 or self.tokens_per_second <= 0:
            return None
        return (self.until_step - self.step) * (self.tokens / self.step) / self.tokens_per_second


def device_name(accelerator: str) -> str:
    """The GPUs that Ray has given to this process's task, ``GPU 0``; "" for a task on cores."""
    return f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '?')}" if accelerator == "gpu" else ""


class ProgressWriter:
    """Writes a run's progress into its folder, at most once per ``interval_seconds``. Never raises.

    folder: the run's folder, ``attempts/<run_id>``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stage: str = "",
        device: str = "",
        interval_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._stage, self._device = Path(folder), stage, device
        self._interval_seconds, self._clock = interval_seconds, clock
        self._written = -math.inf
        self._host, self._pid = socket.gethostname(), os.getpid()

    def update(
        self,
        *,
        step: int,
        until_step: int,
        tokens: int = 0,
        tokens_per_second: float = 0.0,
        loss: float | None = None,
        force: bool = False,
    ) -> bool:
        """Write if it is time, or ``force``; True if a file was written. Costs a clock reading otherwise."""
        now = self._clock()
        if not force and now - self._written < self._interval_seconds:
            return False
        self._written = now
        progress = Progress(
            stage=self._stage,
            step=step,
            until_step=until_step,
            tokens=tokens,
            tokens_per_second=tokens_per_second,
            loss=loss,
            host=self._host,
            pid=self._pid,
            device=self._device,
            seconds=time.time(),
        )
        temporary = self._folder / f"{TEMPORARY_PREFIX}{self._pid}-{FILE}"
        with suppress(OSError):
            temporary.write_text(json.dumps(asdict(progress)))
            os.replace(temporary, self._folder / FILE)
            return True
        with suppress(OSError):  # a full disk: leave no half-written file
            temporary.unlink()
        return False


class ProgressReader:
    """Reads many runs' progress; a file that has not changed since is not read again."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[tuple[int, int], Progress]] = {}

    def read(self, folder: Path) -> Progress | None:
        """Newest progress in a run's folder; None if there never was one."""
        path = Path(folder) / FILE
        known = self._seen.get(path)
        try:
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_ino)
            if known is not None and known[0] == mark:
                return known[1]
            progress = _decode(path.read_text())
        except OSError:
            progress = None
        if progress is None:
            return known[1] if known else None
        self._seen[path] = (mark, progress)
        return progress

    def forget(self, folder: Path) -> None:
        """Drop what is kept of a run that has ended."""
        self._seen.pop(Path(folder) / FILE, None)


def _decode(text: str) -> Progress | None:
    """None for what is no progress of this version."""
    try:
        values = json.loads(text)
        return Progress(**{field.name: values[field.name] for field in fields(Progress)})
    except (ValueError, TypeError, KeyError):
        return None
