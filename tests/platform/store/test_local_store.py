from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.store.base import Store, attempt_name, data_name, experiment_name
from gridlaw.platform.store.lease import look
from gridlaw.platform.store.local import MARKER, TEMPORARY_PREFIX, LocalStore, is_gone
from gridlaw.platform.store.open import open_store

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]


def test_it_is_a_store(store: LocalStore) -> None:
    checked: Store = store
    assert checked.address == str(store.root.resolve())


def test_names_stay_inside(store: LocalStore) -> None:
    for name in ("", "/etc/passwd", "../x", "a/../../x"):
        with pytest.raises(AssertionError, match="inside the store"):
            store.path(name)
    assert experiment_name("a/b") == "a%2Fb"
    assert experiment_name("..") == "%2E."
    assert store.name_of(store.root / attempt_name("r") / "x") == "attempts/r/x"
    assert data_name("f") == "data/f"


def test_folder_is_made(store: LocalStore) -> None:
    assert store.folder("attempts/r").is_dir()
    assert store.name_of(store.folder("attempts/r")) == "attempts/r"


def test_a_killed_writer_leaves_the_old_or_the_new_content(store: LocalStore, start: Start) -> None:
    source = """if True:
        import sys
        from gridlaw.platform.store.local import LocalStore
        store = LocalStore(sys.argv[1])
        print("ready", flush=True)
        while True:
            for letter in b"ab":
                store.write_bytes("x", bytes([letter]) * 1_000_000, durable=False)
    """
    schedule = random.Random(7)
    for _ in range(5):
        writer = start(source, store.root)
        writer.stdout.readline()
        time.sleep(schedule.uniform(0.01, 0.1))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        content = store.read_bytes("x") if store.exists("x") else b""
        assert content in (b"", b"a" * 1_000_000, b"b" * 1_000_000)
    assert store.list() in ([], ["x"]), "a half-written file is no object"
    store.remove_leftovers(older_than_seconds=-1)
    assert leftovers(store.root) == []


def test_head_disk_fills(small_disk: Path) -> None:
    """ray #23688: a clear error, what was there stays, and work goes on once there is room."""
    store = LocalStore(small_disk / "store")
    store.write_bytes("kept", b"old")
    store.write_bytes("filler", b"x" * 1_500_000)
    for _ in range(2):
        with pytest.raises(Surroundings, match=r"disk is full.*make room"):
            store.write_bytes("kept", b"n" * 1_000_000)
        with pytest.raises(Surroundings, match="disk is full"):
            store.create("new", b"n" * 1_000_000)
    assert store.read_bytes("kept") == b"old"
    assert store.list() == ["filler", "kept"]
    assert leftovers(store.root) == []
    store.delete("filler")
    store.write_bytes("kept", b"n" * 1_000_000)
    assert store.free_bytes() < 1_100_000


def test_an_unwritable_store_is_refused(small_disk: Path) -> None:
    root = small_disk / "store"
    LocalStore(root).write_bytes("x", b"1")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(Surroundings, match=r"(?s)Read-only.*run\.store"):
        LocalStore(root)
    with pytest.raises(Surroundings, match="Read-only"):
        LocalStore(small_disk / "other")
    reader = LocalStore(root, create=False)
    assert reader.read_bytes("x") == b"1"
    with pytest.raises(Surroundings, match="Read-only"):
        reader.write_bytes("x", b"2")


def test_a_vanished_store_is_not_made_again(store: LocalStore) -> None:
    store.write_bytes("x", b"1")
    shutil.rmtree(store.root)
    for use in (
        lambda: store.write_bytes("x", b"2"),
        lambda: store.read_bytes("x"),
        lambda: store.create("y", b""),
        lambda: store.folder("attempts/r"),
        lambda: store.touch_if("x", expected=b"1"),
    ):
        with pytest.raises(Surroundings, match="is gone"):
            use()
    assert not store.root.exists()


def test_an_empty_folder_where_a_disk_was_mounted_is_not_the_store(small_disk: Path) -> None:
    """The store is the mount itself: unmounted, its folder is still there."""
    store = LocalStore(small_disk)
    store.write_bytes("x", b"1")
    subprocess.run(["umount", "-l", str(small_disk)], check=True)
    try:
        for use in (lambda: store.write_bytes("x", b"2"), lambda: store.read_bytes("x"), lambda: store.folder("y")):
            with pytest.raises(Surroundings, match="is gone"):
                use()
        assert list(small_disk.iterdir()) == []
    finally:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small_disk)], check=True)


def test_a_store_of_an_earlier_version_is_marked_when_it_is_next_written(store: LocalStore) -> None:
    store.write_bytes("x", b"1")
    store.path(MARKER).unlink()
    reader = LocalStore(store.root, create=False)
    assert reader.read_bytes("x") == b"1"
    with pytest.raises(FileNotFoundError):
        reader.read_bytes("absent")
    assert is_gone(store.root)
    LocalStore(store.root)
    assert not is_gone(store.root)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "absent", create=False)
    assert store.list() == []
    assert not store.exists("x")
    assert look(store, "grid") is None
    with pytest.raises(Surroundings, match="is gone"):
        store.write_bytes("x", b"")
    assert not (tmp_path / "absent").exists()


def test_addresses(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert open_store(f"file://{tmp_path}/link", create=True).address == str(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    for path in ("file", "file/store", "nowhere"):
        for create in (True, False):
            with pytest.raises(BadInput, match="no folder"):
                open_store(tmp_path / path, create=create)
