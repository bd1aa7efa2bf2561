"""``gridlaw ui --optuna`` shows a study's Pareto front in a real browser, and says where there is no study."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gridlaw.platform.tuning.samplers import SamplerChoice
from gridlaw.platform.tuning.space import Parameter, Space
from gridlaw.platform.tuning.study import Declaration, open_study

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.browser
def test_the_front_is_seen(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    declaration = Declaration(
        experiment="small",
        space=Space.of((Parameter(name="a", kind="float", low=0.0, high=1.0),)),
        objectives={"loss": "min", "full_ratio": "min"},
        sampler=SamplerChoice(name="random", seed=0),
    )
    (tmp_path / "runs").mkdir()
    study = open_study(f"sqlite:///{tmp_path}/runs/optuna.db", declaration, create=True)
    assert study is not None
    for _ in range(6):
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
        assert address.startswith("http://127.0.0.1:")
        found = os.environ.get("GRIDLAW_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        assert found, "browser tests need Chromium: apt-get install chromium"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
            page = browser.new_page()
            page.goto(f"{address}studies/1", timeout=120_000)
            page.get_by_text("Pareto").first.wait_for(timeout=120_000)
            page.wait_for_function("document.querySelectorAll('.scatterlayer path.point').length >= 6", timeout=120_000)
            assert study.name in page.inner_text("body")
            browser.close()
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
