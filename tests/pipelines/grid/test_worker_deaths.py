"""Workers that die in every stage of a whole grid until no try is left: told, and the grid goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def dying(name: str, stage: str) -> dict[str, Any]:
    return {"name": name, "pattern": [{"mixer": "faulty", "fault": "kill", "stage": stage, "after": 1}]}


@pytest.fixture(scope="module")
def hopeless(new_workplace: Callable[[], Any]) -> Any:
    """A healthy architecture, and three whose workers die at every try: in trunks, in branches, in evaluations."""
    place = new_workplace()
    place.install_faulty_mixer()
    dead = [dying(f"{stage}-dies", stage) for stage in ("training", "decay", "evaluate")]
    place.write({"architectures": ["full", *dead], "scales": ["n1"], "budgets": ["2N"], "laws": []})
    place.done = place.run("--plain", timeout=1500)
    return place


def test_after_the_last_try_each_is_failed_with_the_reason_and_the_grid_goes_on(hopeless: Any) -> None:
    assert hopeless.done.returncode == 1, hopeless.done.stderr
    runs = {
        (run.data.tags["gridlaw.kind"], run.data.tags["gridlaw.architecture"]): run
        for kind in ("trunk", "point", "evaluation")
        for run in hopeless.runs(kind)
    }
    failed = {("trunk", "training-dies"), ("point", "decay-dies"), ("evaluation", "evaluate-dies")}
    assert {key for key, run in runs.items() if run.info.status == "FAILED"} == failed
    assert all(run.info.status == "FINISHED" for key, run in runs.items() if key not in failed)
    for key in failed:
        assert "worker lost" in runs[key].data.tags["gridlaw.reason"]
        assert runs[key].data.tags["gridlaw.attempts"] == "3"
    assert ("point", "training-dies") not in runs, "what its trunk blocks was never begun"
    assert runs["point", "full"].data.metrics["loss"] > 0
    assert "loss" not in runs["point", "evaluate-dies"].data.metrics
    assert hopeless.done.stderr.count("trying again (3 of 3)") == 3
    assert "2 of 4 points done" in hopeless.done.stdout


def test_the_command_names_each_with_the_reason(hopeless: Any) -> None:
    told = hopeless.done.stderr
    assert "failed: trunk training-dies/n1/seed0: worker lost" in told
    assert "blocked: point training-dies/n1/2N/seed0" in told
    assert "failed: point decay-dies/n1/2N/seed0: worker lost" in told
    assert "failed: evaluation evaluate-dies/n1/2N/seed0/loss: worker lost" in told


def test_status_and_plan_say_what_failed_and_why(hopeless: Any) -> None:
    status = json.loads(hopeless.gridlaw("status", "grid.yaml", "--json").stdout)
    points = {point["name"].split("/")[0]: point for point in status["points"]}
    assert {name: point["state"] for name, point in points.items()} == {
        "full": "done", "training-dies": "blocked", "decay-dies": "failed", "evaluate-dies": "done",
    }  # fmt: skip
    assert points["evaluate-dies"]["evaluations"] == {"loss": "failed"}
    assert points["decay-dies"]["evaluations"] == {"loss": "blocked"}
    for name in ("training-dies", "decay-dies", "evaluate-dies"):
        assert "worker lost" in points[name]["reason"]
    (trunk,) = [trunk for trunk in status["trunks"] if trunk["state"] == "failed"]
    assert trunk["name"] == "training-dies/n1/seed0" and "worker lost" in trunk["reason"]
    text = hopeless.gridlaw("status", "grid.yaml").stdout
    assert "2 done, 1 blocked, 1 failed" in text
    shown = {point["name"].split("/")[0]: point for point in hopeless.plan()["points"]}
    assert shown["full"]["action"] == "done"
    assert shown["training-dies"]["action"].startswith("new (worker lost")
    assert re.match(r"continue from step \d+ \(worker lost", shown["decay-dies"]["action"])
    assert shown["evaluate-dies"]["action"].startswith("done; evaluate loss (worker lost")
