"""Stages over a store in S3: killed anywhere and gone on with elsewhere, they come to the bits of a local store."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stage_process
from gridlaw.modules.data.embedded import python_library_texts
from gridlaw.modules.training.checkpoint_files import checkpoint_name
from gridlaw.pipelines.evaluations.run import Parts
from gridlaw.pipelines.grid.attempts import MODEL_FOLDER, WEIGHTS, stored_steps, whole_steps
from gridlaw.pipelines.grid.executor import run_stage
from gridlaw.pipelines.grid.tasks import TaskBuilder
from gridlaw.pipelines.plan import GridPlan, make_plan
from gridlaw.pipelines.stages import remote
from gridlaw.pipelines.stages.train import train_segment
from gridlaw.platform.errors import Surroundings
from gridlaw.platform.ledger.records import TRAIN_LOSS
from gridlaw.platform.ledger.segments import JournalFeed
from gridlaw.platform.ledger.sender import JOURNAL_FILE, parse_row
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.local import LocalStore
from gridlaw.platform.store.s3 import S3Store
from s3_server import S3Server

GRID: dict[str, Any] = {
    "name": "tiny",
    "architectures": ["full"],
    "scales": [{"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}],
    "budgets": ["4N", "8N"],
    "training": {
        "batch_tokens": 256,
        "precision": "fp32",
        "optimizer": {"name": "adamw"},
        "schedule": {"warmup_steps": 4},
    },
    "evaluate": [{"loss": {"tokens": 81_920}}],
    "run": {"checkpoint_every_steps": 5},
}


@dataclass(frozen=True)
class Work:
    """The tasks of one small grid over one store, as a driver would make them."""

    plan: GridPlan
    store: Store

    @property
    def builder(self) -> TaskBuilder:
        return TaskBuilder(store=self.store, run=self.plan.spec.run, accelerator="cpu", stop="stops/me")

    @property
    def last_step(self) -> int:
        return self.plan.trunks[0].branch_steps[-1]

    def prepare(self) -> dict[str, Any]:
        return self.builder.prepare(next(iter(self.plan.data.values())))

    def segment(self, until_step: int | None = None) -> dict[str, Any]:
        return self.builder.segment(
            self.plan.trunks[0],
            until_step=until_step or self.last_step,
            run_id="trunk",
            weights=None,
            micro_batch=None,
        )

    def decay(self) -> dict[str, Any]:
        trunk = self.plan.trunks[0]
        return self.builder.decay(
            trunk, trunk.points[-1], run_id="point", trunk_run_id="trunk", weights=None, micro_batch=None
        )

    def evaluate(self) -> dict[str, Any]:
        return self.builder.evaluate(
            self.plan.evaluations[0], self.plan.trunks[0], run_id="evaluation", point_run_id="point", examples=None
        )

    def run(self, stage: str, task: dict[str, Any]) -> dict[str, Any]:
        """In this process; the result."""
        record = run_stage(stage, task, self.store.address)
        assert "result" in record, record["failure"]
        result: dict[str, Any] = record["result"]
        return result

    def weights(self) -> bytes:
        return self.store.read_bytes(f"attempts/point/{MODEL_FOLDER}/{WEIGHTS}")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> GridPlan:
    file, size = tmp_path_factory.mktemp("text") / "text.jsonl", 0
    with file.open("w", encoding="utf-8") as lines:
        for text in python_library_texts():
            lines.write(json.dumps({"text": text}) + "\n")
            size += len(text)
            if size > 1_500_000:
                break
    data = {"context": 64, "mixture": [str(file)], "heldout": {"fraction": 0.1}}
    return make_plan(GridSpec.model_validate(GRID | {"data": data}))


@pytest.fixture(scope="module")
def local(plan: GridPlan, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Everything done undisturbed, in a folder."""
    work = Work(plan, LocalStore(tmp_path_factory.mktemp("local") / "store"))
    work.store.folder("attempts")
    work.run("prepare", work.prepare())
    work.run("segment", work.segment())
    work.run("decay", work.decay())
    return work


