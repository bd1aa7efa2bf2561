from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disks import mounted
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.local import LocalStore
from gridlaw.platform.store.s3 import S3Store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Both kinds of store, empty: what holds for one holds for the other."""
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    return S3Store(f"s3://{request.getfixturevalue('s3').new_bucket()}/some/prefix")


@pytest.fixture
def age(request: pytest.FixtureRequest) -> Callable[[Store, str, float], None]:
    """``age(store, name, seconds)``: let an object have been written so many seconds ago."""

    def set_age(store: Store, name: str, seconds: float) -> None:
        if isinstance(store, LocalStore):
            os.utime(store.path(name), (time.time() - seconds,) * 2)
        else:
            assert isinstance(store, S3Store)
            request.getfixturevalue("s3").age(store.bucket, f"{store.prefix}/{name}", seconds)

    return set_age


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
