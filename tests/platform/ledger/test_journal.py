from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from disks import fill, mounted
from gridlaw.platform.ledger.journal import Journal
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.sender import JOURNAL_FILE, JournalPump, flush_all, flush_journal, sending

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run_id(ledger: Ledger) -> str:
    return ledger.start_run("trunk", name="full/S1/seed0", fingerprint="f")


@pytest.fixture
def folder(tmp_path: Path, run_id: str) -> Path:
    return tmp_path / "attempts" / run_id


def quiet(folder: Path, run_id: str) -> Journal:
    """A journal that neither sends nor samples."""
    return Journal(folder, run_id, tracking_uri=None, system_metrics_seconds=None)


def loud(folder: Path, run_id: str, uri: str) -> Journal:
    return Journal(folder, run_id, tracking_uri=uri, system_metrics_seconds=None, send_seconds=0.2)


def history(ledger: Ledger, run_id: str, key: str = "loss") -> list[tuple[int, float]]:
    found = ledger.tracking.client.get_metric_history(run_id, key)
    return [(metric.step, metric.value) for metric in found]


def expected(num_steps: int) -> list[tuple[int, float]]:
    return [(step, 1 / step) for step in range(1, num_steps + 1)]


def log_steps(journal: Journal, first: int, last: int) -> None:
    for step in range(first, last + 1):
        journal.log({"loss": 1 / step, "tokens": float(512 * step)}, step)


def test_what_is_logged_arrives_in_order(ledger: Ledger, run_id: str, folder: Path) -> None:
    journal = loud(folder, run_id, ledger.tracking_uri)
    log_steps(journal, 1, 1500)
    status = journal.close()
    assert status.complete
    assert status.num_sent == 3000
    assert history(ledger, run_id) == expected(1500)
    assert ledger.read_run(run_id).metrics == {"loss": 1 / 1500, "tokens": 512.0 * 1500}


def test_steps_done_again_after_a_resume_are_not_logged_again(ledger: Ledger, run_id: str, folder: Path) -> None:
    first = loud(folder, run_id, ledger.tracking_uri)
    log_steps(first, 1, 20)
    assert first.close().complete
    second = loud(folder, run_id, ledger.tracking_uri)
    log_steps(second, 11, 30)
    assert second.close().num_sent == 20
    assert history(ledger, run_id) == expected(30)


def test_a_lost_journal_doubles_nothing(ledger: Ledger, run_id: str, folder: Path) -> None:
    journal = loud(folder, run_id, ledger.tracking_uri)
    log_steps(journal, 1, 20)
    assert journal.close().complete
    for path in folder.iterdir():
        path.unlink()
    journal = loud(folder, run_id, ledger.tracking_uri)
    log_steps(journal, 11, 30)
    assert journal.close().complete
    assert history(ledger, run_id) == expected(30)


def test_the_driver_sends_what_a_dead_worker_left(ledger: Ledger, run_id: str, folder: Path) -> None:
    journal = quiet(folder, run_id)
    log_steps(journal, 1, 10)
    journal.close()
    with journal.path.open("ab") as file:
        file.write(b'{"s":11,"t":17')  # killed inside a write
    status = flush_journal(journal.path, run_id, ledger.tracking)
    assert (status.num_sent, status.complete) == (20, False), "what may still be written is waited for"
    again = quiet(folder, run_id)
    log_steps(again, 5, 12)
    again.close()
    attempts = folder.parent
    assert flush_all(attempts, [run_id, "unknown"], ledger.tracking)[run_id].complete
    assert flush_all(attempts, [run_id], ledger.tracking) == {}, "nothing left: not even opened"
    assert history(ledger, run_id) == expected(12)


def test_a_damaged_line_costs_that_line_only(ledger: Ledger, run_id: str, folder: Path) -> None:
    journal = quiet(folder, run_id)
    log_steps(journal, 1, 3)
    journal.close()
    lines = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(lines[0] + b"\x00" * 30 + b"\n" + b'{"s": "x"}\n[]\n' + lines[2])
    assert flush_journal(journal.path, run_id, ledger.tracking).complete
    assert history(ledger, run_id) == [(1, 1.0), (3, 1 / 3)]


def test_non_finite_values_are_named_and_left_out(ledger: Ledger, run_id: str, folder: Path) -> None:
    journal = loud(folder, run_id, ledger.tracking_uri)
    journal.log({"loss": math.nan, "grad_norm": 1.0}, 1)
    journal.log({"loss": math.inf, "grad_norm": 2.0}, 2)
    journal.close()
    assert journal.nonfinite == {"loss"}
    assert ledger.read_run(run_id).metrics == {"grad_norm": 2.0}


WRITER = """if True:
    import sys
    from pathlib import Path
    from gridlaw.platform.ledger.journal import Journal
    folder, run_id, uri, last = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    import mlflow, time
    checkpoint = folder / "step"
    begin = int(checkpoint.read_text()) if checkpoint.exists() else 0
    journal = Journal(folder, run_id, tracking_uri=uri, system_metrics_seconds=None, send_seconds=0.05)
    for step in range(begin + 1, last + 1):
        journal.log({"loss": 1 / step, "tokens": float(512 * step)}, step)
        if step % 50 == 0:
            (folder / "aside").write_text(str(step))
            (folder / "aside").rename(checkpoint)
        if step == begin + 60:
            print("going", flush=True)
        time.sleep(0.001)
    assert journal.close(timeout_seconds=60).complete
    print("done", flush=True)
"""


