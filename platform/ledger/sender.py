"""Sends journals to MLflow: each (metric, step) once, in the order of the file, whatever happens in between.

A journal is the file that ``journal`` writes beside a run's checkpoints: one JSON object per line, ``{"s": step, "t":
milliseconds, "m": {metric: value}}``.

Why exactly once. Rows of a metric are sent in growing steps and MLflow takes a batch as a whole, so what it has of a
metric is a prefix of what the file holds; the highest step that it reports says where to go on. That is asked before
the first batch and again after every failure, because an answer may be lost after the server has acted. Besides, a row
keeps its time, and MLflow takes an equal (metric, step, time, value) for the same.

Concurrency. One sender per journal: it holds a lock on a file beside it, which the kernel frees when the process dies.
A worker that lives sends its own; the driver sends those of the dead (``flush_journal``, ``flush_all``), or all of them
where workers do not send (``JournalPump``).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gridlaw.platform.errors import Surroundings
from gridlaw.platform.ledger.tracking import Tracking, TrackingOutage, TrackingRefused

if TYPE_CHECKING:
    from mlflow.entities import Metric

    from gridlaw.platform.ledger.segments import JournalFeed

JOURNAL_FILE = "journal.jsonl"
_MAX_METRICS = 1000  # MLflow's limit for one batch
_MAX_BYTES = 2**20  # read at once
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JournalStatus:
    """How far a journal got. num_sent: metric values that this call or writer sent. pending_bytes: of the file, not
    sent.

    failure: why the rest was not sent; "" when all was.
    """

    num_sent: int = 0
    pending_bytes: int = 0
    failure: str = ""

    @property
    def complete(self) -> bool:
        return self.pending_bytes == 0 and not self.failure


class JournalSender:
    """Sends what a journal holds beyond what was sent. Not for several threads at once.

    path: the journal; it may grow meanwhile. run_id: MLflow's. tracking: with its patience as the bound of each call.
    """

    def __init__(self, path: Path, run_id: str, tracking: Tracking) -> None:
        self.path, self.run_id, self.tracking = Path(path), run_id, tracking
        self.num_sent = 0
        self._offset = sent_bytes(self.path)
        self._highest: dict[str, int] | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of the file that were not sent yet."""
        return max(0, _size(self.path) - self._offset)

    def send(self, *, deadline: float | None = None) -> int:
        """Send all whole lines that are there now; returns the number of values sent.

        deadline: by ``time.monotonic``; stops between batches after it. Raises ``TrackingOutage`` or
        ``TrackingRefused``; what was sent before stays counted.
        """
        num_before = self.num_sent
        marked = sent_bytes(self.path)
        if marked > self._offset:  # another sender had its turn
            self._offset, self._highest = marked, None
        while self.pending_bytes and (deadline is None or time.monotonic() < deadline):
            rows, end = self._read()
            if end == self._offset:
                break  # only a line that is being written
            if self._highest is None:
                self._highest = self._ask_highest()
            new = list(self._new_metrics(rows))
            for start in range(0, len(new), _MAX_METRICS):
                self._log(new[start : start + _MAX_METRICS])
            self._offset = end
            self._mark()
        return self.num_sent - num_before

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        """Whole lines from the offset on, and where they end. A line that is no row (a damaged file) is passed over."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_MAX_BYTES)
        lines, size = [], 0
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            lines.append(line)
            size += len(line)
        return [row for row in map(parse_row, lines) if row is not None], self._offset + size

    def _new_metrics(self, rows: Iterable[dict[str, Any]]) -> Iterator[Metric]:
        from mlflow.entities import Metric

        assert self._highest is not None, "asked before"
        seen = dict(self._highest)
        for row in rows:
            for key, value in row["m"].items():
                if row["s"] > seen.get(key, -1):
                    seen[key] = row["s"]
                    yield Metric(key, value, row["t"], row["s"])

    def _log(self, metrics: list[Metric]) -> None:
        assert self._highest is not None, "asked before"
        try:
            self.tracking.call(
                f"send metrics of run {self.run_id}",
                lambda client: client.log_batch(self.run_id, metrics=metrics),
                patience_seconds=0.0,
            )
        except Surroundings:
            self._highest = None  # the batch may have arrived all the same
            raise
        for metric in metrics:
            self._highest[metric.key] = metric.step
        self.num_sent += len(metrics)

    def _ask_highest(self) -> dict[str, int]:
        run = self.tracking.call(
            f"read run {self.run_id}", lambda client: client.get_run(self.run_id), patience_seconds=0.0
        )
        return {metric.key: metric.step for metric in run.data._metric_objs}

    def _mark(self) -> None:
        """Note how far the file was sent, so that nobody reads it again from the start. Losing the note costs time
        only."""
        mark = _mark_path(self.path)
        temporary = mark.with_name(f"{mark.name}.{os.getpid()}")
        with suppress(OSError):
            temporary.write_text(str(self._offset))
            os.replace(temporary, mark)


def parse_row(line: bytes) -> dict[str, Any] | None:
    """A line of a journal; None for what is none."""
    try:
        row = json.loads(line)
        return row if isinstance(row["s"], int) and isinstance(row["t"], int) and isinstance(row["m"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def sent_bytes(path: Path) -> int:
    """How much of a journal was surely sent."""
    try:
        sent = int(_mark_path(path).read_text())
    except (OSError, ValueError):
        return 0
    return sent if sent <= _size(path) else 0  # another, shorter file has taken its place


@contextmanager
def sending(path: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Hold the right to send a journal; yields False if another process kept it for ``wait_seconds``."""
    lock: IO[str] | None = None
    deadline = time.monotonic() + wait_seconds
    held = True
    try:
        with suppress(OSError):  # a filesystem without locks, or a full disk: MLflow's own check for doubles remains
            lock = open(path.with_name(path.name + ".lock"), "a")  # noqa: SIM115
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        held = False
                        break
                    time.sleep(0.05)
        yield held
    finally:
        if lock is not None:
            lock.close()


