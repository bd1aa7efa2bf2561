"""A disk that fills, a store that cannot be written, a store that vanishes, each in the middle of a whole grid.

Each time: one clear message, exit code 3, a consistent ledger, and the same command goes on once the store is mended,
to the results of a run that nothing disturbed.
"""

from __future__ import annotations

import json
import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disks import Removable, fill, mounted, resize
from running import finish, losses_of, under_way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def corpus() -> str:
    """Two hundred documents of random words: small, because prepared data lie in the store, too."""
    rng = random.Random(4)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(300)]
    texts = [" ".join(rng.choices(words, k=300)) for _ in range(200)]
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def grid(**run: Any) -> dict[str, Any]:
    return {
        "architectures": ["full"],
        "scales": [{"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}],
        "budgets": ["10N", "20N"],
        "data": {"context": 64, "mixture": [{"source": "corpus.jsonl"}]},
        "laws": [],
        "run": {"checkpoint_every_steps": 5, "max_parallel": 1, **run},
    }


@pytest.fixture(scope="module")
def new_place(new_workplace: Callable[[], Any]) -> Callable[..., Any]:
    def make(**run: Any) -> Any:
        place = new_workplace()
        (place.folder / "corpus.jsonl").write_text(corpus())
        place.write(grid(**run))
        return place

    return make


@pytest.fixture(scope="module")
def undisturbed(new_place: Callable[..., Any]) -> dict[str, float]:
    place = new_place()
    return losses_of(place)


def outside(place: Any) -> str:
    """A ledger that is not in the store: it can be written, and read, when the store cannot."""
    (place.folder / "ledger").mkdir()
    place.tracking_uri = f"sqlite:///{place.folder}/ledger/mlflow.db"
    return str(place.tracking_uri)


def log_of(place: Any) -> str:
    return str((place.folder / "run.log").read_text())


def check_ended(place: Any, driver: Any, *words: str) -> None:
    """The driver has ended with exit code 3 and one message."""
    code = driver.wait(timeout=900)
    log = log_of(place)
    assert code == 3, log[-3000:]
    assert "Traceback" not in log
    for word in words:
        assert word in log


def check_ledger(place: Any) -> None:
    """Nothing is left running, and a point that counts as done has its model."""
    for kind in ("submission", "trunk", "point", "evaluation"):
        for run in place.runs(kind):
            assert run.info.status in ("KILLED", "FINISHED"), run.data.tags
            if kind == "point" and run.info.status == "FINISHED":
                assert (place.store / run.data.tags["gridlaw.checkpoint"] / "model.safetensors").is_file()
    shown = json.loads(place.gridlaw("status", "grid.yaml", "--json").stdout)
    assert {point["state"] for point in shown["points"]} <= {"done", "left"}


def test_a_disk_that_checkpoints_fill(new_place: Callable[..., Any], undisturbed: dict[str, float]) -> None:
    """ray #23688, with the ledger on the full disk, too. More room, and the same command goes on."""
    place = new_place(store="disk/store", keep={"every_tokens": 1024}, checkpoint_every_steps=1)
    place.store = place.folder / "disk" / "store"
    with mounted(place.folder / "disk", "8m") as disk:
        driver = place.start("--plain")
        check_ended(place, driver, "the disk is full", "make room", "gridlaw run grid.yaml")
        checkpoints = list(place.store.glob("attempts/*/*.ckpt"))
        assert len(checkpoints) > 10, "it was full before training"
        assert not list(place.store.rglob("*.tmp-*"))
        check_ledger(place)
        resize(disk, "64m")
        finish(place, undisturbed)


def test_a_disk_that_others_fill_to_the_last_byte(new_place: Callable[..., Any], undisturbed: dict[str, float]) -> None:
    """Not even the ledger, which is on it, can be written: that is told, and made up for by the next run."""
    place = new_place(store="disk/store")
    place.store = place.folder / "disk" / "store"
    with mounted(place.folder / "disk", "24m") as disk:
        driver = under_way(place)
        over = threading.Event()

        def hog() -> None:
            while not over.wait(0.01):
                fill(disk / "filler")

        thread = threading.Thread(target=hog)
        thread.start()
        try:
            check_ended(place, driver, "disk is full")
        finally:
            over.set()
            thread.join()
        refused = place.run()
        assert refused.returncode == 3
        assert "the disk is full" in refused.stderr and "Traceback" not in refused.stderr
        (disk / "filler").unlink()
        finish(place, undisturbed)


def test_a_store_that_cannot_be_written_any_more(new_place: Callable[..., Any], undisturbed: dict[str, float]) -> None:
    place = new_place()
    place.write(grid(tracking_uri=outside(place)))
    # Root may write anywhere; without this capability it is a user like others.
    place.prefix = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    driver = under_way(place)
    folders = [place.store, *(Path(path) for path, _, _ in os.walk(place.store))]
    modes = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in folders}
    for folder in modes:
        folder.chmod(0o555)
    try:
        check_ended(place, driver, "Permission denied", "Make it writable")
        check_ledger(place)
        before = sorted(place.store.rglob("*"))
        refused = place.run()
        assert refused.returncode == 3
        assert "Make it writable, or give another folder as run.store" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert sorted(place.store.rglob("*")) == before
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode)
    finish(place, undisturbed)


@pytest.mark.parametrize("ledger", ["outside", "in the store"])
def test_a_store_that_vanishes(ledger: str, new_place: Callable[..., Any], undisturbed: dict[str, float]) -> None:
    """As an unmounted disk does: its folder is there, and empty. Nothing is begun anew in it."""
    place = new_place()
    if ledger == "outside":
        place.write(grid(tracking_uri=outside(place)))
    disk = Removable(place.store, place.folder / "kept")
    disk.attach()
    try:
        driver = under_way(place)
        disk.detach()
        check_ended(place, driver, "is gone", "Bring it back")
        if ledger == "outside":  # which remembers that there was a store
            refused = place.run()
            assert refused.returncode == 3
            assert "is gone" in refused.stderr and "Traceback" not in refused.stderr
        assert list(place.store.iterdir()) == []
        disk.attach()
        if ledger == "outside":
            check_ledger(place)
        finish(place, undisturbed)
    finally:
        disk.detach()
