"""How a task's end is told apart: what may pass is tried again, what cannot is not."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from gridlaw.modules.errors import BadSetting
from gridlaw.pipelines.grid.executor import run_stage
from gridlaw.pipelines.grid.graph import Graph, Node
from gridlaw.pipelines.grid.outcome import TRY_AGAIN, failure_of
from gridlaw.pipelines.grid.source import Problem, exit_code
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.store.local import LocalStore


def os_error(number: int, path: str) -> OSError:
    return OSError(number, "said by the system", path)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (os_error(errno.ENOSPC, "/store/x"), "store"),
        (os_error(errno.EDQUOT, "/store/x"), "store"),
        (os_error(errno.EROFS, "/store/x"), "store"),
        (os_error(errno.EACCES, "/store/x"), "store"),
        (os_error(errno.EACCES, "/data/x"), "exception"),
        (os_error(errno.ENOENT, "/store/x"), "exception"),
        (Surroundings("away"), "store"),
        (MemoryError(), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"), "memory"),
        (RuntimeError("std::bad_alloc"), "memory"),
        (os_error(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (ValueError("can't allocate memory"), "exception"),
        (SystemExit(143), "stopped"),
        (BadSetting("a.jsonl line 7", seen="x", allowed="a JSON object"), "input"),
        (BadInput("evaluate: loss: context", seen=9, allowed="at most 8"), "input"),
        (ZeroDivisionError("ours"), "exception"),
    ],
    ids=repr,
)  # fmt: skip
def test_kinds(error: BaseException, kind: str) -> None:
    failure = failure_of(error, store="/store")
    assert failure.kind == kind
    assert (kind in TRY_AGAIN) == (kind in ("store", "memory"))


def test_unusable_input_is_told_in_its_own_words() -> None:
    error = BadSetting("a.jsonl line 7", seen="x", allowed="a JSON object")
    assert failure_of(error).reason == "a.jsonl line 7 is 'x'; allowed: a JSON object"


@pytest.mark.parametrize(
    ("problems", "done", "code"),
    [
        ([], True, 0),
        ([("failed", True), ("blocked", False)], False, 2),
        ([("failed", True), ("blocked", False)], True, 1),
        ([("failed", True), ("failed", False)], False, 1),
        ([("diverged", False)], False, 1),
    ],
)
def test_unusable_input_is_exit_code_2_if_nothing_was_done(
    problems: list[tuple[str, bool]], done: bool, code: int
) -> None:
    graph = Graph()
    graph.add(Node(key=("prepare", "data")))
    graph.add(Node(key=("decay", "point")))
    graph.done(("prepare", "data"))
    if done:
        graph.done(("decay", "point"))
    told = [
        Problem(name="x", kind="point", status=status, reason="", attempts=1, is_input=is_input)
        for status, is_input in problems
    ]
    assert exit_code(told, graph) == code


def test_a_full_disk_is_told_with_what_to_do() -> None:
    reason = failure_of(os_error(errno.ENOSPC, "/store/attempts/r/step-000000005.ckpt"), store="/store").reason
    assert reason.startswith("cannot write /store/attempts/r/step-000000005.ckpt: the disk is full.")
    assert "make room" in reason


def test_whatever_fails_in_a_store_that_vanished_is_told_as_that(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    task = {"declaration": {}, "location": {}, "folder": str(store.root / "data" / "x")}
    assert run_stage("prepare", task, store.address)["failure"]["kind"] == "exception"
    shutil.rmtree(store.root)
    failure = run_stage("prepare", task, store.address)["failure"]
    assert failure["kind"] == "store"
    assert "is gone" in failure["reason"]
    store.root.mkdir()  # as an unmounted disk leaves it
    assert run_stage("prepare", task, store.address)["failure"]["kind"] == "store"
    assert list(store.root.iterdir()) == []