def test_a_killed_writer_loses_and_doubles_nothing(ledger: Ledger, run_id: str, folder: Path, start: Start) -> None:
    folder.mkdir(parents=True)
    schedule = random.Random(3)
    num_steps = 3000
    for _ in range(2):
        writer = start(WRITER, folder, run_id, ledger.tracking_uri, num_steps)
        assert writer.stdout.readline() == "going\n"
        time.sleep(schedule.uniform(0.2, 1.0))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    writer = start(WRITER, folder, run_id, ledger.tracking_uri, num_steps)
    assert writer.communicate(timeout=120)[0] == "going\ndone\n"
    assert history(ledger, run_id) == expected(num_steps)
    assert history(ledger, run_id, "tokens") == [(step, 512.0 * step) for step in range(1, num_steps + 1)]


def test_three_writers_share_an_sqlite_database(ledger: Ledger, tmp_path: Path, start: Start) -> None:
    """mlflow PR #6490: sqlite locked."""
    runs = [ledger.start_run("trunk", name=f"t{i}", fingerprint="f") for i in range(3)]
    writers = []
    for run in runs:
        (tmp_path / run).mkdir()
        writers.append(start(WRITER, tmp_path / run, run, ledger.tracking_uri, 400))
    for writer in writers:
        assert writer.communicate(timeout=120)[0] == "going\ndone\n"
    for run in runs:
        assert history(ledger, run) == expected(400)


def test_system_metrics_come_at_the_optimizers_steps(ledger: Ledger, run_id: str, folder: Path) -> None:
    journal = Journal(folder, run_id, tracking_uri=ledger.tracking_uri, system_metrics_seconds=0.2, send_seconds=0.2)
    deadline = time.monotonic() + 60
    step = 0
    while time.monotonic() < deadline and journal.path.read_text().count("system/cpu") < 3:
        step += 10
        journal.log({"loss": 1 / step}, step)
        time.sleep(0.05)
    assert journal.close().complete
    sampled = history(ledger, run_id, "system/cpu_utilization_percentage")
    steps = [at for at, _ in sampled]
    assert len(steps) >= 3
    assert steps == sorted(set(steps))
    assert all(at % 10 == 0 for at in steps)
    assert dict(history(ledger, run_id, "system/system_memory_usage_megabytes"))[steps[-1]] > 0


def test_a_run_deleted_meanwhile_stops_no_training(ledger: Ledger, run_id: str, folder: Path) -> None:
    journal = loud(folder, run_id, ledger.tracking_uri)
    ledger.tracking.client.delete_run(run_id)
    log_steps(journal, 1, 5)
    status = journal.close(timeout_seconds=3)
    assert status.pending_bytes > 0
    assert run_id in status.failure


def test_a_folder_that_cannot_be_written_stops_no_training(run_id: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    journal = quiet(tmp_path / "file" / "x", run_id)
    log_steps(journal, 1, 5)
    assert "cannot write" in journal.close().failure


def test_a_full_disk_delays_rows(ledger: Ledger, run_id: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "small-disk", "1m") as disk:
        journal = quiet(disk, run_id)
        log_steps(journal, 1, 10)
        fill(disk / "filler")
        log_steps(journal, 11, 400)
        rows = [json.loads(line) for line in journal.path.read_bytes().splitlines()]
        assert 10 <= len(rows) < 400, "the disk was not full"
        (disk / "filler").unlink()
        log_steps(journal, 401, 410)
        assert journal.close().failure == ""
        assert flush_journal(journal.path, run_id, ledger.tracking).complete
        assert history(ledger, run_id) == expected(410)


def test_a_journal_has_one_sender(ledger: Ledger, run_id: str, folder: Path) -> None:
    journal = quiet(folder, run_id)
    log_steps(journal, 1, 5)
    journal.close()
    with sending(journal.path, wait_seconds=0) as held:
        assert held
        status = flush_journal(journal.path, run_id, ledger.tracking, timeout_seconds=0.2)
        assert status.failure == "another process is sending it"
    assert flush_journal(journal.path, run_id, ledger.tracking).complete


def test_the_pump_sends_for_workers_that_do_not(ledger: Ledger, tmp_path: Path) -> None:
    runs = [ledger.start_run("trunk", name=f"t{i}", fingerprint="f") for i in range(3)]
    pump = JournalPump(ledger.tracking, interval_seconds=0.05)
    for run in runs:
        pump.watch(run, tmp_path / run / JOURNAL_FILE)
    journals = [quiet(tmp_path / run, run) for run in runs]
    for journal in journals:
        log_steps(journal, 1, 20)
    deadline = time.monotonic() + 30
    while len(history(ledger, runs[2])) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for journal, run in zip(journals, runs, strict=True):
        log_steps(journal, 15, 30)
        journal.close()
        assert pump.finish(run).complete
        assert history(ledger, run) == expected(30)
    pump.close()
