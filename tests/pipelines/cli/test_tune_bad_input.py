"""Tune files that cannot be: one message, exit code 2, nothing made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import refused

GOOD: dict[str, Any] = {
    "name": "good",
    "architectures": ["swiattn-16"],
    "scales": ["n1"],
    "budgets": ["5N"],
    "data": {"context": 64},
    "training": {"batch_tokens": 512, "precision": "fp32"},
    "evaluate": ["loss", "routing"],
    "tune": {
        "space": {"gamma_base": {"log": [1e-4, 1e-1]}, "lr": {"log": [1e-3, 0.1]}},
        "objectives": {"loss": "min", "full_ratio": "min"},
        "trials": 4,
    },
}
TUNE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an empty space": ({"space": {}}, ["tune.space", "at least one"]),
    "low above high": ({"space": {"lr": {"float": [1, 0.1]}}}, ["tune.space.lr", "[0.1, 1]"]),
    "log from zero": ({"space": {"lr": {"log": [0, 1]}}}, ["tune.space.lr", "logarithm"]),
    "an unknown setting": ({"space": {"gama_base": {"log": [1e-4, 1e-1]}}}, ["gama_base", "gamma_base"]),
    "an ambiguous setting": ({"space": {"name": ["a", "b"]}}, ["optimizer.name", "schedule.name"]),
    "one setting twice": ({"space": {"lr": [0.1, 1], "optimizer.lr": [0.1, 1]}}, ["optimizer.lr", "same setting"]),
    "an unknown metric": ({"objectives": {"los": "min"}}, ["tune.objectives.los", "loss"]),
    "a metric without its evaluation": ({"objectives": {"longppl": "min"}}, ["longppl", "evaluate:"]),
    "a threshold outside 0-1": ({"space": {"threshold": {"float": [0, 2]}}}, ["tune.space.threshold", "from 0 to 1"]),
    "a window that fits no context": ({"space": {"window": {"int": [8, 128]}}}, ["tune.space.window", "64"]),
    "a bound outside 0-1": ({"constraints": {"full_ratio": "<= 30"}}, ["full_ratio", "from 0 to 1"]),
    "more objectives than the sampler takes": ({"sampler": "cmaes"}, ["tune.objectives", "cmaes", "tpe"]),
    "a first trial outside the space": ({"first": {"lr": 5}}, ["tune.first.lr", "0.1"]),
    "a first trial left half open": ({"space": {"lr": [0.5, 1], "alpha": [1, 2]}, "first": {"alpha": 1}}, ["first.lr"]),
}
FILE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "two architectures": ({"architectures": ["swiattn-16", "full"]}, ["architectures", "one of"]),
    "a missing base checkpoint": (
        {"stages": [{"name": "cpt", "from": "pretrain/full/5N", "architectures": ["full"], "budgets": ["5N"]}]},
        ["stages[0].from"],
    ),
    "an unreachable storage": ({"run": {"storage": "postgresql+psycopg://me:secret@127.0.0.1:1/x"}}, ["run.storage"]),
    "rows of some steps only, where a rule prunes": (
        {"run": {"log_every_steps": 5}, "tune": GOOD["tune"] | {"prune": {"name": "front"}}},
        ["run.log_every_steps", "tune.prune"],
    ),
    "a storage that is none": ({"run": {"storage": "studies.db"}}, ["run.storage", "sqlite:///"]),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", TUNE)
def test_what_cannot_be_tuned(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, words = TUNE[kind]
    (folder / "tune.yaml").write_text(yaml.safe_dump(GOOD | {"tune": GOOD["tune"] | changes}))
    told = refused(folder, capsys, "tune", "run", "tune.yaml")
    assert all(word in told for word in words), told


@pytest.mark.parametrize("kind", FILE)
def test_files_that_are_no_study(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, words = FILE[kind]
    kept = {
        key: value
        for key, value in GOOD.items()
        if "stages" not in changes or key not in ("architectures", "scales", "budgets")
    }
    (folder / "tune.yaml").write_text(yaml.safe_dump(kept | changes))
    told = refused(folder, capsys, "tune", "run", "tune.yaml")
    assert all(word in told for word in words), told
    assert "secret" not in told


def test_the_wrong_command_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tune.yaml").write_text(yaml.safe_dump(GOOD))
    assert "gridlaw tune run tune.yaml" in refused(folder, capsys, "run", "tune.yaml")
    (folder / "grid.yaml").write_text(yaml.safe_dump({key: value for key, value in GOOD.items() if key != "tune"}))
    assert "tune:" in refused(folder, capsys, "tune", "run", "grid.yaml")
    assert "Run it first" in refused(folder, capsys, "tune", "best", "tune.yaml")
