"""Journals and progress through the store, where workers and driver share no files.

A worker's journal is a file of its own machine; what is appended to it goes up piece by piece, each piece an object
``journals/<run>/<writer>-<token>-<number>.jsonl``. The driver appends the pieces to a file of its own, from which
``sender`` sends them as it does any journal, and deletes those that were sent: an object here is a row that the
tracking server may not have. So a driver that starts finds in one listing what its predecessor could not send.

Why nothing is lost or doubled. A worker puts its rows up before a checkpoint that comes after them, so whoever goes on
from a checkpoint needs no row before it. ``writer`` is one more than any before it, and pieces are appended in the
order of writers and numbers. After a kill, two workers may have written the same steps, or both may still be at work
for a moment: the values are the same, and the sender sends a (metric, step) once.

Progress is one small object for each run, ``progress/<run>.json``, read when it has changed.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from gridlaw.platform.errors import Surroundings
from gridlaw.platform.ledger.sender import JOURNAL_FILE, sent_bytes
from gridlaw.platform.progress import FILE as PROGRESS_FILE
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.local import TEMPORARY_PREFIX

_PIECE = re.compile(r"journals/(?P<run>[^/]+)/(?P<writer>\d+)-[0-9a-f]+-\d+\.jsonl")
_MAX_PIECE_BYTES = 8 * 2**20


def journal_prefix(run_id: str) -> str:
    """Folder of the pieces of one run's journal."""
    return f"journals/{run_id}"


def progress_name(run_id: str) -> str:
    """Object of one run's progress."""
    return f"progress/{run_id}.json"


class JournalUploader:
    """A worker's side: puts what is appended to ``folder``'s journal into the store. One thread at a time."""

    def __init__(self, store: Store, run_id: str, folder: Path) -> None:
        self._store, self._run_id, self._path = store, run_id, folder / JOURNAL_FILE
        self._prefix = ""
        self._offset, self._number = 0, 0

    def upload(self) -> None:
        """Put all whole lines that are there now. ``Surroundings`` leaves them to the next time."""
        while True:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._offset)
                    data = file.read(_MAX_PIECE_BYTES)
            except FileNotFoundError:
                return
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                return
            if not self._prefix:
                self._prefix = self._begin()
            self._store.write_bytes(f"{self._prefix}-{self._number:08d}.jsonl", whole)
            self._offset += len(whole)
            self._number += 1

    def _begin(self) -> str:
        folder = journal_prefix(self._run_id)
        found = [_PIECE.fullmatch(name) for name in self._store.list(folder)]
        writer = 1 + max((int(match["writer"]) for match in found if match), default=0)
        return f"{folder}/{writer:06d}-{secrets.token_hex(4)}"


class JournalFeed:
    """The driver's side: appends the pieces of runs' journals to files in ``folder``, as a local store would hold them.

    Concurrency. One thread at a time, which ``JournalPump`` sees to.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self.folder = store, folder
        self._appended: dict[str, dict[str, int]] = {}
        """By run: piece → where it ends in the file here."""

    def unsent(self) -> list[str]:
        """Ids of all runs in the store with rows that were not surely sent; one listing."""
        matches = (_PIECE.fullmatch(name) for name in self._store.list("journals"))
        return list(dict.fromkeys(match["run"] for match in matches if match))

    def pull(self, run_ids: Collection[str]) -> None:
        """Append new pieces of these runs' journals to their files here."""
        where = "journals" if len(run_ids) != 1 else journal_prefix(next(iter(run_ids)))
        for name in self._store.list(where) if run_ids else ():  # sorted: by run, writer, number
            match = _PIECE.fullmatch(name)
            if match is None or match["run"] not in run_ids or name in self._appended.get(match["run"], ()):
                continue
            try:
                data = self._store.read_bytes(name)
            except FileNotFoundError:
                continue
            path = self.path(match["run"])
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(data)
                end = file.tell()
            self._appended.setdefault(match["run"], {})[name] = end

    def drop_sent(self, run_id: str) -> None:
        """Delete the pieces that were sent whole."""
        done = sent_bytes(self.path(run_id))
        pieces = self._appended.get(run_id, {})
        sent = [name for name, end in pieces.items() if end <= done]
        self._store.delete_objects(sent)
        for name in sent:
            del pieces[name]

    def path(self, run_id: str) -> Path:
        """A run's journal here."""
        return self.folder / run_id / JOURNAL_FILE


class ProgressFeed:
    """The driver's side: keeps the progress of running runs in ``folder`` up to date, from a thread of its own."""

    def __init__(self, store: Store, folder: Path, *, interval_seconds: float = 2.0) -> None:
        self._store, self._folder, self._interval_seconds = store, folder, interval_seconds
        self._seen: dict[str, str] = {}
        self._watched, self._ended, self._lock = set[str](), set[str](), threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gridlaw-progress", daemon=True)
        self._thread.start()

    def watch(self, run_id: str) -> None:
        """Begin to fetch a run's progress."""
        with self._lock:
            self._watched.add(run_id)

    def forget(self, run_id: str) -> None:
        """A run has ended: its progress is of no more use, here and in the store."""
        with self._lock:
            self._watched.discard(run_id)
            self._ended.add(run_id)

    def close(self) -> None:
        """Stop, and leave nothing in the store."""
        self._stopping.set()
        self._thread.join(timeout=10)
        self._ended |= self._watched
        with suppress(Surroundings):
            self._drop_ended()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            with suppress(Surroundings, OSError):  # it is for the eye
                self._pull()
                self._drop_ended()

    def _drop_ended(self) -> None:
        with self._lock:
            ended = set(self._ended)
        if ended:
            self._store.delete_objects(progress_name(run_id) for run_id in ended)
            with self._lock:
                self._ended -= ended

    def _pull(self) -> None:
        with self._lock:
            wanted = {progress_name(run_id): run_id for run_id in self._watched}
        for name, (_, version) in self._store.versions("progress").items() if wanted else ():
            if name not in wanted or self._seen.get(name) == version:
                continue
            folder = self._folder / wanted[name]
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f"{TEMPORARY_PREFIX}{PROGRESS_FILE}"
            with suppress(FileNotFoundError):
                temporary.write_bytes(self._store.read_bytes(name))
                os.replace(temporary, folder / PROGRESS_FILE)
                self._seen[name] = version
