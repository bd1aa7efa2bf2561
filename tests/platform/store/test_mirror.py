"""A folder kept in step with a store: whole files, in the order in which they were finished."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridlaw.platform.store.local import LocalStore
from gridlaw.platform.store.mirror import Mirror


class Recording(LocalStore):
    """Notes the order of uploads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.uploaded: list[str] = []

    def upload(self, path: Path, name: str) -> None:
        super().upload(path, name)
        self.uploaded.append(name.removeprefix("runs/a/"))


@pytest.fixture
def store(tmp_path: Path) -> Recording:
    return Recording(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def mirror_of(store: LocalStore, folder: Path) -> Mirror:
    return Mirror(store, "runs/a", folder, left_out=lambda name: name == "journal.jsonl")


def put(path: Path, data: bytes, *, at: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at, at))


def test_what_is_new_or_changed_goes_up_in_the_order_of_its_making(store: Recording, folder: Path) -> None:
    mirror = mirror_of(store, folder)
    put(folder / "result.json", b"r", at=30)
    put(folder / "model" / "weights", b"w", at=20)
    put(folder / "z.ckpt", b"z", at=10)
    for passing in (".part-1-x", "z.ckpt.tmp-ab12", "x.lock", "x.tmp", "journal.jsonl"):
        put(folder / passing, b"no", at=1)
    mirror.sweep(mirror.look())
    assert store.uploaded == ["z.ckpt", "model/weights", "result.json"]
    mirror.sweep(mirror.look())
    assert len(store.uploaded) == 3, "nothing was new"
    put(folder / "z.ckpt", b"zz", at=40)
    mirror.sweep(mirror.look())
    assert store.uploaded[3:] == ["z.ckpt"]
    assert store.read_bytes("runs/a/z.ckpt") == b"zz"


def test_what_is_pruned_here_goes_there_and_what_was_never_here_stays(store: Recording, folder: Path) -> None:
    for name in ("old", "kept", "fetched"):
        store.write_bytes(f"runs/a/{name}", name.encode())
    mirror = mirror_of(store, folder)
    assert mirror.pull(lambda name: name == "fetched") == ["fetched", "kept", "old"]
    assert (folder / "fetched").read_bytes() == b"fetched"
    mirror.sweep(mirror.look())
    assert store.uploaded == [], "what was fetched is there already"
    (folder / "fetched").unlink()
    mirror.sweep(mirror.look())
    assert store.list("runs/a") == ["runs/a/kept", "runs/a/old"]


def test_a_file_that_goes_between_look_and_upload_is_passed_over(store: Recording, folder: Path) -> None:
    mirror = mirror_of(store, folder)
    put(folder / "a", b"a", at=1)
    put(folder / "b", b"b", at=2)
    found = mirror.look()
    (folder / "a").unlink()
    mirror.sweep(found)
    assert store.uploaded == ["b"]
