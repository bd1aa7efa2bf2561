"""A whole grid over S3: killed in the middle and run again, it has the bits of the same grid over a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridlaw.modules.training.checkpoint_files import step_of
from gridlaw.pipelines.grid.attempts import MODEL_FOLDER, WEIGHTS
from gridlaw.platform.store.s3 import S3Store
from running import check_nothing_lost_nothing_twice, kill, wait_for
from s3_server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

GRID: dict[str, Any] = {
    "architectures": ["full"],
    "scales": ["n1"],
    "budgets": ["20N", "40N"],
    "laws": [],
    "run": {"checkpoint_every_steps": 20},
}


def weights(place: Any, read: Callable[[str], bytes]) -> dict[str, bytes]:
    """By point: its model's file, byte for byte."""
    names = {run.data.tags["gridlaw.name"]: run.info.run_id for run in place.runs("point")}
    return {name: read(f"attempts/{run_id}/{MODEL_FOLDER}/{WEIGHTS}") for name, run_id in names.items()}


def newest_checkpoint(store: S3Store) -> int:
    return max((step_of(Path(name)) or 0 for name in store.list("attempts")), default=0)


def test_a_grid_over_s3_that_was_killed_has_the_bits_of_one_over_a_folder(
    new_workplace: Callable[[], Any], s3: S3Server, tmp_path: Path
) -> None:
    local = new_workplace()
    local.write(GRID)
    done = local.run("--plain", timeout=1800)
    assert done.returncode == 0, done.stderr

    place = new_workplace()
    store = S3Store(f"s3://{s3.new_bucket()}/studies/first")
    place.tracking_uri = f"sqlite:///{place.folder}/mlflow.db"
    place.write(GRID | {"run": {**GRID["run"], "store": store.address, "tracking_uri": place.tracking_uri}})
    place.more_environment = {**s3.environment, "GRIDLAW_CACHE": str(tmp_path / "first-machine")}
    driver = place.start("--plain")
    wait_for(lambda: newest_checkpoint(store) > 100 or driver.poll() is not None, "checkpoints in the store", 900)
    second = place.run()
    assert driver.poll() is None, (place.folder / "run.log").read_text()[-3000:]
    assert second.returncode == 2, second.stderr
    assert re.search(rf"is being run by pid {driver.pid} on \S+, since", second.stderr)
    kill(driver)
    reached = newest_checkpoint(store)

    place.more_environment["GRIDLAW_CACHE"] = str(tmp_path / "second-machine")  # it has nothing of the store
    done = place.run("--plain", timeout=1800)
    assert done.returncode == 0, done.stderr
    check_nothing_lost_nothing_twice(place, local.losses())
    assert weights(place, store.read_bytes) == weights(local, lambda name: (local.store / name).read_bytes())
    (trunk,) = place.runs("trunk")
    repeated = int(trunk.data.tags["gridlaw.executed_steps"]) - int(trunk.data.tags["gridlaw.steps"])
    print(f"killed after step {reached} of {trunk.data.tags['gridlaw.steps']}, {repeated} steps done twice")
    assert not store.list("journals"), "rows that the ledger may not have"

    before = store.versions()
    again = place.run()
    assert again.returncode == 0, again.stderr
    assert store.versions() == before, "a run with nothing to do wrote to the store"
    shown = json.loads(place.gridlaw("evaluate", "grid.yaml:full/n1/40N/seed0", "loss", "--json").stdout)
    assert shown["full/n1/40N/seed0"]["loss"]["metrics"]["loss"] == place.losses()["full/n1/40N/seed0"]
