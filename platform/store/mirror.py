"""A folder of this machine kept in step with a folder of the store: what appears, changes or goes here does so there.

For work that writes plain files while the store has none. The worker knows nothing of it: files are found by looking.

What the store shows is what the folder showed at some moment. Files that are replaced by a rename are uploaded whole;
those that grow (one JSON value per line) are uploaded again as they are, and a torn last line is dropped by whoever
reads them. Files go up in the order in which they were finished, so that a result never precedes what it speaks of.
A kill or an outage leaves an earlier moment in the store, never a mixture that passes for a whole: checkpoints carry
checksums, results the sizes of their files.

Concurrency. One thread at a time calls ``sweep``. A file that is pruned while it goes up is still read to its end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from gridlaw.platform.store.base import Store
from gridlaw.platform.store.local import TEMPORARY_PREFIX

_PASSING = re.compile(rf"^{re.escape(TEMPORARY_PREFIX)}|\.tmp(-|$)|\.lock$|\.part$")


class Mirror:
    """``folder`` here, ``name`` in the store. left_out: names that are no business of it."""

    def __init__(self, store: Store, name: str, folder: Path, *, left_out: Callable[[str], bool]) -> None:
        self.store, self.name, self.folder = store, name, folder
        self._left_out = left_out
        self._stored: dict[str, tuple[int, int]] = {}
        """What the store surely has: relative name → (size, time) of the file here."""

    def pull(self, wanted: Callable[[str], bool]) -> list[str]:
        """Fetch the objects with these relative names; returns the names of all that the store has."""
        names = [each.removeprefix(f"{self.name}/") for each in self.store.list(self.name)]
        for each in names:
            if wanted(each) and not self._left_out(each):
                self.fetch(each)
        return names

    def fetch(self, name: str) -> Path:
        """Fetch one object, by its relative name."""
        path = self.folder / name
        self.store.download(f"{self.name}/{name}", path)
        self._stored[name] = _mark(path.stat())
        return path

    def sweep(self, found: dict[str, tuple[int, int]]) -> None:
        """Bring the store up to what ``look`` found. ``Surroundings`` leaves what is left to the next time."""
        for name in sorted(found, key=lambda each: found[each][1]):
            if self._stored.get(name) == found[name]:
                continue
            try:
                self.store.upload(self.folder / name, f"{self.name}/{name}")
            except FileNotFoundError:
                continue  # replaced or pruned meanwhile
            self._stored[name] = found[name]
        gone = [name for name in set(self._stored) - set(found) if not (self.folder / name).exists()]
        if gone:
            self.store.delete_objects(f"{self.name}/{name}" for name in gone)
        for name in gone:
            del self._stored[name]

    def look(self) -> dict[str, tuple[int, int]]:
        """Relative names of finished files → (size, time).

        A folder before those in it: a result here speaks of files there.
        """
        found: dict[str, tuple[int, int]] = {}
        folders = [self.folder]
        while folders:
            folder = folders.pop(0)
            with os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda each: each.name):
                    name = Path(entry.path).relative_to(self.folder).as_posix()
                    if _PASSING.search(entry.name) or self._left_out(name):
                        continue
                    if entry.is_dir():
                        folders.append(Path(entry.path))
                        continue
                    try:
                        found[name] = _mark(entry.stat())
                    except FileNotFoundError:
                        continue
        return found


def _mark(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