@pytest.fixture
def node(s3: S3Server, tmp_path: Path) -> Callable[[], Mapping[str, str]]:
    """``node()``: the environment of a machine that has nothing of the store yet."""
    numbers = iter(range(100))
    return lambda: {**s3.environment, "GRIDLAW_CACHE": str(tmp_path / f"node-{next(numbers)}")}


@pytest.fixture
def distant(
    plan: GridPlan, s3: S3Server, node: Callable[[], Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> Work:
    """The same over S3, with the data prepared; this process is a node of its own."""
    monkeypatch.setenv("GRIDLAW_CACHE", node()["GRIDLAW_CACHE"])
    monkeypatch.setattr(remote, "BRING_SECONDS", 0.2)
    work = Work(plan, S3Store(f"s3://{s3.new_bucket()}/grids"))
    work.run("prepare", work.prepare())
    return work


def newest(work: Work, run_id: str) -> int:
    return max(stored_steps(work.store, [run_id])[run_id], default=0)


def losses(path: Path) -> dict[int, float]:
    """By step, as a sender would take them: the first of each."""
    found: dict[int, float] = {}
    for line in path.read_bytes().splitlines():
        row = parse_row(line)
        assert row is not None, line
        if TRAIN_LOSS in row["m"]:
            found.setdefault(row["s"], row["m"][TRAIN_LOSS])
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_on_one_node_and_gone_on_with_on_the_next_it_comes_to_the_same_bits(
    local: Work, distant: Work, node: Callable[[], Mapping[str, str]], tmp_path: Path
) -> None:
    moments, num_kills = random.Random(5), 0
    for _ in range(3):
        wanted = newest(distant, "trunk") + moments.randint(1, distant.last_step // 5)
        process = stage_process.start("segment", distant.segment(), distant.store.address, node())
        until = time.monotonic() + 600
        while process.is_alive() and newest(distant, "trunk") < wanted:
            assert time.monotonic() < until
            time.sleep(0.1)
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            num_kills += 1
        process.join()
    assert num_kills >= 2
    result = distant.run("segment", distant.segment())
    assert result["resumed_from"] > 0, "it began anew"
    assert result["checkpoint"] == distant.store.url(f"attempts/trunk/{checkpoint_name(distant.last_step)}")
    assert result["executed_steps"] >= distant.last_step
    distant.run("decay", distant.decay())
    assert distant.weights() == local.weights()
    branch_points = set(distant.plan.trunks[0].branch_steps)
    assert whole_steps(distant.store, "trunk", branch_points) == branch_points, "a branch point was pruned"
    assert not stored_steps(distant.store, ["point"])["point"], "a finished decay keeps no checkpoints"
    feed = JournalFeed(distant.store, tmp_path / "driver")
    assert set(feed.unsent()) == {"trunk", "point"}
    for run_id in ("trunk", "point"):
        feed.pull([run_id])
        there = losses(Path(local.store.address) / "attempts" / run_id / JOURNAL_FILE)
        assert len(there) > 10
        assert losses(feed.path(run_id)) == there


def test_a_finished_task_is_not_done_again_on_another_node(
    distant: Work, node: Callable[[], Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = distant.run("segment", distant.segment())
    monkeypatch.setenv("GRIDLAW_CACHE", node()["GRIDLAW_CACHE"])
    again = distant.run("segment", distant.segment())
    assert (first["executed_now"], again["executed_now"]) == (distant.last_step, 0)
    assert {**again, "executed_now": 0, "resumed_from": 0} == {**first, "executed_now": 0, "resumed_from": 0}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(local: Work, distant: Work) -> None:
    half, last = distant.last_step // 2, distant.last_step
    distant.run("segment", distant.segment(half))
    name = f"attempts/trunk/{checkpoint_name(half)}"
    data = bytearray(distant.store.read_bytes(name))
    data[len(data) // 2] ^= 1
    distant.store.write_bytes(name, bytes(data))
    result = distant.run("segment", distant.segment())
    assert 0 < result["resumed_from"] < half
    assert result["damaged"] == [f"{distant.store.url(name)}: its content does not match its checksum"]
    name = f"attempts/trunk/{checkpoint_name(last)}"
    distant.store.write_bytes(name, b"torn")
    assert not whole_steps(distant.store, "trunk", [last])
    result = distant.run("decay", distant.decay())
    assert [each.partition(": ")[2] for each in result["damaged"]] == ["it has 4 bytes instead of " + str(len(data))]
    assert distant.weights() == local.weights()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_stop_is_heard_and_no_step_is_repeated(
    local: Work, distant: Work, node: Callable[[], Mapping[str, str]]
) -> None:
    process = stage_process.start("segment", distant.segment(), distant.store.address, node())
    until = time.monotonic() + 600
    while process.is_alive() and not newest(distant, "trunk"):
        assert time.monotonic() < until
        time.sleep(0.1)
    distant.store.write_bytes("stops/me", b"stop")
    process.join(120)
    assert process.exitcode == 1
    stopped_at = newest(distant, "trunk")
    assert 0 < stopped_at < distant.last_step
    distant.store.delete("stops/me")
    result = distant.run("segment", distant.segment())
    assert result["resumed_from"] == stopped_at
    assert result["executed_steps"] == distant.last_step
    distant.run("decay", distant.decay())
    assert distant.weights() == local.weights()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_goes_on_while_the_store_is_away(local: Work, distant: Work, s3: S3Server) -> None:
    def with_an_outage(task: dict[str, Any]) -> dict[str, Any]:
        with s3.busy():
            return train_segment(task)

    result = remote.run_remotely("segment", with_an_outage, distant.segment(), distant.store)
    assert result["steps"] == newest(distant, "trunk") == distant.last_step
    distant.run("decay", distant.decay())
    assert distant.weights() == local.weights()


def test_a_result_that_cannot_be_stored_is_none(distant: Work, s3: S3Server) -> None:
    impatient = S3Store(distant.store.address, patience_seconds=0.2)
    with ExitStack() as outage:

        def with_an_outage(task: dict[str, Any]) -> dict[str, Any]:
            outage.enter_context(s3.busy())
            return train_segment(task)

        with pytest.raises(Surroundings, match="overloaded") as told:
            remote.run_remotely("segment", with_an_outage, distant.segment(10), impatient)
    assert told.value.exit_code == 3
    assert newest(distant, "trunk") == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_evaluation_goes_on_from_its_finished_part(
    distant: Work, node: Callable[[], Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    distant.run("segment", distant.segment())
    distant.run("decay", distant.decay())
    computed: list[str] = []
    original = Parts.get

    def counting(self: Parts, part: str, compute: Callable[[], Any]) -> Any:
        def count() -> Any:
            computed.append(part)
            if len(computed) == 3:
                raise KeyError("a fault in the middle")
            return compute()

        return original(self, part, count)

    monkeypatch.setattr(Parts, "get", counting)
    record = run_stage("evaluate", distant.evaluate(), distant.store.address)
    assert "a fault in the middle" in record["failure"]["reason"]
    monkeypatch.setenv("GRIDLAW_CACHE", node()["GRIDLAW_CACHE"])
    result = distant.run("evaluate", distant.evaluate())
    assert result["metrics"]["loss"] > 0
    assert computed[2] == computed[3]
    assert len(set(computed)) == len(computed) - 1 > 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_data_are_prepared_once_however_many_ask(
    plan: GridPlan, s3: S3Server, node: Callable[[], Mapping[str, str]]
) -> None:
    work = Work(plan, S3Store(f"s3://{s3.new_bucket()}/grids"))
    nodes = [node() for _ in range(2)]
    askers = [stage_process.start("prepare", work.prepare(), work.store.address, each) for each in nodes]
    for asker in askers:
        asker.join(200)
        assert asker.exitcode == 0
    builders = [each for each in nodes if list(Path(each["GRIDLAW_CACHE"]).glob("*/copies/*-*"))]
    assert len(builders) == 1
    manifest = json.loads(work.store.read_bytes(f"data/{next(iter(plan.data))}/prepared.json"))
    assert manifest["counts"]["train"]["windows"] > 0
