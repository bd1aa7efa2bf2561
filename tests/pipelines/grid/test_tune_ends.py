"""How trials of real studies end: failed in every way, pruned, or on a front; what report and ledger say of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import optuna
import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

GRID: dict[str, Any] = {
    "name": "small",
    "scales": [{"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}],
    "budgets": ["4N"],
    "data": {"context": 64},
    "training": {
        "batch_tokens": 512,
        "precision": "fp32",
        "optimizer": {"name": "adamw", "lr": 0.01},
        "schedule": {"warmup_steps": 4},
    },
    "run": {"parallel": 1},
}
LOSS, ROUTING = {"loss": {"tokens": 4096}}, {"routing": {"tokens": 2048}}


def tune(place: Any, architecture: Any, evaluations: list[Any], **section: Any) -> None:
    """Write a tune file and run it; the command's end is ``place.done``."""
    whole = GRID | {"architectures": [architecture], "evaluate": evaluations, "tune": section}
    place.file.write_text(yaml.safe_dump(whole, sort_keys=False))
    place.done = place.gridlaw("tune", "run", "grid.yaml", "--plain", timeout=2000)


def trials_of(place: Any) -> list[optuna.trial.FrozenTrial]:
    storage = f"sqlite:///{place.store}/optuna.db"
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials


def runs_of(place: Any) -> dict[int, Any]:
    """The trials' runs in the ledger, by number."""
    return {int(run.data.tags["gridlaw.trial"]): run for run in place.runs("trial")}


@pytest.fixture(scope="module")
def faults(new_workplace: Callable[[], Any]) -> Any:
    """A study over the faults of a mixer: each once in training and in evaluation, and one trial without."""
    place = new_workplace()
    place.install_faulty_mixer()
    space = {
        "fault": ["none", "raise", "nan"],
        "stage": {"choices": ["training", "evaluate"], "when": {"fault": ["raise", "nan"]}},
    }
    faulty = {"name": "faulty-a", "pattern": [{"mixer": "faulty", "after": 2}]}
    tune(place, faulty, [LOSS], space=space, objectives={"loss": "min"}, sampler="grid", trials=9)
    return place


def fault_of(trial: optuna.trial.FrozenTrial) -> tuple[str, str]:
    return trial.params["fault"], trial.params.get("stage", "")


def test_every_fault_fails_its_trial_with_the_reason_and_the_study_goes_on(faults: Any) -> None:
    assert faults.done.returncode == 1, faults.done.stderr
    trials = trials_of(faults)
    assert len(trials) == 5, "a grid sampler asks for each combination once"
    ends = {fault_of(trial): (trial.state.name, trial.user_attrs.get("reason", "")) for trial in trials}
    assert ends["none", ""] == ("COMPLETE", "")
    reasons = {
        ("raise", "training"): "ZeroDivisionError: injected",
        ("raise", "evaluate"): "evaluation loss failed: ZeroDivisionError: injected",
        ("nan", "training"): "loss",
        ("nan", "evaluate"): "loss is nan",
    }
    assert {key for key, (state, _) in ends.items() if state == "FAIL"} == set(reasons)
    assert not [key for key, words in reasons.items() if words not in ends[key][1]], ends
    runs = runs_of(faults)
    for trial in trials:
        run = runs[trial.number]
        complete = trial.state.name == "COMPLETE"
        assert run.info.status == ("FINISHED" if complete else "FAILED")
        assert run.data.tags.get("gridlaw.reason", "") == trial.user_attrs.get("reason", "")
        diverged = fault_of(trial) == ("nan", "training")
        assert run.data.tags.get("gridlaw.diverged") == ("true" if diverged else None)
        assert all(math.isfinite(value) for value in run.data.metrics.values())
    (parent,) = faults.runs("study")
    assert parent.info.status == "FAILED" and parent.data.tags["gridlaw.num_fail"] == "4"


def test_failed_trials_are_told_and_not_tried_again(faults: Any) -> None:
    (able,) = (trial for trial in trials_of(faults) if trial.state.name == "COMPLETE")
    page = (faults.store / "reports" / "small.html").read_text()
    assert "ZeroDivisionError: injected" in page and "loss is nan" in page
    shown = json.loads(faults.gridlaw("tune", "status", "grid.yaml", "--json").stdout)
    assert shown["front"] == [able.number]
    assert sum("injected" in trial["reason"] for trial in shown["trials"]) == 2
    again = faults.without_ray("tune", "run", "grid.yaml")
    assert "5 trials already done" in again.stdout


@pytest.fixture(scope="module")
def several(new_workplace: Callable[[], Any]) -> Any:
    """Two objectives of a switch model, with learning rates that are far too small among those tried."""
    place = new_workplace()
    tune(
        place, "swiattn-16", [LOSS, ROUTING],
        space={"lr": {"log": [1e-6, 0.05]}, "gamma_base": {"log": [1e-3, 10]}, "activation": ["softplus", "relu"]},
        objectives={"loss": "min", "full_ratio": "min"}, constraints={"full_ratio": "<= 0.9"},
        sampler={"name": "random", "seed": 1}, trials=14,
        first={"lr": 0.03, "gamma_base": 1.0, "activation": "softplus"},
        prune={"name": "front", "every_steps": 8, "startup_trials": 8, "warmup_fraction": 0.2, "margin": 0.1},
    )  # fmt: skip
    return place


