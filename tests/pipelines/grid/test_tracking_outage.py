"""The tracking server goes away in the middle of a grid: training goes on, and nothing is lost or sent twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


GRID: dict[str, Any] = {
    "architectures": ["full", "swa-16"],
    "scales": ["n1"],
    "budgets": ["20N", "40N"],
    "laws": [],
}


def steps_logged(place: Any) -> int:
    journals = (place.folder / "gridlaw-runs" / "attempts").glob("*/journal.jsonl")
    return sum(path.read_bytes().count(b"train_loss") for path in journals)


def wait_for_steps(place: Any, number: int) -> None:
    deadline = time.monotonic() + 180
    while steps_logged(place) < number:
        assert time.monotonic() < deadline, "training did not get under way"
        time.sleep(0.2)


def check_complete(place: Any, server: Server) -> None:
    from gridlaw.platform.ledger.tracking import prepare_environment

    prepare_environment()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=server.uri)
    experiment = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    points = [run for run in runs if run.data.tags["gridlaw.kind"] == "point"]
    assert sorted(run.data.tags["gridlaw.name"] for run in points) == sorted(
        f"{architecture}/n1/{budget}/seed0" for architecture in ("full", "swa-16") for budget in ("20N", "40N")
    )
    assert not [run.data.tags["gridlaw.name"] for run in runs if run.info.status == "RUNNING"]
    assert all(run.info.status == "FINISHED" and "loss" in run.data.metrics for run in points)
    for run in runs:
        if run.data.tags["gridlaw.kind"] in ("trunk", "point"):
            steps = [each.step for each in client.get_metric_history(run.info.run_id, "train_loss")]
            assert max(Counter(steps).values()) == 1
            assert sorted(steps) == list(range(min(steps), max(steps) + 1))


def test_a_server_away_for_a_minute_delays_and_loses_nothing(server: Server, new_workplace: Callable[[], Any]) -> None:
    """Lightning #12833: a tracking outage kills training."""
    place = new_workplace()
    place.write(GRID | {"run": {"tracking_uri": server.uri}})
    driver = place.start("--plain")
    wait_for_steps(place, 60)
    server.stop()
    before = steps_logged(place)
    time.sleep(60)
    assert steps_logged(place) > before  # training went on
    server.start()
    assert driver.wait(timeout=400) == 0, (place.folder / "run.log").read_text()[-3000:]
    check_complete(place, server)


def test_a_server_that_stays_away_ends_the_driver_and_the_next_run_goes_on(
    server: Server, new_workplace: Callable[[], Any]
) -> None:
    place = new_workplace()
    place.write(GRID | {"run": {"tracking_uri": server.uri}})
    driver = place.start("--plain")
    wait_for_steps(place, 60)
    server.stop()
    assert driver.wait(timeout=500) == 3, (place.folder / "run.log").read_text()[-3000:]
    executed = steps_logged(place)
    assert executed > 60
    server.start()
    done = place.run(timeout=400)
    assert done.returncode == 0, done.stderr
    check_complete(place, server)
