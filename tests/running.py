"""Processes and grids under way in tests: looked at from outside, killed, and what has to hold when they ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def wait_for(condition: Callable[[], Any], what: str, limit_seconds: float = 600) -> Any:
    """What ``condition`` gives, as soon as that is true."""
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {limit_seconds} s for {what}")


def let_go(racers: Sequence[subprocess.Popen[str]]) -> None:
    """Let processes that print ``ready`` and then read a line go on at the same moment."""
    for racer in racers:
        assert racer.stdin is not None and racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()


def progress(store: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(run id, progress) of everything that has told of its progress."""
    for path in (store / "attempts").glob("*/progress.json"):
        try:
            yield path.parent.name, json.loads(path.read_text())
        except (OSError, ValueError):
            continue


def newest_step(store: Path) -> int:
    """The furthest step that any training or evaluation has told of."""
    return max((each["step"] for _, each in progress(store)), default=0)


def at_work_since(place: Any, driver: Any, since: float) -> bool:
    """Whether something has told of its progress after that time, or the driver is over."""
    return driver.poll() is not None or any(each["seconds"] > since for _, each in progress(place.store))


def at_work(place: Any) -> Iterator[tuple[str, str, int]]:
    """(run id, stage, pid) of what trains or is evaluated now, by the workers' own progress files."""
    for run_id, each in progress(place.store):
        fresh = time.time() - each["seconds"] < 1.5 and each["step"] < each["until_step"]
        if fresh and is_task(each["pid"]):
            yield run_id, each["stage"], each["pid"]


def is_task(pid: int) -> bool:
    """Whether a process is a Ray worker with a task: Ray titles it by the task's name."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return False
    return title.startswith("ray::") and "IDLE" not in title


def wait_for_step(store: Path, step: int, driver: Any) -> None:
    """Until training is that far; an assertion if the driver ends before."""
    wait_for(lambda: newest_step(store) > step or driver.poll() is not None, "training to be under way")
    assert driver.poll() is None, "the grid was over too soon"


@contextmanager
def held(driver: Any) -> Iterator[None]:
    """Inside, a driver's workers stand still, so that its grid is not over before a test has looked at it."""
    workers = workers_of(driver.pid)
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in workers:
        os.kill(pid, signal.SIGCONT)


def kill(driver: Any) -> None:
    """kill -9 of the driver; its workers end with it (Ray's own agents may take a minute, and write nothing)."""
    workers = workers_of(driver.pid)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers), "the driver's workers to end")


def workers_of(pid: int) -> list[int]:
    """Process ids of a driver's Ray workers."""
    import psutil

    children = psutil.Process(pid).children(recursive=True)
    names = {child.pid: " ".join(child.cmdline()) for child in children}
    return [pid for pid, name in names.items() if name.startswith("ray::") and "Agent" not in name]


def alive(pid: int) -> bool:
    """Whether there is such a process, zombies left aside."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def under_way(place: Any, step: int = 30, *arguments: str) -> Any:
    """A driver whose grid has been trained to this step, and is not over."""
    driver = place.start("--plain", *arguments)
    wait_for_step(place.store, step, driver)
    return driver


def losses_of(place: Any) -> dict[str, float]:
    """Run a grid to its end, undisturbed."""
    done = place.run("--plain", timeout=1800)
    assert done.returncode == 0, done.stderr
    losses: dict[str, float] = place.losses()
    return losses


def finish(place: Any, undisturbed: dict[str, float]) -> Any:
    """The same command again goes on to the end, to the results of a grid that nothing disturbed."""
    done = place.run("--plain", timeout=1800)
    assert done.returncode == 0, done.stderr
    check_nothing_lost_nothing_twice(place, undisturbed)
    return done


def check_nothing_lost_nothing_twice(place: Any, undisturbed: dict[str, float]) -> None:
    """The same results; no run left running, none twice, and each (metric, step) once."""
    assert place.losses() == undisturbed
    client = place.client()
    runs = [run for kind in ("submission", "trunk", "point", "evaluation", "law") for run in place.runs(kind)]
    assert not [run.data.tags["gridlaw.name"] for run in runs if run.info.status == "RUNNING"]
    for kind in ("trunk", "point", "evaluation"):
        names = [run.data.tags["gridlaw.name"] for run in place.runs(kind)]
        assert max(Counter(names).values()) == 1
    for run in [*place.runs("trunk"), *place.runs("point"), *place.runs("evaluation")]:
        assert run.info.status == "FINISHED"
        for metric in run.data.metrics:
            steps = [each.step for each in client.get_metric_history(run.info.run_id, metric)]
            assert steps and max(Counter(steps).values()) == 1, f"{metric} of {run.data.tags['gridlaw.name']}"


def install_mixer(source: Path, folder: Path, entry_point: str) -> None:
    """What ``pip install`` of a package with a mixer leaves: a module and its entry point, NAME = MODULE:CLASS."""
    info = folder / f"{source.stem}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {source.stem}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gridlaw.mixers]\n{entry_point}\n")
    shutil.copy(source, folder)
