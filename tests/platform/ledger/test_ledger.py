from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disks import fill, mounted
from gridlaw.platform.errors import BadInput, InUse, Surroundings
from gridlaw.platform.ledger import ledger as ledger_module
from gridlaw.platform.ledger import tables
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.records import RunRecord, by_name
from gridlaw.platform.ledger.tracking import (
    TrackingOutage,
    TrackingRefused,
    create_database,
    default_tracking_uri,
    redacted,
    resolve_tracking_uri,
)
from gridlaw.platform.ledger.version import code_version

Start = Callable[..., "subprocess.Popen[str]"]


def point(ledger: Ledger, name: str = "full/S1/100N/seed0", **more: object) -> str:
    return ledger.start_run("point", name=name, fingerprint="f" * 64, tags={"scale": "S1", **more})


def test_looking_up_makes_nothing_and_imports_no_mlflow(tmp_path: Path) -> None:
    source = f"""if True:
        import sys
        from gridlaw.platform.ledger.journal import Journal
        from gridlaw.platform.ledger.ledger import Ledger
        from gridlaw.platform.ledger.tracking import default_tracking_uri
        assert Ledger.open(default_tracking_uri({str(tmp_path)!r}), "grid", {str(tmp_path)!r}, create=False) is None
        print(sorted({{"mlflow", "ray", "torch", "pandas"}} & set(sys.modules)))
    """
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []


def test_reading_a_database_imports_no_mlflow(ledger: Ledger, tmp_path: Path) -> None:
    run_id = ledger.start_run("point", name="p", fingerprint="f", identity={"lr": 1})
    ledger.finish_run(run_id, metrics={"loss": 1.5})
    source = f"""if True:
        import sys
        from gridlaw.platform.ledger.ledger import Ledger
        ledger = Ledger.open({ledger.tracking_uri!r}, "grid", {str(tmp_path)!r}, create=False)
        run, = ledger.find_runs("point", name="p")
        print(run.finished, run.metrics, ledger.identity(run.run_id))
        print(sorted({{"mlflow", "sqlalchemy", "pandas"}} & set(sys.modules)))
    """
    printed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout
    assert printed == "True {'loss': 1.5} {'lr': 1}\n[]\n"


def test_an_experiment_that_is_not_there_is_none(uri: str, tmp_path: Path) -> None:
    assert Ledger.open(uri, "grid", str(tmp_path), create=False) is None
    made = Ledger.open(uri, "grid", str(tmp_path), create=True)
    found = Ledger.open(uri, "grid", str(tmp_path), create=False)
    assert found is not None
    assert found.experiment_id == made.experiment_id


