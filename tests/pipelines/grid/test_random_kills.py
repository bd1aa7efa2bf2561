"""kill -9 at the random moments of seeded schedules, of drivers and of workers, in whole grids: no result changes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from running import at_work, at_work_since, check_nothing_lost_nothing_twice, finish, kill, losses_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

# Two trunks, four branches and four evaluations that take some seconds each.
GRID: dict[str, Any] = {
    "architectures": ["full", "swa-16"],
    "scales": ["n1"],
    "budgets": ["10N", "20N"],
    "training": {
        "batch_tokens": 512,
        "precision": "fp32",
        "optimizer": {"name": "adamw"},
        "schedule": {"warmup_steps": 4, "decay_fraction": 0.4},
    },
    "evaluate": [{"loss": {"tokens": 400_000}}],
    "laws": [],
    "run": {"checkpoint_every_steps": 10},
}
DRIVER_KILLS, WORKER_KILLS = 12, 6


@pytest.fixture(scope="module")
def undisturbed(new_workplace: Callable[[], Any]) -> dict[str, float]:
    place = new_workplace()
    place.write(GRID)
    return losses_of(place)


def test_a_driver_killed_at_random_moments_loses_nothing_and_does_nothing_twice(
    new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    """Some kills fall into the start of a driver, most into its work; each time the same command goes on."""
    place = new_workplace()
    place.write(GRID)
    rng = random.Random(20261129)
    num_kills = 0
    for _ in range(DRIVER_KILLS):
        began, driver = time.time(), place.start("--plain")
        if rng.random() < 0.7:
            wait_for(partial(at_work_since, place, driver, began), "tasks to be under way", 600)
            time.sleep(rng.uniform(0, 5))
        else:
            time.sleep(rng.uniform(0.5, 8))
        if driver.poll() is None:
            kill(driver)
            num_kills += 1
    assert num_kills >= 10, "the grid was over too soon for this schedule"
    finish(place, undisturbed)
    for run in place.runs("trunk"):
        repeated = int(run.data.tags["gridlaw.executed_steps"]) - int(run.data.tags["gridlaw.steps"])
        assert 0 <= repeated <= 10 * num_kills


def test_workers_killed_at_random_moments_change_no_result(
    new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    """Over trunks, branches and evaluations; so few a task that none runs out of tries."""
    place = new_workplace()
    place.write(GRID)
    rng = random.Random(20261129)
    driver = place.start("--plain")
    killed: Counter[tuple[str, str]] = Counter()
    deadline = time.monotonic() + 3000
    while driver.poll() is None and time.monotonic() < deadline:
        time.sleep(rng.uniform(0.2, 2.0))
        found = [each for each in at_work(place) if killed[each[:2]] < (2 if each[1] == "trunk" else 1)]
        if found and killed.total() < WORKER_KILLS:
            run_id, stage, pid = rng.choice(sorted(found))
            os.kill(pid, signal.SIGKILL)
            killed[run_id, stage] += 1
    log = (place.folder / "run.log").read_text()
    assert driver.wait(timeout=60) == 0, log[-3000:]
    print(f"killed: {Counter(stage for _, stage in killed.elements())}")
    assert killed.total() == WORKER_KILLS
    assert log.count("worker lost") >= WORKER_KILLS - 1  # one may have just handed over its result
    check_nothing_lost_nothing_twice(place, undisturbed)
