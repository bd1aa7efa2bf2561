"""``gridlaw ui --optuna`` serves Optuna's dashboard over a store's studies, and says where there is none."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from browser import open_page
from gridlaw.pipelines.cli.main import main
from gridlaw.pipelines.tune.plan import make_tune_plan
from gridlaw.pipelines.tune.results import read_results
from gridlaw.pipelines.tune.submission import storage_of
from gridlaw.platform.spec.load import grid_from_mapping
from gridlaw.platform.tuning.study import Study, open_study

FILE: dict[str, Any] = {
    "name": "small",
    "architectures": ["swiattn-16"],
    "scales": ["n1"],
    "budgets": ["5N"],
    "data": {"context": 64},
    "training": {"batch_tokens": 512},
    "evaluate": ["loss", "routing"],
    "tune": {
        "space": {"gamma_base": {"log": [1e-4, 1.0]}, "activation": ["relu", "softplus"]},
        "objectives": {"loss": "min", "full_ratio": "min"},
        "constraints": {"full_ratio": "<= 0.8"},
        "sampler": "random",
        "trials": 12,
        "first": {"gamma_base": 1e-3, "activation": "softplus"},
    },
}
PATIENCE_MS = 300_000


def study_in(folder: Path, *, trials: int) -> tuple[Study, Any]:
    """A study of ``FILE`` as a driver leaves it, with values of a model that nobody trained; and its plan."""
    (folder / "grid.yaml").write_text(yaml.safe_dump(FILE))
    (folder / "runs").mkdir()
    spec = grid_from_mapping(FILE | {"run": {"store": str(folder / "runs")}}, source="test", base_folder=folder)
    plan = make_tune_plan(spec)
    study = open_study(storage_of(plan), plan.declaration, create=True)
    assert study is not None
    for number in range(trials):
        trial = study.ask()
        if number == 3:
            study.tell(number, "fail")
            continue
        decades, relu = math.log10(float(trial.params["gamma_base"])) + 4, trial.params["activation"] == "relu"
        metrics = {"loss": 2 + 0.1 * decades + 0.2 * relu, "full_ratio": 0.9 - 0.2 * decades}
        study.tell(number, "complete", metrics=metrics)
    return study, plan


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[str]:
    """The address that ``gridlaw ui --optuna`` tells; the server ends with the command."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "gridlaw.pipelines.cli.main", "ui", "--optuna", "--store", "runs", "--port", port]
    server = subprocess.Popen(
        [*command, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0


def test_a_study_is_served_on_loopback_and_the_server_ends_with_the_command(tmp_path: Path) -> None:
    study, _ = study_in(tmp_path, trials=3)
    with served(tmp_path) as address:
        assert address.startswith("http://127.0.0.1:") and address.endswith("/dashboard/")
        parts = urlsplit(address)
        assert parts.hostname is not None
        # Browsers open connections before they have something to ask: those must not hold up the others.
        with (
            socket.create_connection((parts.hostname, parts.port or 0)),
            urllib.request.urlopen(address.replace("/dashboard/", "/api/studies"), timeout=60) as answer,
        ):
            (shown,) = json.load(answer)["study_summaries"]
        address = address.replace("/dashboard/", f"/api/studies/{shown['study_id']}?after=0")
        with urllib.request.urlopen(address, timeout=60) as answer:
            trials = json.load(answer)["trials"]
    assert [each["constraints"] for each in trials] == [list(each.violations.values()) for each in study.trials()]
    assert {each["constraints"][0] <= 0 for each in trials} == {True, False}
    assert (shown["study_name"], shown["directions"]) == (study.name, ["minimize", "minimize"])


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_browser_sees_the_front_of_a_file_s_study(tmp_path: Path) -> None:
    """The points that are drawn as the best are those that ``tune status`` calls the front, and no others."""
    study, plan = study_in(tmp_path, trials=12)
    results = read_results(plan, study)
    front = [results.trial(number) for number in results.front]
    assert 1 < len(front) < len([each for each in results.complete if each.feasible]) < len(results.complete) == 11
    with served(tmp_path, "grid.yaml") as address, open_page(patience_ms=PATIENCE_MS) as page:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/dashboard/studies/\d+", address), address
        page.goto(address, wait_until="commit")  # its script is large: what is waited for is what it draws
        page.get_by_text(study.name).first.wait_for()
        page.get_by_role("heading", name="Pareto Front").wait_for()
        drawn = page.locator("#graph-pareto-front .scatterlayer .trace .point")
        drawn.nth(10).wait_for(state="attached")
        assert drawn.count() == 11, "every complete trial"
        traces = page.evaluate(
            "document.getElementById('graph-pareto-front').data"
            ".map(each => [each.hovertemplate, Array.from(each.x), Array.from(each.y)])"
        )
    best = [list(zip(x, y, strict=True)) for template, x, y in traces if "Best Trial" in template]
    assert [sorted(points) for points in best] == [sorted((t.values["loss"], t.values["full_ratio"]) for t in front)]
    beyond = [len(x) for template, x, _ in traces if "Infeasible" in template]
    assert beyond == [sum(not each.feasible for each in results.complete)]


def test_a_store_without_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["ui", "--optuna"])
    assert end.value.code == 2
    assert "gridlaw tune run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(120)  # where it is not refused, a server runs
def test_a_file_whose_study_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study_in(tmp_path, trials=0)
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(FILE | {"name": "smell"}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["ui", "other.yaml", "--optuna", "--store", "runs"])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert "smell" in told and "small" in told and "gridlaw tune run" in told
