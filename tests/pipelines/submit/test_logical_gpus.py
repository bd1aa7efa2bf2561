"""GPUs that a cluster only declares: who asks for which, what each trial sees, and who shares one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import seen_mixer
from ray_head import RayHead, new_token
from running import install_mixer
from submitting import Client

# A Ray head and a grid on it: minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCALE = {"layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}
GRID: dict[str, Any] = {
    "architectures": [{"name": "seen", "pattern": ["seen"]}],
    "scales": [{"name": "whole", **SCALE}, {"name": "half", **SCALE, "d_model": 24}],
    "budgets": ["30N"],
    "seeds": [0, 1],
    "run": {"accelerator": "gpu", "devices": {"whole": 1, "half": 0.5}, "checkpoint_every_steps": 50},
}


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Client]:
    """With a cluster of two GPUs whose workers have the mixer."""
    plugins, seen = tmp_path / "plugins", tmp_path / "seen"
    seen.mkdir()
    install_mixer(Path(seen_mixer.__file__), plugins, "seen = seen_mixer:SeenSpec")
    path = os.pathsep.join(filter(None, [str(plugins), os.environ.get("PYTHONPATH", "")]))
    head = RayHead(token=new_token(), num_cpus=4, num_gpus=2)
    head.start({"PYTHONPATH": path, seen_mixer.FOLDER: str(seen)})
    client = Client(tmp_path, head)
    client.more = {"PYTHONPATH": path}
    yield client
    head.stop()
    shutil.rmtree(plugins)


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["first"] < other["last"] and other["first"] < one["last"])


def test_trials_see_their_own_gpus_and_halves_share_one(person: Client) -> None:
    person.write(GRID)
    followed = person.start("logs", person.submit(), "--follow")
    out, err = followed.communicate(timeout=1500)
    assert followed.returncode == 0 and "4 of 4 points done" in out, out + err
    trainings = [json.loads(path.read_text()) for path in (person.folder / "seen").glob("*.json")]
    for each in trainings:
        each["scale"] = {16: "whole", 24: "half"}[each["width"]]
    assert {each["scale"] for each in trainings} == {"whole", "half"}
    assert {each["visible"] for each in trainings} == {"0", "1"}  # one each, and both were used
    pairs = [(one, other) for one in trainings for other in trainings if one is not other and overlap(one, other)]
    same = [(one["scale"], other["scale"]) for one, other in pairs if one["visible"] == other["visible"]]
    assert all(pair == ("half", "half") for pair in same), same
    assert same, "two halves were on one GPU at the same time"
    shown = [json.loads(path.read_text())["device"] for path in (person.store / "attempts").glob("*/progress.json")]
    assert {"GPU 0", "GPU 1"} >= set(shown) - {""} != set(), shown
    tasks = {each["name"] for each in person.ask("/api/v0/tasks?limit=1000")["data"]["result"]["result"]}
    assert {"seen/whole/seed0 trunk", "seen/half/30N/seed1", "seen/half/30N/seed1/loss"} <= tasks, sorted(tasks)


def test_more_gpus_than_any_node_has_are_refused(person: Client) -> None:
    person.write(GRID | {"run": {"evaluations": {"loss": {"memory": "900GiB"}}}})
    done = person.gridlaw("submit", "grid.yaml", "--store", str(person.store))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the resources of evaluation loss" in done.stderr and "900" in done.stderr
