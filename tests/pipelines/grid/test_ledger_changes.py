"""What people do in MLflow's page, in the store and in the file between two runs, and what the next run makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

SMALL: dict[str, Any] = {
    "architectures": ["full"],
    "scales": [{"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}],
    "laws": [],
}
FASTER = {"batch_tokens": 512, "precision": "fp32", "optimizer": {"name": "adamw", "lr": 0.02}}


@pytest.fixture(scope="module")
def place(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    place.write(SMALL)
    done = place.run()
    assert done.returncode == 0, done.stderr
    return place


def test_a_run_deleted_in_the_ui_is_run_again(place: Any) -> None:
    before = {run.data.tags["gridlaw.name"]: run for run in place.runs("point")}
    victim = before["full/a/4N/seed0"]
    place.client().delete_run(victim.info.run_id)
    done = place.run()
    assert done.returncode == 0, done.stderr
    after = {run.data.tags["gridlaw.name"]: run for run in place.runs("point")}
    assert after["full/a/2N/seed0"].info.run_id == before["full/a/2N/seed0"].info.run_id
    assert after["full/a/4N/seed0"].info.run_id != victim.info.run_id
    assert after["full/a/4N/seed0"].data.metrics["loss"] == victim.data.metrics["loss"]


def test_an_evaluation_added_later_trains_nothing(place: Any) -> None:
    executed = {run.info.run_id: run.data.tags["gridlaw.executed_steps"] for run in place.runs("point")}
    place.write(SMALL | {"evaluate": [{"loss": {"tokens": 4096}}, {"niah": {"depths": 2, "lengths": 1, "samples": 2}}]})
    done = place.run()
    place.write(SMALL)
    assert done.returncode == 0, done.stderr
    points = place.runs("point")
    assert {run.info.run_id: run.data.tags["gridlaw.executed_steps"] for run in points} == executed
    assert all("niah_rank_accuracy" in run.data.metrics for run in points)


def test_a_model_deleted_from_the_store_is_named_before_anything_starts(place: Any) -> None:
    (run,) = [run for run in place.runs("point") if run.data.tags["gridlaw.name"] == "full/a/2N/seed0"]
    model = place.folder / "gridlaw-runs" / run.data.tags["gridlaw.checkpoint"]
    aside = model.with_name("aside")
    shutil.move(model, aside)
    place.write(SMALL | {"evaluate": [{"loss": {"tokens": 8192}}]})
    planned, done = place.gridlaw("plan", "grid.yaml"), place.run()
    place.write(SMALL)
    shutil.move(aside, model)
    assert (planned.returncode, done.returncode) == (0, 2)
    for told in (planned.stderr, done.stderr):
        assert "full/a/2N/seed0" in told and "missing in the store" in told


@pytest.mark.slow
def test_another_name_starts_anew_and_rerun_supersedes(place: Any) -> None:
    place.write(SMALL | {"training": FASTER})
    assert place.run().returncode == 2
    place.write(SMALL | {"training": FASTER, "name": "another"})
    done = place.run()
    assert done.returncode == 0, done.stderr
    assert len(place.runs("point", name="another")) == 2
    old = {run.info.run_id for run in place.runs("point")}
    place.write(SMALL | {"training": FASTER})
    done = place.run("--rerun")
    assert done.returncode == 0, done.stderr
    runs = place.runs("point")
    assert {run.info.run_id for run in runs if "gridlaw.superseded" in run.data.tags} == old
    fresh = {
        run.data.tags["gridlaw.name"]: run.data.metrics["loss"]
        for run in runs
        if "gridlaw.superseded" not in run.data.tags
    }
    twin = {run.data.tags["gridlaw.name"]: run.data.metrics["loss"] for run in place.runs("point", name="another")}
    assert fresh == twin
    assert "2 points already done" in place.run().stdout


def test_an_experiment_deleted_in_the_ui_gets_one_clear_message(place: Any) -> None:
    """Last in this file: the experiment is gone."""
    client = place.client()
    client.delete_experiment(client.get_experiment_by_name("small").experiment_id)
    for done in (place.gridlaw("plan", "grid.yaml"), place.run()):
        assert done.returncode == 2
        assert "deleted" in done.stderr and "Traceback" not in done.stderr
