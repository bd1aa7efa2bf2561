"""A grid whose files are not there yet is planned, and not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridlaw.pipelines.cli.main import main


def gridlaw(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paper_is_planned_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """172 points on 30 trunks; 1.937e12 training tokens where unshared runs need 4.063e12."""
    assert gridlaw("plan", "paper", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    totals = shown["totals"]
    assert (totals["points"], totals["trunks"]) == (172, 30)
    assert totals["tokens"] == pytest.approx(1.937e12, rel=1e-3)
    assert totals["tokens_without_sharing"] == pytest.approx(4.063e12, rel=1e-3)
    assert {"tokenizer.json", "long/*.jsonl", "heldout/*.jsonl"} <= {each["path"] for each in shown["absent"]}
    assert gridlaw("plan", "paper") == 0
    told = capsys.readouterr().out
    assert "not there yet" in told and "tokenizer.json (data.tokenizer)" in told


def test_a_run_tells_everything_that_is_missing_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "status"):
        assert gridlaw(command, "paper") == 2
        told = capsys.readouterr().err
        for part in ("tokenizer.json", "long/*.jsonl", "heldout/*.jsonl", str(folder), "gridlaw plan paper"):
            assert part in told
    assert list(folder.iterdir()) == []


def test_a_file_that_is_there_and_wrong_is_refused_by_a_plan_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tokenizer.json").write_text("no tokenizer")
    assert gridlaw("plan", "paper") == 2
    assert "tokenizer.json" in capsys.readouterr().err
