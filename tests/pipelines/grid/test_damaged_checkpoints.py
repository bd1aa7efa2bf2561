"""Checkpoints that are damaged, half-written or deleted under a whole grid, and what pruning leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from damage import cut, flip_a_bit
from gridlaw.modules.training import checkpoint_files
from running import finish, kill, under_way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EVERY = 10
GRID: dict[str, Any] = {
    "architectures": ["full"],
    "scales": [{"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}],
    "budgets": ["5N", "10N", "20N"],
    "laws": [],
    "run": {"checkpoint_every_steps": EVERY, "max_parallel": 1},
}


@pytest.fixture(scope="module")
def whole(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    place.write(GRID)
    place.done = place.run()
    assert place.done.returncode == 0, place.done.stderr
    return place


def trunk_folder(place: Any) -> Path:
    (run,) = place.runs("trunk")
    return Path(place.store / "attempts" / run.info.run_id)


def test_what_branches_need_is_kept_and_the_rest_pruned(whole: Any) -> None:
    """ray #41362: a checkpoint pruned away that was needed."""
    branches = {point["branches_at_step"] for point in whole.plan()["points"]}
    assert len(branches) == 3
    kept = {step for step, _ in checkpoint_files.checkpoints(trunk_folder(whole))}
    assert branches <= kept
    assert len(kept - branches) <= 2, "the newest two are for resuming"
    for path in (whole.store / "attempts").glob("*/model"):
        assert checkpoint_files.checkpoints(path.parent) == [], "a finished branch needs its model alone"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_a_bit, "does not match its checksum"),
        (cut, "bytes instead of"),
    ],
)
def test_a_running_trunks_damaged_checkpoint_is_named_and_the_one_before_it_used(
    whole: Any, new_workplace: Callable[[], Any], damage: Callable[[Path], None], words: str
) -> None:
    place = new_workplace()
    place.write(GRID)
    kill(under_way(place, 3 * EVERY))
    found = checkpoint_files.checkpoints(trunk_folder(place))
    assert 2 <= len(found) <= 4, "pruned to the newest two and branch points"
    (newest, path), (before, _) = found[-1], found[-2]
    damage(path)
    (trunk_folder(place) / f"step-{newest + EVERY:09d}.ckpt.tmp-0123456789ab").write_bytes(b"half")
    done = finish(place, whole.losses())
    assert "damaged checkpoint passed over" in done.stderr
    assert path.name in done.stderr and words in done.stderr
    (run,) = place.runs("trunk")
    repeated = int(run.data.tags["gridlaw.executed_steps"]) - int(run.data.tags["gridlaw.steps"])
    assert newest - before <= repeated <= newest - before + EVERY
    assert not list(trunk_folder(place).glob("*.tmp-*"))


def test_a_branch_whose_checkpoint_is_damaged_makes_the_trunk_train_that_part_again(whole: Any) -> None:
    """After the trunk was finished: one budget's point is deleted in MLflow, and its checkpoint is damaged."""
    before = whole.losses()
    (victim,) = [run for run in whole.runs("point") if "/10N/" in run.data.tags["gridlaw.name"]]
    at = {point["name"]: point["branches_at_step"] for point in whole.plan()["points"]}
    path = trunk_folder(whole) / checkpoint_files.checkpoint_name(at[victim.data.tags["gridlaw.name"]])
    flip_a_bit(path)
    whole.client().delete_run(victim.info.run_id)
    done = finish(whole, before)
    assert "damaged checkpoint passed over" in done.stderr and path.name in done.stderr
    assert checkpoint_files.fault(path) is None, "it was made again"


def test_deleted_checkpoints_are_said_by_plan_and_run_and_made_again(whole: Any) -> None:
    """Last in this file: it adds a budget."""
    before = whole.losses()
    folder = trunk_folder(whole)
    for path in folder.glob("step-*"):
        path.unlink()
    whole.write(GRID | {"budgets": ["5N", "10N", "20N", "30N"]})
    shown = whole.plan()
    (warning,) = shown["warnings"]
    assert "trunk full/a/seed0 was trained to step" in warning and "trained again" in warning
    assert {point["name"].split("/")[2]: point["action"] for point in shown["points"]} == {
        "5N": "done", "10N": "done", "20N": "done", "30N": "new",
    }  # fmt: skip
    done = whole.run("--plain")
    assert done.returncode == 0, done.stderr
    assert f"warning: {warning}" in done.stderr
    fresh = whole.losses()
    assert {name: fresh[name] for name in before} == before
    assert len(fresh) == 4
    shutil.rmtree(whole.store)
