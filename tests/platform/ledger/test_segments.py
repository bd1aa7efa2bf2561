"""Journals through the store in pieces: every row arrives once, whoever dies in between."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gridlaw.platform.ledger.journal import Journal
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.segments import JournalFeed, JournalUploader, ProgressFeed, journal_prefix, progress_name
from gridlaw.platform.ledger.sender import JOURNAL_FILE, JournalPump, flush_all
from gridlaw.platform.progress import ProgressReader, ProgressWriter
from gridlaw.platform.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def run_id(ledger: Ledger) -> str:
    return ledger.start_run("trunk", name="full/S1/seed0", fingerprint="f")


def work(store: LocalStore, run_id: str, folder: Path, first: int, last: int) -> JournalUploader:
    """What a worker logs and puts up, on a machine of its own."""
    with Journal(folder, run_id, tracking_uri=None, system_metrics_seconds=None) as journal:
        for step in range(first, last + 1):
            journal.log({"loss": 1 / step}, step)
    uploader = JournalUploader(store, run_id, folder)
    uploader.upload()
    return uploader


def history(ledger: Ledger, run_id: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in ledger.tracking.client.get_metric_history(run_id, "loss")]


def expected(last: int) -> list[tuple[int, float]]:
    return [(step, 1 / step) for step in range(1, last + 1)]


def test_only_whole_lines_go_up_and_each_once(store: LocalStore, tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    uploader = JournalUploader(store, "r", tmp_path)
    uploader.upload()
    assert store.list() == []
    path.write_bytes(b'{"s":1}\n{"s":')
    uploader.upload()
    uploader.upload()
    with path.open("ab") as file:
        file.write(b"2}\n")
    uploader.upload()
    pieces = store.list(journal_prefix("r"))
    assert [store.read_bytes(piece) for piece in pieces] == [b'{"s":1}\n', b'{"s":2}\n']


def test_rows_of_a_killed_worker_and_its_successor_arrive_once(
    store: LocalStore, ledger: Ledger, run_id: str, tmp_path: Path
) -> None:
    work(store, run_id, tmp_path / "node-1", 1, 30)
    work(store, run_id, tmp_path / "node-2", 21, 50)  # from the checkpoint at 20
    feed = JournalFeed(store, tmp_path / "driver")
    assert feed.unsent() == [run_id]
    statuses = flush_all(tmp_path / "driver", [run_id, "another"], ledger.tracking, feed=feed)
    assert list(statuses) == [run_id] and statuses[run_id].complete
    assert history(ledger, run_id) == expected(50)
    assert feed.unsent() == [] and store.list("journals") == []


def test_a_driver_killed_between_sending_and_deleting_doubles_nothing(
    store: LocalStore, ledger: Ledger, run_id: str, tmp_path: Path
) -> None:
    uploader = work(store, run_id, tmp_path / "node", 1, 20)
    first = JournalFeed(store, tmp_path / "first")
    first.pull([run_id])
    assert flush_all(tmp_path / "first", [run_id], ledger.tracking)[run_id].complete
    assert store.list("journals"), "the first driver died before it deleted them"
    with Journal(tmp_path / "node", run_id, tracking_uri=None, system_metrics_seconds=None) as journal:
        journal.log({"loss": 1 / 21}, 21)
    uploader.upload()
    flush_all(tmp_path / "second", [run_id], ledger.tracking, feed=JournalFeed(store, tmp_path / "second"))
    assert history(ledger, run_id) == expected(21)
    assert store.list("journals") == []


def test_the_pump_brings_rows_while_a_worker_works_and_deletes_what_it_sent(
    store: LocalStore, ledger: Ledger, run_id: str, tmp_path: Path
) -> None:
    feed = JournalFeed(store, tmp_path / "driver")
    pump = JournalPump(ledger.tracking, feed=feed, interval_seconds=0.1)
    pump.watch(run_id, feed.path(run_id))
    work(store, run_id, tmp_path / "node-1", 1, 10)
    until = time.monotonic() + 60
    while history(ledger, run_id) != expected(10) or store.list("journals"):
        assert time.monotonic() < until
        time.sleep(0.05)
    work(store, run_id, tmp_path / "node-2", 8, 12)
    assert pump.finish(run_id).complete
    pump.close()
    assert history(ledger, run_id) == expected(12)
    assert store.list("journals") == []


def test_progress_comes_through_the_store_and_leaves_nothing(store: LocalStore, tmp_path: Path) -> None:
    ProgressWriter(tmp_path, stage="trunk").update(step=3, until_step=9, force=True)
    store.write_bytes(progress_name("r"), (tmp_path / "progress.json").read_bytes())
    store.write_bytes(progress_name("stranger"), b"{}")
    feed, reader = ProgressFeed(store, tmp_path / "driver", interval_seconds=0.05), ProgressReader()
    feed.watch("r")
    until = time.monotonic() + 30
    while (progress := reader.read(tmp_path / "driver" / "r")) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert (progress.step, progress.until_step, progress.stage) == (3, 9, "trunk")
    feed.close()
    assert store.list("progress") == [progress_name("stranger")]
