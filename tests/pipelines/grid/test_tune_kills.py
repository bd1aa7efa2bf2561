"""A study whose driver, worker and database are killed with -9: no trial lost, none stuck, none run twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import optuna
import pytest
import yaml

from postgres import Postgres
from running import at_work, at_work_since, kill, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TRIALS, EVERY = 5, 5
# Trials of 192 steps, some seconds each; the last three are proposed by what the sampler sees of those before.
TUNE: dict[str, Any] = {
    "name": "small",
    "architectures": ["full"],
    "scales": ["n1"],
    "budgets": ["5N"],
    "data": {"context": 64},
    "training": {
        "batch_tokens": 512,
        "precision": "fp32",
        "optimizer": {"name": "adamw"},
        "schedule": {"warmup_steps": 4},
    },
    "evaluate": [{"loss": {"tokens": 4096}}],
    "tune": {
        "space": {"lr": {"log": [1e-3, 0.1]}, "decay_fraction": {"float": [0.1, 0.9]}},
        "objectives": {"loss": "min"},
        "sampler": {"name": "tpe", "seed": 0, "startup_trials": 2},
        "trials": TRIALS,
        "first": {"lr": 0.01},
    },
}
RUN = {"parallel": 1, "checkpoint_every_steps": EVERY}
VERB = ("tune", "run")


def write(place: Any, **run: Any) -> None:
    place.file.write_text(yaml.safe_dump(TUNE | {"run": RUN | run}))


def trials_of(place: Any, storage: str = "") -> list[optuna.trial.FrozenTrial]:
    storage = storage or f"sqlite:///{place.store}/optuna.db"
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials


def told(trials: list[optuna.trial.FrozenTrial]) -> list[tuple[str, dict[str, Any], list[float] | None]]:
    return [(trial.state.name, trial.params, trial.values) for trial in trials]


def log_of(place: Any) -> str:
    return str((place.folder / "run.log").read_text())


def check(place: Any, trials: list[optuna.trial.FrozenTrial], *, kills: int) -> None:
    """Every trial once, in study and ledger alike; no step of it done again but those after a killed checkpoint."""
    assert [(trial.number, trial.state.name) for trial in trials] == [(each, "COMPLETE") for each in range(TRIALS)]
    assert len({tuple(sorted(trial.params.items())) for trial in trials}) == TRIALS
    (parent,) = place.runs("study")
    assert parent.info.status == "FINISHED"
    runs = {run.data.tags["gridlaw.name"]: run for run in place.runs("trial")}
    names = [f"trial{number}" for number in range(TRIALS)]
    for kind, tag in (("trial", "gridlaw.name"), ("evaluation", "gridlaw.point")):
        found = place.runs(kind)
        assert Counter(run.data.tags[tag] for run in found) == dict.fromkeys(names, 1), kind
        assert {run.info.status for run in found} == {"FINISHED"}
    again = 0
    for trial in trials:
        run = runs[f"trial{trial.number}"]
        assert {name: float(value) for name, value in run.data.params.items()} == trial.params
        assert trial.values == [run.data.metrics["loss"]]
        steps = int(run.data.tags["gridlaw.steps"])
        logged = {
            name: [each.step for each in place.client().get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        assert sorted(logged["train_loss"]) == list(range(1, steps + 1))
        assert not [name for name, its in logged.items() if len(its) != len(set(its))], "each step logged once"
        repeated = int(run.data.tags["gridlaw.executed_steps"]) - steps
        assert repeated >= 0
        again += repeated
    assert again <= EVERY * kills, f"{again} steps done again after {kills} kills"


@pytest.fixture(scope="module")
def undisturbed(new_workplace: Callable[[], Any]) -> list[tuple[str, dict[str, Any], list[float] | None]]:
    place = new_workplace()
    write(place)
    done = place.gridlaw(*VERB, "grid.yaml", "--plain", timeout=1800)
    assert done.returncode == 0, done.stderr
    trials = trials_of(place)
    check(place, trials, kills=0)
    return told(trials)


def test_a_driver_killed_at_random_moments_ends_with_the_undisturbed_study(
    new_workplace: Callable[[], Any], undisturbed: list[tuple[str, dict[str, Any], list[float] | None]]
) -> None:
    """The last trials' proposals are the same, so the sampler saw every trial that had ended before a kill."""
    place = new_workplace()
    write(place)
    rng = random.Random(20261129)
    kills = 0
    for at_start in (False, True, False, False):
        began, driver = time.time(), place.start("--plain", verb=VERB)
        if at_start:
            time.sleep(rng.uniform(0.5, 15))
        else:
            wait_for(partial(at_work_since, place, driver, began), "a trial to be under way", 900)
            time.sleep(rng.uniform(0, 4))
        if driver.poll() is None:
            kill(driver)
            kills += 1
    assert kills >= 3, "the study was over too soon for this schedule"
    done = place.gridlaw(*VERB, "grid.yaml", "--plain", timeout=1800)
    assert done.returncode == 0, done.stderr
    trials = trials_of(place)
    assert told(trials) == undisturbed
    check(place, trials, kills=kills)


def test_worker_database_and_driver_killed_in_one_study(
    new_workplace: Callable[[], Any],
    undisturbed: list[tuple[str, dict[str, Any], list[float] | None]],
    own_postgres: Postgres,
) -> None:
    """Two trials at a time. First a worker dies, then the database, which comes back; then driver and database."""
    place, url = new_workplace(), own_postgres.database("studies")
    write(place, storage=url, parallel=2)
    driver = place.start("--plain", verb=VERB)

    def wait(condition: Callable[[], Any], what: str) -> Any:
        found = wait_for(lambda: condition() or driver.poll() is not None, what, 900)
        assert driver.poll() is None, f"over before {what}: {log_of(place)[-3000:]}"
        return found

    os.kill(wait(lambda: list(at_work(place)), "a trial to be under way")[0][2], signal.SIGKILL)
    wait(lambda: "worker lost" in log_of(place), "the driver to see that a worker died")
    wait(lambda: list(at_work(place)), "a trial to be under way again")
    own_postgres.kill()
    wait(lambda: "the study's storage" in log_of(place), "the driver to see that the database died")
    assert own_postgres.password not in log_of(place)
    own_postgres.start()
    wait(lambda: "is back" in log_of(place), "the driver to see that the database is back")
    wait(lambda: list(at_work(place)), "a trial to be under way with the database back")
    kill(driver)
    left = trials_of(place, url)
    assert "RUNNING" in [trial.state.name for trial in left], "nothing was under way when the driver was killed"
    own_postgres.kill()
    refused = place.gridlaw(*VERB, "grid.yaml", "--plain")
    assert refused.returncode == 2 and "storage" in refused.stderr and own_postgres.password not in refused.stderr
    own_postgres.start()
    assert told(trials_of(place, url)) == told(left)
    done = place.gridlaw(*VERB, "grid.yaml", "--plain", timeout=1800)
    assert done.returncode == 0, done.stderr
    trials = trials_of(place, url)
    check(place, trials, kills=3)  # a worker; two trials of one driver
    assert told(trials)[:2] == undisturbed[:2], "those that do not hang on the order in which trials end"
    ended = {trial.number: (trial.params, trial.values) for trial in left if trial.state.is_finished()}
    assert all((trials[number].params, trials[number].values) == each for number, each in ended.items())
    assert all(trial.params.items() <= trials[trial.number].params.items() for trial in left)
