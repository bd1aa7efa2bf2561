"""A driver that is stopped or killed, and started again: nothing lost, nothing twice; a second driver is refused."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridlaw.modules.training import checkpoint_files
from running import finish, held, kill, losses_of, progress, under_way

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

# Long enough to be stopped in the middle: some hundred steps.
LONGER = {
    "scales": [{"name": "b", "layers": 2, "d_model": 24, "ffn_dim": 48, "heads": 2, "kv_heads": 1}],
    "budgets": ["20N"],
    "architectures": ["full"],
    "laws": [],
    "run": {"checkpoint_every_steps": 20, "max_parallel": 1},
}


@pytest.fixture(scope="module")
def undisturbed(new_workplace: Callable[[], Any]) -> dict[str, float]:
    place = new_workplace()
    place.write(LONGER)
    return losses_of(place)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_grid_saves_within_ten_seconds_and_goes_on(
    signum: signal.Signals, code: int, new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    place = new_workplace()
    place.write(LONGER)
    driver = under_way(place, 30, "--store", "gridlaw-runs")
    trained = {run_id: each["step"] for run_id, each in progress(place.store) if each["stage"] in ("trunk", "decay")}
    at = time.time()
    driver.send_signal(signum)
    assert driver.wait(timeout=120) == code
    assert trained
    for run_id, step in trained.items():
        check_saved(place.store / "attempts" / run_id, step=step, by=at + 10)
    assert "To go on: gridlaw run grid.yaml --store gridlaw-runs\n" in (place.folder / "run.log").read_text()
    assert "RUNNING" not in {run.info.status for run in place.runs("trunk")}
    actions = {point["action"] for point in place.plan()["points"]}
    expected = re.compile(rf"continue from step \d+ \(stopped by {signum.name}\)")
    assert any(expected.fullmatch(action) for action in actions), actions
    finish(place, undisturbed)


def check_saved(folder: Path, *, step: int, by: float) -> None:
    """A checkpoint of this step or a later one was written in time, or training has ended in it."""
    if (folder / "model" / "model.safetensors").is_file():
        return
    newest, path = checkpoint_files.checkpoints(folder)[-1]
    print(f"at the signal step {step}, saved at step {newest}, {by - path.stat().st_mtime:.1f} s before the limit")
    assert newest >= step
    assert path.stat().st_mtime < by


def test_a_killed_driver_is_followed_by_one_that_does_only_what_is_missing(
    new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    """Lightning #10397 #12291, ray #32239: nothing is left RUNNING, and work is on durable storage."""
    place = new_workplace()
    place.write(LONGER)
    driver = under_way(place)
    with held(driver):
        second = place.run()
    assert second.returncode == 2
    assert f"is being run by pid {driver.pid}" in second.stderr
    kill(driver)
    finish(place, undisturbed)
    for run in place.runs("trunk"):
        repeated = int(run.data.tags["gridlaw.executed_steps"]) - int(run.data.tags["gridlaw.steps"])
        assert 0 <= repeated <= 20
