"""Real disks for tests that need root: small ones that fill, and ones that are taken away and brought back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A filesystem of its own at ``folder``; size as tmpfs takes it, ``2m``."""
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def resize(folder: Path, size: str) -> None:
    """Give a ``mounted`` filesystem another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take every byte that is left on a disk, after what ``path`` takes already."""
    with open(path, "ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


class Removable:
    """A folder whose content is on another one: taken away, ``folder`` is there and empty, as under a lost mount."""

    def __init__(self, folder: Path, kept: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("mounting a disk needs root")
        self.folder, self.kept = folder, kept
        self._attached = False

    def attach(self) -> None:
        """Bring it back, with all that was on it."""
        self.folder.mkdir(exist_ok=True)
        self.kept.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", str(self.kept), str(self.folder)], check=True)
        self._attached = True

    def detach(self) -> None:
        """Take it away, whoever has files open on it; nothing happens if it is away."""
        if self._attached:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)
            self._attached = False
