"""``gridlaw evaluate``: what several models share, and settings that are refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import gridlaw
from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.models import checkpoint
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.cli import evaluate as command
from gridlaw.pipelines.evaluations import niah
from gridlaw.pipelines.evaluations.examples import DataRun
from gridlaw.pipelines.evaluations.inputs import Inputs
from gridlaw.pipelines.evaluations.registry import resolve_evaluation


def test_examples_are_made_once_for_all_models(
    models: Callable[[str], DecoderLM],
    prepared: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of a grid's points on other data than the grid's, whose examples are in no store."""
    targets = [
        command.Target(
            name=name,
            model=checkpoint.save_model(models(name), tmp_path / name),
            data=prepared.folder,
            inputs=lambda evaluation: Inputs(),
        )
        for name in ("full", "gdn")
    ]
    evaluations = [
        resolve_evaluation({"niah": {"depths": 1, "lengths": 1, "samples": 2}}),
        resolve_evaluation({"loss": {"tokens": 1000}}),
    ]
    monkeypatch.setattr(command, "_resolve", lambda *_, **__: (evaluations, targets))
    made: list[DataRun] = []
    make = niah.make_samples
    monkeypatch.setattr(niah, "make_samples", lambda run: made.append(run) or make(run))
    assert gridlaw("evaluate", "grid", "niah", "loss", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: list(results) for name, results in found.items()} == {
        "full": ["niah", "loss"],
        "gdn": ["niah", "loss"],
    }
    assert found["full"]["loss"]["metrics"] != found["gdn"]["loss"]["metrics"]
    assert len(made) == 1
    assert not made[0].work_folder.exists()


@pytest.mark.parametrize("text", ["niah.lengths=[64", "niah.lengths=[64}", "niah.lengths=: :", "niah.lengths=\x07"])
def test_a_setting_that_is_no_yaml_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gridlaw("evaluate", str(tmp_path), "niah", "--set", text) == 2
    told = capsys.readouterr().err
    assert "--set is" in told
    assert "YAML" in told
    assert "Traceback" not in told


def test_settings_are_read_as_in_a_grid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As far as the refusal for want of data: 1e-1 is a number there, and text to a YAML 1.1 reader."""
    settings = ["--set", "longppl.evaluator=gpt2", "--set", "longppl.alpha=1e-1"]
    assert gridlaw("evaluate", str(tmp_path), "longppl", *settings) == 2
    assert capsys.readouterr().err.startswith("gridlaw: --data")
