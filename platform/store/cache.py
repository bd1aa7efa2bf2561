"""What this machine keeps of a store that has no plain files: read-only copies by content, and folders of work.

Where: ``GRIDLAW_CACHE``, else a folder in the system's place for temporary files. Everything in it can be fetched again
and may be deleted at any time that no work is under way.

Concurrency. Processes of one machine share a copy: who comes first fetches it, under a lock, into a folder aside that
is renamed when it is whole; the others wait for it. A copy's folder is named after the object versions that it holds,
so a changed object is another copy. Copies that nobody has asked for within an hour are deleted, the oldest first, when
all together are larger than ``GRIDLAW_CACHE_GIB`` (100 by default). Whoever works holds a lock on its folder of work;
folders without their worker are deleted by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.local import explain

PLACE, LIMIT = "GRIDLAW_CACHE", "GRIDLAW_CACHE_GIB"
_DEFAULT_GIB = 100.0
_IN_USE_SECONDS = 3600.0


def cache_root() -> Path:
    """The cache's folder, made if missing and closed to other users."""
    named = os.environ.get(PLACE)
    root = Path(named) if named else Path(tempfile.gettempdir()) / f"gridlaw-cache-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = root.stat().st_uid
    except OSError as error:
        raise explain(error, f"cannot make the cache {root} (set {PLACE} to another folder)") from error
    if owner not in (os.getuid(), 0):
        raise Surroundings(f"the cache {root} belongs to another user; set {PLACE} to a folder of your own")
    return root


def local_folder(store: Store, name: str) -> Path:
    """A folder of the store to read from: where it lies, or a copy on this machine."""
    path = store.path(name)
    return Cache(store).fetch(name) if path is None else path


class Cache:
    """Copies and folders of work of one store on this machine."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.root = cache_root() / hashlib.sha256(store.address.encode()).hexdigest()[:16]

    def fetch(self, name: str) -> Path:
        """A folder of the store as a folder of this machine, read-only; ``FileNotFoundError`` if nothing is in it."""
        versions = self.store.versions(name)
        if not versions:
            raise FileNotFoundError(self.store.url(name))
        copy = self._copy_of(name, versions)
        with _locked(copy):
            if not copy.is_dir():
                aside = copy.with_name(copy.name + ".part")
                shutil.rmtree(aside, ignore_errors=True)
                for each in versions:
                    self.store.download(each, aside / each.removeprefix(f"{name}/"))
                os.replace(aside, copy)
                self._make_room(keep=copy)
            os.utime(copy)
        return copy

    def adopt(self, name: str, folder: Path) -> Path:
        """Keep a folder that was made here and uploaded as ``name``; it is moved. Returns the copy."""
        copy = self._copy_of(name, self.store.versions(name))
        with _locked(copy):
            if copy.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
            else:
                os.replace(folder, copy)
            os.utime(copy)
        return copy

    def folder(self, name: str) -> Path:
        """A folder to build in that outlives its process, so that a killed one's successor goes on there."""
        path = self.root / "build" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def work(self, name: str) -> Iterator[Path]:
        """An empty folder of this process's own, deleted at the end."""
        place = self.root / "work"
        place.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        folder = place / f"{name.replace('/', '-')}-{os.getpid()}-{secrets.token_hex(4)}"
        with _locked(folder) as lock:
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)

    def _copy_of(self, name: str, versions: dict[str, tuple[int, str]]) -> Path:
        key = hashlib.sha256(json.dumps([name, versions], sort_keys=True).encode()).hexdigest()[:24]
        num_bytes = sum(size for size, _ in versions.values())
        place = self.root / "copies"
        place.mkdir(parents=True, exist_ok=True)
        return place / f"{key}-{num_bytes}"

    def _make_room(self, *, keep: Path) -> None:
        """Delete what was not asked for lately, oldest first, while there is too much. Never fails."""
        limit, now = _limit_bytes(), time.time()
        copies = []
        for copy in keep.parent.iterdir():
            written = copy.name.partition("-")[2]
            if written.isdigit():
                with suppress(OSError):
                    copies.append((copy.stat().st_mtime, int(written), copy))
        total = sum(size for _, size, _ in copies)
        for used, size, copy in sorted(copies):
            if total <= limit:
                return
            if copy != keep and now - used > _IN_USE_SECONDS:
                shutil.rmtree(copy, ignore_errors=True)
                total -= size


def _limit_bytes() -> float:
    text = os.environ.get(LIMIT, str(_DEFAULT_GIB))
    try:
        return float(text) * 2**30
    except ValueError:
        raise BadInput(LIMIT, seen=text, allowed="a number of GiB") from None


def _sweep(place: Path) -> None:
    """Delete folders of work whose process has gone: nobody holds their lock."""
    for lock in place.glob("*.lock"):
        with suppress(OSError), open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Hold the lock of a path among this machine's processes; the kernel frees it when its holder dies."""
    lock = path.with_name(path.name + ".lock")
    while True:
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _same(file.fileno(), lock):
                continue  # deleted while we waited
            yield lock
            return


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
