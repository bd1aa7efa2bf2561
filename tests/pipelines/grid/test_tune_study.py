"""Tuning learning rate and decay of a small Full model as a person does: run, again, more trials, best, killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import optuna
import pytest
import yaml

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

TUNE: dict[str, Any] = {
    "name": "small",
    "architectures": ["full"],
    "scales": [{"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}],
    "budgets": ["4N"],
    "data": {"context": 64},
    "training": {
        "batch_tokens": 512,
        "precision": "fp32",
        "optimizer": {"name": "adamw"},
        "schedule": {"warmup_steps": 4},
    },
    "evaluate": [{"loss": {"tokens": 4096}}],
    "tune": {
        "space": {"lr": {"log": [1e-3, 0.1]}, "schedule.decay_fraction": {"float": [0.1, 0.9]}},
        "objectives": {"loss": "min"},
        "sampler": {"name": "tpe", "seed": 0, "startup_trials": 2},
        "trials": 4,
        "first": {"lr": 0.01},
    },
    "run": {"parallel": 1},
}


def write(place: Any, *, run: dict[str, Any] | None = None, **changes: Any) -> None:
    whole = TUNE | {"tune": TUNE["tune"] | changes, "run": TUNE["run"] | (run or {})}
    place.file.write_text(yaml.safe_dump(whole))


def study_of(place: Any) -> optuna.Study:
    storage = f"sqlite:///{place.folder}/gridlaw-runs/optuna.db"
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def told(place: Any) -> list[tuple[str, dict[str, Any], list[float] | None]]:
    return [(trial.state.name, trial.params, trial.values) for trial in study_of(place).trials]


@pytest.fixture(scope="module")
def tuned(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    write(place)
    done = place.gridlaw("tune", "run", "grid.yaml")
    assert done.returncode == 0, done.stderr
    place.first = done
    return place


def test_every_trial_is_in_the_study_and_in_the_ledger(tuned: Any) -> None:
    trials = study_of(tuned).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert trials[0].params == {"lr": 0.01, "decay_fraction": 0.1}
    (parent,) = tuned.runs("study")
    runs = {run.data.tags["gridlaw.name"]: run for run in tuned.runs("trial")}
    assert sorted(runs) == [f"trial{number}" for number in range(4)]
    for trial in trials:
        run = runs[f"trial{trial.number}"]
        assert run.info.status == parent.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags["gridlaw.trial"] == str(trial.number)
        assert {name: float(value) for name, value in run.data.params.items()} == trial.params
        assert run.data.metrics["loss"] == trial.values[0]
        assert trial.user_attrs["run_id"] == run.info.run_id
        steps = [each.step for each in tuned.client().get_metric_history(run.info.run_id, "train_loss")]
        assert sorted(steps) == list(range(1, len(steps) + 1))  # the whole training, each step once
    assert len(tuned.runs("evaluation")) == 4


def test_the_report_stands_alone_and_is_an_artifact(tuned: Any) -> None:
    path = tuned.folder / "gridlaw-runs" / "reports" / "small.html"
    page = path.read_text()
    assert str(path) in tuned.first.stdout
    assert "trial3" in page and "decay_fraction" in page and "<script src" not in page
    (parent,) = tuned.runs("study")
    kept = {each.path for each in tuned.client().list_artifacts(parent.info.run_id)}
    assert {"small.html", "trials.json", "importances.json"} <= kept


def test_a_second_run_does_nothing_and_loads_neither_ray_nor_torch(tuned: Any) -> None:
    done = tuned.without_ray("tune", "run", "grid.yaml")
    assert "4 trials already done" in done.stdout


def test_status_and_best_name_the_best_trial_and_write_it_as_a_grid(tuned: Any) -> None:
    shown = json.loads(tuned.gridlaw("tune", "status", "grid.yaml", "--json").stdout)
    best = min(shown["trials"], key=lambda trial: trial["values"]["loss"])
    assert shown["front"] == [best["number"]]
    done = tuned.gridlaw("tune", "best", "grid.yaml", "--write", "best.yaml")
    assert done.returncode == 0, done.stderr
    assert f"trial{best['number']}" in done.stdout
    from gridlaw.pipelines.plan import grids_folder, make_plan
    from gridlaw.platform.spec.load import load_grid

    (point,) = make_plan(load_grid(str(tuned.folder / "best.yaml"), shipped_folder=grids_folder())).points
    run = next(run for run in tuned.runs("trial") if run.info.run_id == best["run_id"])
    assert point.fingerprint == run.data.tags["gridlaw.fingerprint"]


def test_what_best_writes_is_planned_and_trains_to_the_trial_s_loss(tuned: Any) -> None:
    """As a grid: from a trunk and a branch, not in the one task that a trial is."""
    shown = json.loads(tuned.gridlaw("tune", "best", "grid.yaml", "--write", "again.yaml", "--json").stdout)
    planned = json.loads(tuned.gridlaw("plan", "again.yaml", "--json").stdout)
    assert [point["action"] for point in planned["points"]] == ["new"]
    done = tuned.gridlaw("run", "again.yaml", "--plain")
    assert done.returncode == 0, done.stderr
    (point,) = tuned.runs("point", name=f"small-trial{shown['number']}")
    assert point.data.metrics["loss"] == shown["values"]["loss"]


def test_a_changed_space_is_drift_and_touches_nothing(tuned: Any) -> None:
    before = told(tuned)
    write(tuned, space={"lr": {"log": [1e-3, 0.2]}, "decay_fraction": {"float": [0.1, 0.9]}})
    try:
        done = tuned.gridlaw("tune", "run", "grid.yaml")
    finally:
        write(tuned)
    assert done.returncode == 2
    assert "high 0.1 → 0.2" in done.stderr and "--rerun" in done.stderr
    assert told(tuned) == before


def test_more_trials_continue_the_study(tuned: Any) -> None:
    """Last of this workplace: it changes it."""
    before = told(tuned)
    write(tuned, trials=5)
    done = tuned.gridlaw("tune", "run", "grid.yaml")
    assert done.returncode == 0, done.stderr
    after = told(tuned)
    assert after[:4] == before and len(after) == 5
    assert len(tuned.runs("study")) == 1 and len(tuned.runs("trial")) == 5
