"""Points that fail, diverge, lose their worker or its memory: told apart, retried where it helps, not contagious."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)


def faulty(name: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "pattern": [{"mixer": "faulty", **settings}]}


@pytest.fixture(scope="module")
def place(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    place.install_faulty_mixer()
    architectures = [
        "full",
        faulty("raises", fault="raise"),
        faulty("nan", fault="nan", after=6),
        faulty("killed-once", fault="kill", after=9, mark=str(place.folder / "killed")),
        faulty("killed-always", fault="kill", after=1),
        faulty("little-memory", fault="memory", after=3),
        faulty("branch-killed", fault="kill", stage="decay", after=7, mark=str(place.folder / "killed in a branch")),
        faulty("evaluation-killed", fault="kill", stage="evaluate", after=3, mark=str(place.folder / "killed then")),
    ]
    place.write(
        {
            "architectures": architectures,
            "scales": ["n1"],
            "evaluate": [{"loss": {"tokens": 65536}}],  # more than three batches
            "laws": [],
            "run": {"checkpoint_every_steps": 2},
        }
    )
    place.done = place.run()
    place.points = {run.data.tags["gridlaw.name"]: run for run in place.runs("point")}
    place.trunks = {run.data.tags["gridlaw.architecture"]: run for run in place.runs("trunk")}
    return place


def test_the_grid_goes_on_and_says_so(place: Any) -> None:
    assert place.done.returncode == 1, place.done.stderr
    assert place.points["full/n1/2N/seed0"].info.status == "FINISHED"
    assert place.points["full/n1/4N/seed0"].info.status == "FINISHED"
    (parent,) = place.runs("submission")
    assert parent.info.status == "FAILED"
    statuses = {run.info.status for kind in ("trunk", "point", "evaluation") for run in place.runs(kind)}
    assert statuses == {"FINISHED", "FAILED"}


def test_an_exception_fails_its_trunk_at_once_with_the_reason(place: Any) -> None:
    trunk = place.trunks["raises"]
    assert trunk.info.status == "FAILED"
    assert "ZeroDivisionError: injected" in trunk.data.tags["gridlaw.reason"]
    assert "raises/n1/2N/seed0" not in place.points
    assert "blocked: point raises/n1/2N/seed0" in place.done.stderr
    error = place.client().download_artifacts(trunk.info.run_id, "error.txt")
    with open(error, encoding="utf-8") as file:
        assert "faulty_mixers.py" in file.read()


def test_a_diverged_trunk_is_tagged_and_sends_no_nan(place: Any) -> None:
    trunk = place.trunks["nan"]
    assert trunk.info.status == "FAILED"
    assert trunk.data.tags["gridlaw.diverged"] == "true"
    assert all(math.isfinite(value) for value in trunk.data.metrics.values())
    losses = place.client().get_metric_history(trunk.info.run_id, "train_loss")
    assert losses and all(math.isfinite(each.value) for each in losses)


def test_a_killed_worker_is_tried_again_from_its_newest_checkpoint_with_the_same_result(place: Any) -> None:
    for budget in ("2N", "4N"):
        again, plain = (place.points[f"{name}/n1/{budget}/seed0"] for name in ("killed-once", "full"))
        assert again.info.status == "FINISHED"
        assert again.data.metrics["loss"] == plain.data.metrics["loss"]
    trunk = place.trunks["killed-once"]
    repeated = int(trunk.data.tags["gridlaw.executed_steps"]) - int(trunk.data.tags["gridlaw.steps"])
    assert 0 <= repeated <= 2


def test_a_worker_killed_in_a_branch_is_tried_again_from_the_branchs_checkpoint(place: Any) -> None:
    planned = {point["name"]: point for point in place.plan()["points"]}
    for budget in ("2N", "4N"):
        name = f"branch-killed/n1/{budget}/seed0"
        again, plain = place.points[name], place.points[f"full/n1/{budget}/seed0"]
        assert again.info.status == "FINISHED"
        assert again.data.metrics["loss"] == plain.data.metrics["loss"]
        own_steps = planned[name]["steps"] - planned[name]["branches_at_step"]
        assert own_steps > 7, "shorter than the fault needs"
        assert 0 <= int(again.data.tags["gridlaw.executed_steps"]) - own_steps <= 2
    assert place.done.stderr.count("decay branch-killed") == 1, "one branch was tried again, once"


def test_a_worker_killed_in_an_evaluation_goes_on_from_the_finished_parts(place: Any) -> None:
    for budget in ("2N", "4N"):
        again, plain = (place.points[f"{name}/n1/{budget}/seed0"] for name in ("evaluation-killed", "full"))
        assert again.data.metrics["loss"] == plain.data.metrics["loss"]
    runs = {run.data.tags["gridlaw.point"]: run for run in place.runs("evaluation")}
    assert place.done.stderr.count("evaluate evaluation-killed") == 1, "one evaluation was tried again, once"
    for name, run in runs.items():
        if name.startswith("evaluation-killed"):
            assert run.info.status == "FINISHED"
            (parts,) = (place.folder / "gridlaw-runs" / "attempts" / run.info.run_id).glob("parts-*.jsonl")
            done = [json.loads(line)["part"] for line in parts.read_text().splitlines()]
            assert len(done) == len(set(done)) > 3


def test_a_worker_that_always_dies_fails_after_its_last_try(place: Any) -> None:
    trunk = place.trunks["killed-always"]
    assert trunk.info.status == "FAILED"
    assert "lost" in trunk.data.tags["gridlaw.reason"]
    assert place.done.stderr.count("trying again (3 of 3)") >= 1


def test_out_of_memory_is_told_apart_and_tried_again_with_a_smaller_micro_batch(place: Any) -> None:
    """ray #14394 #12208: out of memory takes the node."""
    trunk = place.trunks["little-memory"]
    assert trunk.info.status == "FINISHED", place.done.stderr
    assert int(trunk.data.tags["gridlaw.micro_batch"]) == 2
    point = place.points["little-memory/n1/4N/seed0"]
    plain = place.points["full/n1/4N/seed0"]
    assert point.data.metrics["loss"] == pytest.approx(plain.data.metrics["loss"], abs=1e-3)


def test_the_report_names_what_failed(place: Any) -> None:
    (path,) = (place.folder / "gridlaw-runs" / "reports").glob("*.html")
    page = path.read_text()
    for words in ("raises/n1/seed0", "injected", "killed-always", "diverged"):
        assert words in page


def test_running_again_tries_only_what_failed(place: Any) -> None:
    shown = {point["name"]: point for point in place.plan()["points"]}
    assert shown["full/n1/2N/seed0"]["status"] == "done"
    assert shown["raises/n1/2N/seed0"]["status"] != "done"
    state = place.gridlaw("status", "grid.yaml")
    assert "injected" in state.stdout