def test_sqlite_is_made_once_by_racing_processes(tmp_path: Path, start: Start) -> None:
    """mlflow PR #6490: racing schema migrations."""
    source = """if True:
        import sys
        from gridlaw.platform.ledger.ledger import Ledger
        from gridlaw.platform.ledger.tracking import create_database
        import mlflow.store.tracking.sqlalchemy_store
        print("ready", flush=True)
        sys.stdin.readline()
        made = create_database(sys.argv[1])
        Ledger.open(sys.argv[1], sys.argv[2], "/store", create=True)
        print(made)
    """
    racers = [start(source, default_tracking_uri(tmp_path), f"grid-{i}") for i in range(2)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    assert sorted(racer.communicate(timeout=120)[0] for racer in racers) == ["False\n", "True\n"]


def test_a_kill_during_creation_leaves_no_half_database(tmp_path: Path, start: Start) -> None:
    uri = default_tracking_uri(tmp_path)
    source = "import sys; from gridlaw.platform.ledger.tracking import create_database; create_database(sys.argv[1])"
    maker = start(source, uri)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("mlflow.db.part-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    assert not (tmp_path / "mlflow.db").exists()
    assert Ledger.open(uri, "grid", str(tmp_path), create=False) is None
    assert Ledger.open(uri, "grid", str(tmp_path), create=True).find_runs() == []


def test_a_run_says_what_it_is_in_flat_tags(ledger: Ledger) -> None:
    """mlflow #1896 #15802: nested runs hide results."""
    submission = ledger.start_submission(config={"name": "grid"}, note="# Grid")
    run_id = ledger.start_run(
        "point",
        name="swa-128/S2/300N/seed0",
        fingerprint="abc",
        parent_id=submission,
        tags={"architecture": "swa-128", "scale": "S2", "budget": "300N", "seed": 0, "num_params": 123_456, "no": None},
        params={"lr": 1e-3},
        identity={"optimizer": {"lr": 0.001}},
        config={"layers": [1, 2]},
    )
    ledger.finish_run(run_id, metrics={"heldout_loss": 1.25}, step=40, tags={"checkpoint": "attempts/x"})
    for wanted in ({"architecture": "swa-128"}, {"scale": "S2"}, {"budget": "300N"}, {"seed": "0"}):
        assert [record.run_id for record in ledger.find_runs(tags=wanted)] == [run_id]
    record = ledger.find_runs("point", name="swa-128/S2/300N/seed0")[0]
    assert (record.kind, record.fingerprint, record.parent_id) == ("point", "abc", submission)
    assert record.finished
    assert record.metrics == {"heldout_loss": 1.25}
    assert record.params == {"lr": "0.001"}
    assert record.tags["checkpoint"] == "attempts/x"
    assert record.number("num_params") == 123_456
    assert "no" not in record.tags
    assert record.tags["version"] == code_version().package
    assert ledger.identity(run_id) == {"optimizer": {"lr": 0.001}}
    assert ledger.read_json(run_id, "config.json") == {"layers": [1, 2]}
    assert ledger.identity(submission) is None
    assert ledger.find_runs("submission")[0].note == "# Grid"


def test_a_stale_run_is_ended_unless_it_is_taken_over(ledger: Ledger) -> None:
    """Lightning #10397 #12291: a crash leaves a run RUNNING for ever."""
    mine, orphan, done = (point(ledger, name) for name in ("mine", "orphan", "done"))
    ledger.finish_run(done)
    assert ledger.end_stale_runs(keep=[mine], reason="the driver died") == [orphan]
    states = {record.name: (record.status, record.reason) for record in ledger.find_runs()}
    assert states == {"mine": ("RUNNING", ""), "orphan": ("FAILED", "the driver died"), "done": ("FINISHED", "")}


def test_a_requeued_run_keeps_its_id(ledger: Ledger) -> None:
    """Lightning #6205, mlflow #3228: a requeued run opens a second run."""
    run_id = point(ledger)
    ledger.fail_run(run_id, "loss is nan", diverged=True, error="Traceback")
    failed = ledger.read_run(run_id)
    assert (failed.status, failed.reason, failed.diverged) == ("FAILED", "loss is nan", True)
    assert ledger.read_text(run_id, "error.txt") == "Traceback"
    submission = ledger.start_submission()
    ledger.reopen_run(run_id, parent_id=submission)
    again = ledger.read_run(run_id)
    assert (again.status, again.reason, again.diverged, again.parent_id) == ("RUNNING", "", False, submission)
    assert again.tags["attempts"] == "2"
    ledger.finish_run(run_id)
    assert [record.run_id for record in ledger.find_runs("point")] == [run_id]


def test_non_finite_values_are_no_metrics(ledger: Ledger) -> None:
    """mlflow #16555 #15535 #3406: NaN breaks run pages and sorting."""
    run_id = point(ledger)
    ledger.finish_run(run_id, metrics={"loss": math.nan, "norm": math.inf, "tokens": 5.0})
    record = ledger.read_run(run_id)
    assert record.metrics == {"tokens": 5.0}
    assert record.tags["nonfinite"] == "loss, norm"


def test_results_sent_again_are_not_doubled(ledger: Ledger, tmp_path: Path) -> None:
    run_id = point(ledger)
    for _ in range(3):
        ledger.log_results(run_id, metrics={"loss": 1.5}, step=7)
    ledger.log_results(run_id, metrics={"loss": 1.5}, step=8)
    later = Ledger.open(ledger.tracking_uri, "grid", str(tmp_path), create=True)  # of the next driver
    later.log_results(run_id, metrics={"loss": 1.5}, step=8)
    history = ledger.tracking.client.get_metric_history(run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(7, 1.5), (8, 1.5)]


def test_params_go_with_what_is_sent_next_or_at_the_next_start(ledger: Ledger, tmp_path: Path) -> None:
    params = {"N": 17, "lr": 0.1}
    finished, cut_off = (ledger.start_run("point", name=name, fingerprint="f", params=params) for name in "ab")
    ledger.finish_run(finished)
    later = Ledger.open(ledger.tracking_uri, "grid", str(tmp_path), create=True)  # of the driver after a kill
    later.reopen_run(cut_off, params=params)
    later.reopen_run(finished, params=params)
    assert all(ledger.read_run(run_id).params == {"N": "17", "lr": "0.1"} for run_id in (finished, cut_off))


def test_nothing_long_is_refused(ledger: Ledger) -> None:
    """Lightning #5892 #19972 #16451 #17830: params cut or refused."""
    config = {f"key{i}": "v" * 100 for i in range(1000)}
    run_id = ledger.start_run("point", name="n", fingerprint="f", config=config, note="short")
    ledger.fail_run(run_id, "x" * 20_000)
    assert ledger.describe(run_id, "y" * 20_000)
    assert ledger.read_json(run_id, "config.json") == config
    record = ledger.read_run(run_id)
    assert len(record.reason) == 5000
    assert record.note.startswith("yyy")


def test_mlflow_finds_page_by_page_what_the_tables_hold(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"p{i}" for i in range(7)]
    runs = [point(ledger, name, seed=place % 2) for place, name in enumerate(names)]
    ledger.finish_run(runs[0], metrics={"loss": 1.5, "tokens": 1e12}, step=3, tags={"quote": "it's"})
    ledger.log_results(runs[0], metrics={"loss": 1.25}, step=4)
    ledger.tracking.client.log_metric(runs[0], "by hand", math.nan)
    ledger.describe(runs[0], "# note")
    ledger.fail_run(runs[1], "why", diverged=True)
    ledger.finish_run(ledger.start_run("trunk", name="t", fingerprint="f", params={"lr": 0.1}, parent_id=runs[0]))
    ledger.tracking.client.delete_run(runs[2])
    Ledger.open(ledger.tracking_uri, "another", "/elsewhere", create=True).start_submission()
    questions: list[dict[str, Any]] = [{}, {"kind": "point"}, {"name": "p3"}, {"tags": {"scale": "S1", "seed": "1"}}]
    questions.append({"tags": {"quote": "it's"}})
    found = [ledger.find_runs(**question) for question in questions]
    assert [len(each) for each in found] == [7, 6, 1, 3, 1]

    def other_tables(*given: object) -> None:
        raise sqlite3.OperationalError("no such column")

    monkeypatch.setattr(ledger_module, "_PAGE", 2)
    for name in ("find_runs", "find_experiment"):
        monkeypatch.setattr(tables, name, other_tables)
    again = Ledger.open(ledger.tracking_uri, "grid", str(tmp_path), create=False)
    for question, records in zip(questions, found, strict=True):
        assert _by_id(again.find_runs(**question)) == _by_id(records), question


def _by_id(records: list[RunRecord]) -> dict[str, str]:
    """As text, in which nan equals itself."""
    return {
        record.run_id: repr(dataclasses.asdict(record) | {"tags": sorted(record.tags.items())}) for record in records
    }


def test_a_superseded_run_counts_no_more(ledger: Ledger) -> None:
    old = point(ledger)
    ledger.finish_run(old)
    assert list(by_name(ledger.find_runs("point"))) == ["full/S1/100N/seed0"]
    ledger.supersede(old)
    assert by_name(ledger.find_runs("point")) == {}
    assert not ledger.read_run(old).finished
    assert ledger.read_run(old).status == "FINISHED"


def test_a_run_deleted_in_the_ui_is_not_found(ledger: Ledger) -> None:
    run_id = point(ledger)
    ledger.tracking.client.delete_run(run_id)
    assert ledger.find_runs() == []
    with pytest.raises(TrackingRefused, match=f"cannot mark run {run_id}"):
        ledger.finish_run(run_id)


def test_an_experiment_deleted_in_the_ui_gets_one_message(ledger: Ledger, tmp_path: Path) -> None:
    ledger.tracking.client.delete_experiment(ledger.experiment_id)
    for create in (True, False):
        with pytest.raises(BadInput, match=f"restore -x {ledger.experiment_id}.*another name"):
            Ledger.open(ledger.tracking_uri, "grid", str(tmp_path), create=create)
    with pytest.raises(Surroundings):
        point(ledger)


def test_another_store_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(InUse, match=rf"{tmp_path}.*/elsewhere.*another name"):
        Ledger.open(ledger.tracking_uri, "grid", "/elsewhere", create=True)


def test_an_experiment_made_by_hand_is_adopted(ledger: Ledger, tmp_path: Path) -> None:
    ledger.tracking.client.create_experiment("by hand")
    Ledger.open(ledger.tracking_uri, "by hand", str(tmp_path), create=True)
    with pytest.raises(InUse):
        Ledger.open(ledger.tracking_uri, "by hand", "/elsewhere", create=True)


def test_artifacts_lie_in_the_store(ledger: Ledger, tmp_path: Path) -> None:
    run_id = ledger.start_submission()
    ledger.log_text(run_id, "report.html", "<p>ü</p>")
    (tmp_path / "curve.csv").write_text("a,b\n")
    ledger.log_file(run_id, tmp_path / "curve.csv", "tables")
    ledger.log_table(run_id, "laws.json", [{"target": "loss", "E": 1.5}, {"target": "d", "bound": math.inf}])
    folder = tmp_path / "artifacts" / "grid" / run_id / "artifacts"
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"report.html", "curve.csv", "laws.json"}
    assert ledger.read_text(run_id, "report.html") == "<p>ü</p>"
    assert ledger.read_text(run_id, "tables/curve.csv") == "a,b\n"
    assert json.loads((folder / "laws.json").read_text())["data"][1] == ["d", None, "inf"]
    ledger.log_table(run_id, "points.json", [{"n": 1}])
    ledger.log_table(run_id, "laws.json", [{"target": "loss"}])
    listed = ledger.tracking.client.get_run(run_id).data.tags["mlflow.loggedArtifacts"]
    assert [entry["path"] for entry in json.loads(listed)] == ["laws.json", "points.json"]
    assert ledger.read_json(run_id, "laws.json") == {"columns": ["target"], "data": [["loss"]]}


def test_the_description_is_sent_when_it_changes(ledger: Ledger) -> None:
    run_id = ledger.start_submission()
    assert ledger.describe(run_id, "# 1 of 9")
    assert ledger.read_run(run_id).note == "# 1 of 9"
    assert ledger.describe(run_id, "# 2 of 9")
    assert ledger.read_run(run_id).note == "# 2 of 9"


def test_tracking_addresses(tmp_path: Path) -> None:
    assert resolve_tracking_uri("sqlite:///x.db", base_folder=tmp_path) == f"sqlite:///{tmp_path}/x.db"
    assert resolve_tracking_uri(f"sqlite:///{tmp_path}/x.db") == f"sqlite:///{tmp_path}/x.db"
    assert resolve_tracking_uri("http://h:5000/") == "http://h:5000"
    for wrong in ("./mlruns", "file:///tmp/mlruns", "ftp://h", "localhost:5000", "sqlite://"):
        with pytest.raises(BadInput, match=r"run\.tracking_uri"):
            resolve_tracking_uri(wrong)


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    assert redacted("https://me:s3cret@host:5000/x") == "https://***@host:5000/x"
    with pytest.raises(TrackingOutage) as away:
        Ledger.open("http://me:s3cret@127.0.0.1:9", "grid", str(tmp_path), create=True)
    assert "s3cret" not in str(away.value)
    assert "127.0.0.1:9" in str(away.value)


def test_a_database_that_is_none_gets_one_message(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database " * 100)
    with pytest.raises(Surroundings, match=r"no MLflow database|not a database"):
        Ledger.open(default_tracking_uri(tmp_path), "grid", str(tmp_path), create=True, patience_seconds=1)


def test_a_database_of_another_mlflow_is_told_at_once(tmp_path: Path, fresh_database: Path) -> None:
    shutil.copy(fresh_database, tmp_path / "mlflow.db")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection, connection:
        connection.execute("update alembic_version set version_num = '0584bdc529eb'")
    started = time.monotonic()
    with pytest.raises(TrackingRefused, match=r"another version of MLflow.*mlflow db upgrade"):
        Ledger.open(default_tracking_uri(tmp_path), "grid", str(tmp_path), create=True, patience_seconds=600)
    assert time.monotonic() - started < 60


def test_a_vanished_database_is_not_made_again(ledger: Ledger, uri: str, tmp_path: Path) -> None:
    run_id = point(ledger)
    os.remove(tmp_path / "mlflow.db")
    fresh = Ledger(type(ledger.tracking)(uri=uri, patience_seconds=1), "grid", ledger.experiment_id)
    with pytest.raises(TrackingRefused, match="does not exist"):
        fresh.finish_run(run_id)


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    with mounted(tmp_path / "small-disk", "6m") as folder:
        yield folder


def write_much(ledger: Ledger, run_id: str) -> None:
    for step in range(300):
        ledger.log_results(run_id, metrics={f"loss{i}": float(i) for i in range(200)}, step=step)


def test_head_disk_fills(small_disk: Path, fresh_database: Path) -> None:
    """ray #23688: a full disk is said, the ledger stays whole, and goes on once there is room."""
    (small_disk / "mlflow.db").write_bytes(fresh_database.read_bytes())
    ledger = Ledger.open(default_tracking_uri(small_disk), "grid", str(small_disk), create=True, patience_seconds=1)
    run_id = point(ledger)
    fill(small_disk / "filler")
    with pytest.raises(Surroundings, match="disk is full"):
        write_much(ledger, run_id)
    (small_disk / "filler").unlink()
    ledger.finish_run(run_id, metrics={"loss": 2.0})
    assert ledger.read_run(run_id).finished


def test_making_a_database_on_a_full_disk_leaves_nothing(small_disk: Path) -> None:
    fill(small_disk / "filler")
    with pytest.raises(Surroundings, match="disk is full"):
        create_database(default_tracking_uri(small_disk))
    assert not list(small_disk.glob("mlflow.db*part*"))
    (small_disk / "filler").unlink()
    assert create_database(default_tracking_uri(small_disk))


def test_the_code_version_is_this_checkout() -> None:
    def head() -> str:
        command = ["git", "rev-parse", "HEAD"]
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()

    before = head()
    code_version.cache_clear()
    version = code_version()
    assert version.package
    if before:  # a commit may fall in between
        assert version.tags()["mlflow.source.git.commit"] in {before, head()}
