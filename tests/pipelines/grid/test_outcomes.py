"""How a task's end is told apart: what may pass is tried again, what cannot is not."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from gridlaw.pipelines.grid.executor import run_stage
from gridlaw.pipelines.grid.outcome import TRY_AGAIN, failure_of
from gridlaw.platform.errors import Surroundings
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
        (ZeroDivisionError("ours"), "exception"),
    ],
    ids=repr,
)  # fmt: skip
def test_kinds(error: BaseException, kind: str) -> None:
    failure = failure_of(error, store="/store")
    assert failure.kind == kind
    assert (kind in TRY_AGAIN) == (kind in ("store", "memory"))


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
