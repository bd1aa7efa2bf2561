"""A worker's metrics: appended to a file beside the checkpoints, and sent to MLflow from a background thread.

Training never waits for tracking and never fails for it: ``log`` appends a line to the file (some microseconds) and
returns. The file is the queue: during an outage rows wait there, and whoever comes next sends them (``sender``).

What a killed worker had logged beyond its checkpoint is computed again after a resume, with equal values; those steps
are in the file already and are not logged a second time.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gridlaw.platform.errors import Surroundings
from gridlaw.platform.ledger.sender import (
    JOURNAL_FILE,
    JournalSender,
    JournalStatus,
    parse_row,
    sending,
)
from gridlaw.platform.ledger.system_metrics import SystemMetrics
from gridlaw.platform.ledger.tracking import Tracking, TrackingRefused

_MAX_UNWRITTEN = 100_000  # rows kept in memory while the disk is full
log = logging.getLogger(__name__)


class Journal:
    """Metric journal of one run; ``log`` from one thread, ``close`` in the end.

    folder: the run's folder, made if missing. tracking_uri: where to send; None leaves sending to the driver
    (``JournalPump``) and imports no MLflow, unless system metrics ask for it. system_metrics_seconds: between samples
    of the machine's load; None for none.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        *,
        tracking_uri: str | None,
        system_metrics_seconds: float | None = 10.0,
        send_seconds: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path, self.run_id = Path(folder) / JOURNAL_FILE, run_id
        self.failure = ""
        self.nonfinite: set[str] = set()
        self._clock, self._send_seconds, self._system_seconds = clock, send_seconds, system_metrics_seconds
        self._lock = threading.Lock()
        self._unwritten: list[bytes] = []
        self._highest: dict[str, int] = {}
        self._newest_step = 0
        self._file = self._open()
        self._sender: JournalSender | None = None
        if tracking_uri is not None:
            self._sender = JournalSender(self.path, run_id, Tracking(uri=tracking_uri, patience_seconds=0.0))
        self._stopping = threading.Event()
        self._deadline = math.inf
        self._threads = [
            threading.Thread(target=target, name=f"gridlaw-{name}", daemon=True)
            for name, target, wanted in (
                ("journal", self._send_in_background, self._sender is not None),
                ("system-metrics", self._sample_in_background, system_metrics_seconds is not None),
            )
            if wanted
        ]
        for thread in self._threads:
            thread.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values at an optimizer step. Steps of a metric must grow: what is there already is passed over.

        Non-finite values are left out and their names kept in ``nonfinite``.
        """
        with self._lock:
            self._newest_step = max(self._newest_step, step)
            new = {key: float(value) for key, value in metrics.items() if step > self._highest.get(key, -1)}
            finite = {key: value for key, value in new.items() if math.isfinite(value)}
            self.nonfinite |= set(new) - set(finite)
            if not finite:
                return
            self._highest.update(dict.fromkeys(finite, step))
            row = {"s": step, "t": int(self._clock() * 1000), "m": finite}
            self._unwritten.append(json.dumps(row, separators=(",", ":")).encode() + b"\n")
            self._write()

    def close(self, *, timeout_seconds: float = 30.0) -> JournalStatus:
        """Send the rest within ``timeout_seconds``; never raises for an outage. What is left stays in the file."""
        self._deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        for thread in reversed(self._threads):  # the sampler first: it logs once more
            thread.join(timeout=max(0.0, self._deadline - time.monotonic()))
        with self._lock:
            self._write()
            if self._unwritten:
                self.failure = self.failure or f"{len(self._unwritten)} rows could not be written to {self.path}"
            with suppress(OSError):
                os.close(self._file)
            self._file = -1
        if self._sender is None:
            return JournalStatus(failure=self.failure)
        pending = self._sender.pending_bytes
        return JournalStatus(
            num_sent=self._sender.num_sent, pending_bytes=pending, failure=self.failure if pending else ""
        )

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> int:
        """Open for appending: cut off a line that a kill left half written, and learn the highest step of each
        metric."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self.failure = f"cannot write {self.path}: {error.strerror}"
            log.warning("%s; metrics of this run are kept in memory", self.failure)
            return -1
        whole = 0
        with self.path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                row = parse_row(line)
                if row is not None:
                    self._highest.update(dict.fromkeys(row["m"], row["s"]))
        os.ftruncate(file, whole)
        return file

    def _write(self) -> None:
        """Append what waits in memory. A full disk keeps it there; a part of a line is cut off again."""
        if not self._unwritten or self._file < 0:
            return
        data = b"".join(self._unwritten)
        try:
            before = os.fstat(self._file).st_size
            if os.write(self._file, data) == len(data):
                self._unwritten.clear()
                return
            os.ftruncate(self._file, before)
        except OSError as error:
            log.debug("cannot write %s: %s", self.path, error)
        if len(self._unwritten) > _MAX_UNWRITTEN:
            del self._unwritten[: len(self._unwritten) - _MAX_UNWRITTEN]

    def _send_in_background(self) -> None:
        assert self._sender is not None, "the thread starts only where there is a sender"
        pause = self._send_seconds
        with sending(self.path, wait_seconds=math.inf) as held:
            assert held, "the wait has no end"
            while True:
                last = self._stopping.wait(pause)
                if last and len(self._threads) > 1:
                    self._threads[1].join(timeout=max(0.0, self._deadline - time.monotonic()))
                self._sync()
                pause = self._send_seconds if self._send_once() else min(2 * pause, 30.0)
                if last and (not self._sender.pending_bytes or time.monotonic() + 0.5 > self._deadline):
                    return
                if last:
                    time.sleep(min(pause, 0.5))

    def _send_once(self) -> bool:
        """False if it may work later."""
        assert self._sender is not None, "only called where there is a sender"
        try:
            self._sender.send(deadline=self._deadline if math.isfinite(self._deadline) else None)
        except TrackingRefused as error:
            if str(error) != self.failure:
                log.warning("metrics of run %s stay in %s: %s", self.run_id, self.path, error)
            self.failure = str(error)
            return False
        except (Surroundings, OSError) as error:
            self.failure = str(error)
            return False
        self.failure = ""
        return True

    def _sync(self) -> None:
        with suppress(OSError):
            if self._file >= 0:
                os.fsync(self._file)

    def _sample_in_background(self) -> None:
        assert self._system_seconds is not None, "the thread starts only where it is wanted"
        metrics = SystemMetrics()
        while True:
            last = self._stopping.wait(self._system_seconds)
            values = metrics.sample()
            if values:
                self.log(values, self._newest_step)
            if last:
                return
