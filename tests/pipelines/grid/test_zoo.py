"""Every registered architecture as a point of the shipped grid ``zoo``, and again with each worker killed once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gridlaw.modules.catalog import architecture_names
from gridlaw.pipelines.plan import grids_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def zoo() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((grids_folder() / "zoo.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def undisturbed(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    started = time.monotonic()
    place.done = place.gridlaw("run", "zoo", timeout=1500)
    place.seconds = time.monotonic() - started
    return place


def final(place: Any) -> dict[str, float]:
    return {
        run.data.tags["gridlaw.name"]: run.data.metrics["loss"]
        for run in place.runs("point", name="zoo")
        if run.info.status == "FINISHED"
    }


def families(names: list[str]) -> set[str]:
    """Names without their windows."""
    return {"-".join(part for part in name.split("-") if not part.isdigit()) for name in names}


def test_every_architecture_is_trained_and_evaluated(undisturbed: Any) -> None:
    assert undisturbed.done.returncode == 0, undisturbed.done.stderr
    asked = zoo()["architectures"]
    assert families(asked) == families(list(architecture_names()))
    losses = final(undisturbed)
    assert len(losses) == len(asked)
    assert all(1 < loss < 3.5 for loss in losses.values()), losses
    print(f"zoo took {undisturbed.seconds:.0f} s")


def test_one_architecture_per_mixer_survives_the_death_of_its_worker(
    undisturbed: Any, new_workplace: Callable[[], Any]
) -> None:
    place = new_workplace()
    place.file.write_text(yaml.safe_dump(zoo() | {"run": {"checkpoint_every_steps": 5}}))
    driver = place.start("--plain")
    killed: set[str] = set()
    deadline = time.monotonic() + 1500
    while driver.poll() is None and time.monotonic() < deadline:
        for path in (place.folder / "gridlaw-runs" / "attempts").glob("*/progress.json"):
            try:
                progress = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            at = path.parent.name
            under_way = progress["stage"] == "trunk" and 8 <= progress["step"] < progress["until_step"] - 5
            if under_way and at not in killed:
                killed.add(at)
                os.kill(progress["pid"], signal.SIGKILL)
        time.sleep(0.1)
    assert driver.wait(timeout=60) == 0, (place.folder / "run.log").read_text()[-3000:]
    trunks = {run.info.run_id: run for run in place.runs("trunk", name="zoo")}
    assert set(trunks) == killed, "a worker was missed: it trained faster than this test looks"
    for run in trunks.values():
        repeated = int(run.data.tags["gridlaw.executed_steps"]) - int(run.data.tags["gridlaw.steps"])
        assert 0 <= repeated <= 5
    assert final(place) == final(undisturbed)
