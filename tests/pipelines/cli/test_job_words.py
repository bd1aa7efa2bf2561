"""What commands say differently as the entrypoint of a Ray Job."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from gridlaw.pipelines.cli.grid import tell_stopped


def test_a_stopped_job_goes_on_by_being_submitted_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = SimpleNamespace(exit_code=143, stopped="")
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    tell_stopped(ended, "1 of 2 points done", "run grid.yaml")
    assert capsys.readouterr().err.endswith("To go on: gridlaw run grid.yaml\n")
    config = {"metadata": {"job_submission_id": "gridlaw-small-1"}}  # as Ray gives it to a job's entrypoint
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(config))
    tell_stopped(ended, "1 of 2 points done", "run grid.yaml")
    assert capsys.readouterr().err == (
        "SIGTERM: stopped with 1 of 2 points done; what ran was saved. To go on: submit it again\n"
    )
