from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disks import mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 2 MB of its own."""
    with mounted(tmp_path / "small-disk", "2m") as folder:
        yield folder


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python processes from source; what still runs in the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(source: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", source, *map(str, arguments)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()
