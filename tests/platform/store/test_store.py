"""What both kinds of store do alike."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gridlaw.platform.store.base import Store
from gridlaw.platform.store.open import attach_store, open_store
from running import let_go

Start = Callable[..., "subprocess.Popen[str]"]
Age = Callable[[Store, str, float], None]


def test_what_is_written_is_read_listed_and_deleted(store: Store) -> None:
    store.write_bytes("a/b.json", b"1")
    store.write_bytes("a/b.json", b"22")
    store.write_bytes("a/c/d.txt", b"")
    store.write_bytes("ab/e", b"x")
    assert store.read_bytes("a/b.json") == b"22"
    assert store.list() == ["a/b.json", "a/c/d.txt", "ab/e"]
    assert store.list("a") == ["a/b.json", "a/c/d.txt"]
    assert store.exists("a/c/d.txt") and store.exists("a/c") and not store.exists("a/b")
    store.delete("a/c")
    store.delete("never/there")
    assert store.list() == ["a/b.json", "ab/e"]
    assert not store.exists("a/c/d.txt") and not store.exists("a/c")


def test_versions_tell_sizes_and_change_with_the_content(store: Store) -> None:
    store.write_bytes("f/x", b"abc")
    first = store.versions("f")["f/x"]
    store.write_bytes("f/x", b"abd")
    second = store.versions("f")["f/x"]
    assert first[0] == second[0] == 3
    assert first[1] != second[1]


def test_a_missing_object_is_file_not_found(store: Store, tmp_path: Path) -> None:
    for read in (store.read_bytes, store.checksum, store.age_seconds):
        with pytest.raises(FileNotFoundError):
            read("absent")
    with pytest.raises(FileNotFoundError):
        store.download("absent", tmp_path / "file")
    assert not list(tmp_path.glob("*file*"))


def test_files_go_in_and_out_whole(store: Store, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    (tmp_path / "in").write_bytes(data)
    store.upload(tmp_path / "in", "folder/object")
    assert store.read_bytes("folder/object") == data
    store.download("folder/object", tmp_path / "new" / "out")
    assert (tmp_path / "new" / "out").read_bytes() == data
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def test_checksum_is_sha256_and_a_wrong_size_is_a_fault(store: Store) -> None:
    store.write_bytes("x", b"abc")
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert store.checksum("x") == sha256
    assert store.fault("x", num_bytes=3, sha256=sha256) is None
    assert store.fault("x", num_bytes=4, sha256=sha256) == "it has 3 bytes instead of 4"
    assert store.fault("y", num_bytes=4, sha256=sha256) == "it is missing"


def test_create_succeeds_once(store: Store) -> None:
    assert store.create("one", b"first")
    assert not store.create("one", b"first")
    assert not store.create("one", b"second")
    assert store.read_bytes("one") == b"first"


def test_what_is_removed_under_a_condition_can_be_created_again(store: Store) -> None:
    assert store.create("one", b"first")
    assert not store.replace_if("one", None, expected=b"other")
    assert store.replace_if("one", None, expected=b"first")
    assert not store.exists("one")
    assert store.list() == []
    for read in (store.read_bytes, store.age_seconds):
        with pytest.raises(FileNotFoundError):
            read("one")
    assert not store.replace_if("one", b"third", expected=b"first")
    assert store.create("one", b"second")
    assert not store.create("one", b"third")
    assert store.read_bytes("one") == b"second"


def test_create_has_one_winner_among_processes(store: Store, start: Start) -> None:
    source = """if True:
        import sys
        from gridlaw.platform.store.open import attach_store
        store = attach_store(sys.argv[1])
        store.exists("x")
        print("ready", flush=True)
        sys.stdin.readline()
        print(sum(store.create(f"race/{i}", b"all alike") for i in range(12)))
    """
    racers = [start(source, store.address) for i in range(4)]
    let_go(racers)
    wins = [int(racer.communicate(timeout=120)[0]) for racer in racers]
    assert sum(wins) == 12


def test_replace_if_loses_no_update_among_processes(store: Store, start: Start) -> None:
    source = """if True:
        import sys
        from gridlaw.platform.store.open import attach_store
        store = attach_store(sys.argv[1])
        for _ in range(5):
            while True:
                seen = store.read_bytes("counter")
                if store.replace_if("counter", str(int(seen) + 1).encode(), expected=seen):
                    break
    """
    store.write_bytes("counter", b"0")
    writers = [start(source, store.address) for _ in range(3)]
    for writer in writers:
        assert writer.wait(timeout=120) == 0, writer.stderr.read()
    assert store.read_bytes("counter") == b"15"


def test_touch_if_renews_the_age(store: Store, age: Age) -> None:
    store.write_bytes("x", b"mine")
    age(store, "x", 100)
    assert 98 < store.age_seconds("x") < 120
    assert not store.touch_if("x", expected=b"other")
    assert store.age_seconds("x") > 98
    assert store.touch_if("x", expected=b"mine")
    assert store.age_seconds("x") < 20
    assert store.read_bytes("x") == b"mine"


def test_one_address_however_it_is_opened(store: Store) -> None:
    store.write_bytes("x", b"1")
    for same in (open_store(store.address + "/", create=True), attach_store(store.address)):
        assert same.address == store.address
        assert same.read_bytes("x") == b"1"
    assert store.list() == ["x"], "a probe stayed behind"
    assert store.url("x") == f"{store.address}/x"
