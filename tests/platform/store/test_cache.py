"""What a machine keeps of a store: one copy of each content, folders of work that die with their worker."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gridlaw.platform.errors import BadInput
from gridlaw.platform.store.cache import Cache, local_folder
from gridlaw.platform.store.local import LocalStore
from gridlaw.platform.store.s3 import S3Store
from s3_server import S3Server

Start = Callable[..., "subprocess.Popen[str]"]


class Counting(S3Store):
    downloads = 0

    def download(self, name: str, path: Path) -> None:
        super().download(name, path)
        self.downloads += 1


@pytest.fixture
def distant(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setenv("GRIDLAW_CACHE", str(tmp_path / "cache"))
    return Counting(f"s3://{s3.new_bucket()}/x")


def test_a_folder_is_fetched_once_for_each_content(distant: Counting) -> None:
    distant.write_bytes("data/f/a", b"1")
    distant.write_bytes("data/f/sub/b", b"2")
    first = Cache(distant).fetch("data/f")
    assert (first / "a").read_bytes() == b"1" and (first / "sub" / "b").read_bytes() == b"2"
    assert local_folder(distant, "data/f") == first
    assert distant.downloads == 2
    distant.write_bytes("data/f/a", b"3")
    second = Cache(distant).fetch("data/f")
    assert second != first and (second / "a").read_bytes() == b"3" and (first / "a").read_bytes() == b"1"
    with pytest.raises(FileNotFoundError):
        Cache(distant).fetch("data/none")


def test_old_copies_make_room_and_recent_ones_stay(distant: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = {}
    for name in ("old", "recent"):
        distant.write_bytes(f"{name}/x", name.encode() * 100)
        copies[name] = Cache(distant).fetch(name)
    os.utime(copies["old"], (time.time() - 7200,) * 2)
    monkeypatch.setenv("GRIDLAW_CACHE_GIB", "0.0000001")
    distant.write_bytes("new/x", b"new")
    assert Cache(distant).fetch("new").is_dir()
    assert not copies["old"].exists() and copies["recent"].is_dir()
    monkeypatch.setenv("GRIDLAW_CACHE_GIB", "much")
    distant.write_bytes("newer/x", b"newer")
    with pytest.raises(BadInput, match="GRIDLAW_CACHE_GIB is 'much'"):
        Cache(distant).fetch("newer")


def test_a_folder_of_work_is_deleted_with_its_work_and_a_killed_workers_by_the_next(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDLAW_CACHE", str(tmp_path / "cache"))
    source = """if True:
        import sys, time
        from gridlaw.platform.store.cache import Cache
        from gridlaw.platform.store.local import LocalStore
        with Cache(LocalStore(sys.argv[1])).work("attempts/r") as folder:
            print(folder, flush=True)
            time.sleep(100)
    """
    store = LocalStore(tmp_path / "store")
    workers = [start(source, store.address) for _ in range(2)]
    alive, killed = (Path(worker.stdout.readline().strip()) for worker in workers)
    workers[1].send_signal(signal.SIGKILL)
    workers[1].wait()
    with Cache(store).work("attempts/r") as mine:
        assert not killed.exists()
        assert alive.is_dir() and mine.is_dir() and mine != alive
    assert not mine.exists() and alive.is_dir()