def flush_journal(path: Path, run_id: str, tracking: Tracking, *, timeout_seconds: float = 30.0) -> JournalStatus:
    """Send what a dead or finished writer left. Waits at most about ``timeout_seconds``; an outage is no exception."""
    path = Path(path)
    if _size(path) == sent_bytes(path):
        return JournalStatus()
    deadline = time.monotonic() + timeout_seconds
    with sending(path, wait_seconds=timeout_seconds) as held:
        sender = JournalSender(path, run_id, tracking)
        if not held:
            return JournalStatus(pending_bytes=sender.pending_bytes, failure="another process is sending it")
        failure, pause = "", 0.25
        while True:
            try:
                sender.send(deadline=deadline)
                failure = "" if sender.pending_bytes == 0 else "not all could be sent in time"
                break
            except TrackingRefused as error:
                failure = str(error)
                break
            except (Surroundings, OSError) as error:
                failure = str(error)
            if time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
    return JournalStatus(num_sent=sender.num_sent, pending_bytes=sender.pending_bytes, failure=failure)


def flush_all(
    attempts: Path,
    run_ids: Iterable[str],
    tracking: Tracking,
    *,
    feed: JournalFeed | None = None,
    timeout_seconds: float = 60.0,
) -> dict[str, JournalStatus]:
    """Send what is left of many runs' journals; only of those that have anything left. An outage ends it at once.

    attempts: the folder with a sub-folder for each run. run_ids: runs that the ledger knows; those of deleted runs are
    left alone. feed: brings the journals into ``attempts`` where they come through the store.
    """
    deadline = time.monotonic() + timeout_seconds
    done: dict[str, JournalStatus] = {}
    run_ids = list(run_ids)
    if feed is not None:
        run_ids = sorted(set(run_ids) & set(feed.unsent()))
        feed.pull(run_ids)
    for run_id in run_ids:
        path = Path(attempts) / run_id / JOURNAL_FILE
        if _size(path) == sent_bytes(path):
            continue
        left = deadline - time.monotonic()
        if left <= 0:
            break
        done[run_id] = flush_journal(path, run_id, tracking, timeout_seconds=min(left, 10.0))
        if feed is not None:
            feed.drop_sent(run_id)
    return done


class JournalPump:
    """Sends the journals of many runs from one thread of the driver, where workers do not send themselves.

    For sqlite: one writer instead of many, and workers that need not import MLflow. An outage delays, and loses
    nothing. feed: brings the journals where they come through the store.
    """

    def __init__(self, tracking: Tracking, *, feed: JournalFeed | None = None, interval_seconds: float = 3.0) -> None:
        self._tracking, self._feed, self._interval_seconds = tracking, feed, interval_seconds
        self._senders: dict[str, JournalSender] = {}
        self._lock, self._feeding = threading.Lock(), threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gridlaw-journals", daemon=True)
        self._thread.start()

    def watch(self, run_id: str, path: Path) -> None:
        """Begin to send a run's journal; the file may come later."""
        with self._lock:
            self._senders.setdefault(run_id, JournalSender(path, run_id, self._tracking))

    def finish(self, run_id: str, *, timeout_seconds: float = 30.0) -> JournalStatus:
        """Send the rest of a run that has ended, and forget it. An outage is no exception: see the status."""
        with self._lock:
            sender = self._senders.pop(run_id, None)
        if sender is None:
            return JournalStatus()
        if not self._pull([run_id]):
            return JournalStatus(failure="the store is away")
        status = flush_journal(sender.path, run_id, self._tracking, timeout_seconds=timeout_seconds)
        self._drop_sent(run_id)
        return status

    def close(self, *, timeout_seconds: float = 30.0) -> None:
        """Stop; what is left stays in the files for the next run."""
        self._stopping.set()
        self._thread.join(timeout=timeout_seconds)

    def _run(self) -> None:
        pause = self._interval_seconds
        while not self._stopping.wait(pause):
            pause = self._interval_seconds if self._round() else min(2 * pause, 30.0)

    def _round(self) -> bool:
        """Send once around; False while the server or the store is away."""
        with self._lock:
            senders = list(self._senders.values())
        if not self._pull([sender.run_id for sender in senders]):
            return False
        for sender in senders:
            if sender.pending_bytes:
                with sending(sender.path, wait_seconds=0.0) as held:
                    if held and not attempt(sender.send, f"journal of run {sender.run_id}"):
                        return False
            self._drop_sent(sender.run_id)
        return True

    def _pull(self, run_ids: Collection[str]) -> bool:
        return self._ask_feed(lambda feed: feed.pull(run_ids))

    def _drop_sent(self, run_id: str) -> None:
        self._ask_feed(lambda feed: feed.drop_sent(run_id))

    def _ask_feed(self, ask: Callable[[JournalFeed], None]) -> bool:
        """False while the store is away: what it holds waits there."""
        if self._feed is None:
            return True
        with self._feeding:
            try:
                ask(self._feed)
            except (Surroundings, OSError) as error:
                log.debug("journals in the store: %s", error)
                return False
        return True


def attempt(send: Callable[[], object], what: str) -> bool:
    """Call; False for an outage. A refusal is logged and counts as done: the rest of that journal waits in its file."""
    try:
        send()
    except TrackingOutage as error:
        log.debug("%s: %s", what, error)
        return False
    except (Surroundings, OSError) as error:
        log.warning("%s: %s", what, error)
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _mark_path(path: Path) -> Path:
    return path.with_name(path.name + ".sent")
