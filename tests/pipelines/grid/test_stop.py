"""A driver that is stopped or killed, and started again: nothing lost, nothing twice; a second driver is refused."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

# Long enough to be stopped in the middle: some hundred steps a trunk.
LONGER = {
    "budgets": ["10N", "20N"],
    "architectures": ["full"],
    "laws": [],
    "run": {"checkpoint_every_steps": 20},
}


@pytest.fixture(scope="module")
def undisturbed(new_workplace: Callable[[], Any]) -> dict[str, float]:
    place = new_workplace()
    place.write(LONGER)
    done = place.run()
    assert done.returncode == 0, done.stderr
    losses: dict[str, float] = place.losses()
    return losses


def wait_for(condition: Callable[[], Any], what: str, limit_seconds: float = 120) -> Any:
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {limit_seconds} s for {what}")


def newest_step(place: Any) -> int:
    steps = [0]
    for path in (place.folder / "gridlaw-runs" / "attempts").glob("*/progress.json"):
        try:
            steps.append(json.loads(path.read_text())["step"])
        except (OSError, ValueError):
            continue
    return max(steps)


def check_nothing_lost_nothing_twice(place: Any, undisturbed: dict[str, float]) -> None:
    assert place.losses() == undisturbed
    client = place.client()
    runs = [run for kind in ("submission", "trunk", "point", "evaluation", "law") for run in place.runs(kind)]
    assert not [run.data.tags["gridlaw.name"] for run in runs if run.info.status == "RUNNING"]
    for kind in ("trunk", "point", "evaluation"):
        names = [run.data.tags["gridlaw.name"] for run in place.runs(kind)]
        assert max(Counter(names).values()) == 1
    for run in [*place.runs("trunk"), *place.runs("point")]:
        for metric in ("train_loss", "lr"):
            steps = [each.step for each in client.get_metric_history(run.info.run_id, metric)]
            assert steps and max(Counter(steps).values()) == 1


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_stopped_grid_saves_within_ten_seconds_and_goes_on(
    signum: int, code: int, new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    place = new_workplace()
    place.write(LONGER)
    driver = place.start()
    wait_for(lambda: newest_step(place) > 30, "training to be under way")
    second = place.run()
    assert second.returncode == 2
    assert f"pid {driver.pid}" in second.stderr
    started = time.monotonic()
    driver.send_signal(signum)
    assert driver.wait(timeout=60) == code
    # Saving itself is bounded by 8 s; the rest is the end of Ray and of this machine's load.
    assert time.monotonic() - started < 30
    assert "gridlaw run grid.yaml" in (place.folder / "run.log").read_text()
    killed = {run.info.status for run in place.runs("trunk")}
    assert "RUNNING" not in killed
    done = place.run()
    assert done.returncode == 0, done.stderr
    check_nothing_lost_nothing_twice(place, undisturbed)


def kill(driver: Any) -> None:
    """kill -9 of the driver; its workers end with it (Ray's own agents may take a minute, and write nothing)."""
    workers = _workers(driver.pid)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not any(_alive(pid) for pid in workers), "the driver's workers to end", 60)


def _workers(pid: int) -> list[int]:
    import psutil

    children = psutil.Process(pid).children(recursive=True)
    names = {child.pid: " ".join(child.cmdline()) for child in children}
    return [pid for pid, name in names.items() if name.startswith("ray::") and "Agent" not in name]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_and_run_again(place: Any, delays: list[float]) -> None:
    for delay in delays:
        driver = place.start()
        time.sleep(delay)
        if driver.poll() is None:
            kill(driver)
    done = place.run()
    assert done.returncode == 0, done.stderr


def test_a_killed_driver_is_followed_by_one_that_does_only_what_is_missing(
    new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    place = new_workplace()
    place.write(LONGER)
    driver = place.start()
    wait_for(lambda: newest_step(place) > 30, "training to be under way")
    kill(driver)
    done = place.run()
    assert done.returncode == 0, done.stderr
    check_nothing_lost_nothing_twice(place, undisturbed)
    for run in place.runs("trunk"):
        repeated = int(run.data.tags["gridlaw.executed_steps"]) - int(run.data.tags["gridlaw.steps"])
        assert 0 <= repeated <= 20


@pytest.mark.slow
def test_a_driver_killed_at_ten_random_moments(new_workplace: Callable[[], Any], undisturbed: dict[str, float]) -> None:
    place = new_workplace()
    place.write(LONGER)
    rng = random.Random(20261129)
    kill_and_run_again(place, [rng.uniform(2, 25) for _ in range(12)])
    check_nothing_lost_nothing_twice(place, undisturbed)
