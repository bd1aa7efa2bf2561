"""The tracking server goes away in the middle of a grid: training goes on, and nothing is lost or sent twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_server import Server
from running import check_nothing_lost_nothing_twice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


GRID: dict[str, Any] = {
    "architectures": ["full", "swa-16"],
    "scales": ["n1"],
    "budgets": ["10N", "20N"],
    "laws": [],
}


def steps_logged(place: Any) -> int:
    journals = (place.folder / "gridlaw-runs" / "attempts").glob("*/journal.jsonl")
    return sum(path.read_bytes().count(b"train_loss") for path in journals)


def wait_for_steps(place: Any, number: int) -> None:
    deadline = time.monotonic() + 600
    while steps_logged(place) < number:
        assert time.monotonic() < deadline, "training did not get under way"
        time.sleep(0.2)


def check_complete(place: Any) -> None:
    """Every point, every step of its losses, and nothing twice."""
    names = {f"{architecture}/n1/{budget}/seed0" for architecture in ("full", "swa-16") for budget in ("10N", "20N")}
    losses = place.losses()
    assert losses.keys() == names
    check_nothing_lost_nothing_twice(place, losses)
    for run in [*place.runs("trunk"), *place.runs("point")]:
        steps = sorted(each.step for each in place.client().get_metric_history(run.info.run_id, "train_loss"))
        assert steps == list(range(steps[0], steps[-1] + 1))


def test_a_server_away_for_a_minute_delays_and_loses_nothing(server: Server, new_workplace: Callable[[], Any]) -> None:
    """Lightning #12833: a tracking outage kills training."""
    place = new_workplace()
    place.tracking_uri = server.uri
    place.write(GRID | {"run": {"tracking_uri": server.uri}})
    driver = place.start("--plain")
    wait_for_steps(place, 60)
    server.stop()
    before = steps_logged(place)
    time.sleep(60)
    assert steps_logged(place) > before  # training went on
    server.start()
    assert driver.wait(timeout=900) == 0, (place.folder / "run.log").read_text()[-3000:]
    check_complete(place)


def test_a_server_that_stays_away_ends_the_driver_and_the_next_run_goes_on(
    server: Server, new_workplace: Callable[[], Any]
) -> None:
    place = new_workplace()
    place.tracking_uri = server.uri
    place.write(GRID | {"run": {"tracking_uri": server.uri}})
    driver = place.start("--plain")
    wait_for_steps(place, 60)
    server.stop()
    assert driver.wait(timeout=900) == 3, (place.folder / "run.log").read_text()[-3000:]
    executed = steps_logged(place)
    assert executed > 60
    server.start()
    done = place.run(timeout=900)
    assert done.returncode == 0, done.stderr
    check_complete(place)
