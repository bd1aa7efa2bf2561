"""``gridlaw ui --optuna`` serves Optuna's dashboard over a store's studies, and says where there is none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gridlaw.platform.tuning.samplers import SamplerChoice
from gridlaw.platform.tuning.space import Parameter, Space
from gridlaw.platform.tuning.study import Declaration, open_study


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_study_is_served_on_loopback_and_the_server_ends_with_the_command(tmp_path: Path) -> None:
    declaration = Declaration(
        experiment="small",
        space=Space.of((Parameter(name="a", kind="float", low=0.0, high=1.0),)),
        objectives={"loss": "min", "full_ratio": "min"},
        sampler=SamplerChoice(name="random", seed=0),
    )
    (tmp_path / "runs").mkdir()
    study = open_study(f"sqlite:///{tmp_path}/runs/optuna.db", declaration, create=True)
    assert study is not None
    for _ in range(3):
        trial = study.ask()
        a = float(trial.params["a"])
        study.tell(trial.number, "complete", metrics={"loss": a, "full_ratio": 1 - a})
    command = [sys.executable, "-m", "gridlaw.pipelines.cli.main", "ui", "--optuna", "--store", "runs"]
    server = subprocess.Popen(
        [*command, "--port", str(free_port())], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:") and address.endswith("/dashboard/")
        with urllib.request.urlopen(address.replace("/dashboard/", "/api/studies"), timeout=60) as answer:
            (shown,) = json.load(answer)["study_summaries"]
        assert (shown["study_name"], shown["directions"]) == (study.name, ["minimize", "minimize"])
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0


def test_a_store_without_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gridlaw.pipelines.cli.main import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["ui", "--optuna"])
    assert end.value.code == 2
    assert "gridlaw tune run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
