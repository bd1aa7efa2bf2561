"""A driver that is stopped or killed, and started again: nothing lost, nothing twice; a second driver is refused."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from running import check_nothing_lost_nothing_twice, kill, wait_for_step

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

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


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_grid_saves_within_ten_seconds_and_goes_on(
    signum: signal.Signals, code: int, new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    place = new_workplace()
    place.write(LONGER)
    driver = place.start()
    wait_for_step(place.store, 30, driver)
    second = place.run()
    assert second.returncode == 2
    assert f"pid {driver.pid}" in second.stderr
    started = time.monotonic()
    driver.send_signal(signum)
    assert driver.wait(timeout=60) == code
    # Saving itself is bounded by 8 s; the rest is the end of Ray and of this machine's load.
    assert time.monotonic() - started < 30
    assert "gridlaw run grid.yaml" in (place.folder / "run.log").read_text()
    assert "RUNNING" not in {run.info.status for run in place.runs("trunk")}
    actions = {point["action"] for point in place.plan()["points"]}
    expected = re.compile(rf"continue from step \d+ \(stopped by {signum.name}\)")
    assert any(expected.fullmatch(action) for action in actions), actions
    done = place.run()
    assert done.returncode == 0, done.stderr
    check_nothing_lost_nothing_twice(place, undisturbed)


def test_a_killed_driver_is_followed_by_one_that_does_only_what_is_missing(
    new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    """Lightning #10397 #12291, ray #32239: nothing is left RUNNING, and work is on durable storage."""
    place = new_workplace()
    place.write(LONGER)
    driver = place.start()
    wait_for_step(place.store, 30, driver)
    kill(driver)
    done = place.run()
    assert done.returncode == 0, done.stderr
    check_nothing_lost_nothing_twice(place, undisturbed)
    for run in place.runs("trunk"):
        repeated = int(run.data.tags["gridlaw.executed_steps"]) - int(run.data.tags["gridlaw.steps"])
        assert 0 <= repeated <= 20
