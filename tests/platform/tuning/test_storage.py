"""Where studies are kept: addresses, files that a kill left half written, a PostgreSQL that dies and comes back."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.tuning.samplers import SamplerChoice
from gridlaw.platform.tuning.space import Parameter, Space
from gridlaw.platform.tuning.storage import check_storage, default_storage, open_storage, resolve_storage
from gridlaw.platform.tuning.study import Declaration, open_study
from postgres import Postgres

DECLARATION = Declaration(
    experiment="small",
    space=Space.of((Parameter(name="a", kind="float", low=0.0, high=1.0),)),
    objectives={"loss": "min"},
    sampler=SamplerChoice(name="tpe", seed=0),
)


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_storage("runs") == f"sqlite:///{tmp_path}/runs/optuna.db"
    assert resolve_storage("sqlite:///mine.db") == f"sqlite:///{tmp_path}/mine.db"
    assert resolve_storage("journal:///mine.log") == f"journal:///{tmp_path}/mine.log"
    for wrong in ("mine.db", "mongodb://host/x", "sqlite:///", "sqlite://", "journal:///"):
        with pytest.raises(BadInput, match=r"run\.storage"):
            resolve_storage(wrong)
    with pytest.raises(BadInput, match="bucket"):
        default_storage("s3://bucket/runs")


def test_what_cannot_be_reached_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(BadInput, match=r"\*\*\*@127\.0\.0\.1") as told:
        check_storage(f"postgresql+psycopg://me:secret@127.0.0.1:{port}/db")
    assert "secret" not in str(told.value)
    with pytest.raises(BadInput, match="folder that is there"):
        check_storage(f"sqlite:///{tmp_path}/no/such/folder/optuna.db")
    (tmp_path / "text.db").write_text("no database at all, just text " * 100)
    with pytest.raises(BadInput, match="not a database"):
        check_storage(f"sqlite:///{tmp_path}/text.db")
    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]


def test_a_journal_with_a_half_written_line_is_mended(tmp_path: Path) -> None:
    url = f"journal:///{tmp_path}/studies.log"
    study = open_study(url, DECLARATION, create=True)
    assert study is not None
    study.tell(study.ask().number, "complete", metrics={"loss": 1.0})
    with open(tmp_path / "studies.log", "ab") as file:
        file.write(b'{"op_code": 4, "worker')
    study = open_study(url, DECLARATION, create=True)
    assert study is not None
    assert study.ask().number == 1
    again = open_study(url, DECLARATION, create=False)
    assert again is not None
    assert [each.state for each in again.trials()] == ["complete", "running"]


def test_a_database_that_dies_loses_no_trial(own_postgres: Postgres) -> None:
    url = own_postgres.database("studies")
    assert open_storage(url, create=False) is None  # looking makes no tables
    study = open_study(url, replace(DECLARATION, experiment="pg"), create=True)
    assert study is not None
    first = study.ask()
    own_postgres.kill()
    for call in (study.trials, study.ask, lambda: study.tell(first.number, "complete", metrics={"loss": 1.0})):
        with pytest.raises(Surroundings) as told:
            call()
        assert own_postgres.password not in str(told.value)
        assert "connection" in str(told.value) and "invalid data" not in str(told.value)
    own_postgres.start()
    assert study.adopt(known=[first.number]) == []  # nothing was half asked
    assert study.tell(first.number, "complete", metrics={"loss": 1.0}).state == "complete"
    second = study.ask()
    assert second.number == 1
    after = open_study(url, replace(DECLARATION, experiment="pg"), create=True)
    assert after is not None
    assert [each.number for each in after.adopt()] == [1]
    assert [each.state for each in after.trials()] == ["complete", "running"]