def test_hopeless_trials_of_several_objectives_are_pruned(several: Any) -> None:
    assert several.done.returncode == 0, several.done.stderr
    trials, runs = trials_of(several), runs_of(several)
    states = [trial.state.name for trial in trials]
    print(states)
    assert len(states) == 14 and set(states) == {"COMPLETE", "PRUNED"}
    assert states.count("COMPLETE") >= 8, "fewer than importances need"
    for trial in trials:
        run, steps = runs[trial.number], int(runs[trial.number].data.tags.get("gridlaw.steps", 0))
        if trial.state.name == "PRUNED":
            words = r"front at step (\d+) of (\d+): loss .*, full_ratio .* in training"
            told = re.fullmatch(words, trial.user_attrs["reason"])
            assert told is not None and 8 <= int(told[1]) < int(told[2])
            assert run.info.status == "KILLED" and run.data.tags["gridlaw.trial_state"] == "pruned"
        else:
            assert run.info.status == "FINISHED" and steps > 0
            assert trial.values == [run.data.metrics["loss"], run.data.metrics["full_ratio"]]


def test_report_and_ledger_have_front_history_importances_and_slices(several: Any) -> None:
    shown = json.loads(several.gridlaw("tune", "status", "grid.yaml", "--json").stdout)
    complete = {trial["number"]: trial for trial in shown["trials"] if trial["state"] == "complete"}
    values = {number: (each["values"]["loss"], each["values"]["full_ratio"]) for number, each in complete.items()}
    able = {number: each for number, each in values.items() if each[1] <= 0.9}
    front = [
        number for number, mine in able.items()
        if not any(its != mine and its[0] <= mine[0] and its[1] <= mine[1] for its in able.values())
    ]  # fmt: skip
    assert shown["front"] == front != []
    assert set(shown["importances"]) == {"loss", "full_ratio"}
    for shares in shown["importances"].values():
        assert set(shares) == {"lr", "gamma_base", "activation"} and math.isclose(sum(shares.values()), 1.0)
    page = (several.store / "reports" / "small.html").read_text()
    for section in ("front", "history", "importances", "slices-0", "slices-1", "trials"):
        assert f'id="{section}"' in page, section
    (parent,) = several.runs("study")
    client = several.client()
    kept = {each.path for each in client.list_artifacts(parent.info.run_id)}
    assert {"small.html", "trials.json", "importances.json"} <= kept
    assert f"{len(shown['front'])} trials are on the front" in parent.data.tags["mlflow.note.content"]
    with open(client.download_artifacts(parent.info.run_id, "importances.json"), encoding="utf-8") as file:
        assert json.load(file) == shown["importances"]


def test_the_best_of_several_objectives_has_to_be_chosen(several: Any) -> None:
    shown = json.loads(several.gridlaw("tune", "status", "grid.yaml", "--json").stdout)
    front = {trial["number"]: trial["values"] for trial in shown["trials"] if trial["number"] in shown["front"]}
    refused = several.gridlaw("tune", "best", "grid.yaml", "--write", "best.yaml")
    assert refused.returncode == 2 and "--weight" in refused.stderr
    assert not (several.folder / "best.yaml").exists()
    smallest = min(front, key=lambda number: (front[number]["full_ratio"], number))
    bound = front[smallest]["full_ratio"] * 1.0000001
    done = several.gridlaw("tune", "best", "grid.yaml", "--where", f"full_ratio<={bound}", "--write", "best.yaml")
    assert done.returncode == 0 and f"trial{smallest}" in done.stdout, done.stderr
    planned = json.loads(several.gridlaw("plan", "best.yaml", "--json").stdout)
    assert len(planned["points"]) == 1


def test_hopeless_trials_of_a_single_objective_are_pruned(new_workplace: Callable[[], Any]) -> None:
    place = new_workplace()
    tune(
        place, "full", [LOSS], space={"lr": {"log": [1e-5, 0.1]}}, objectives={"loss": "min"},
        sampler={"name": "tpe", "seed": 0, "startup_trials": 2}, trials=8, first={"lr": 0.01},
        prune={"name": "median", "every_steps": 4, "startup_trials": 2, "warmup_fraction": 0.2},
    )  # fmt: skip
    assert place.done.returncode == 0, place.done.stderr
    pruned = [trial for trial in trials_of(place) if trial.state.name == "PRUNED"]
    assert pruned and all("median at step" in trial.user_attrs["reason"] for trial in pruned)
    ended = {run.data.tags["gridlaw.trial_state"]: run.info.status for run in place.runs("trial")}
    assert ended == {"complete": "FINISHED", "pruned": "KILLED"}
