"""What the driver and the ledger cost a grid whose trials do nothing.

    python tests/benchmarks/bench_driver.py [--points 100 1000 5000] [--tracking-uri http://127.0.0.1:5000]

A real submission (plan, lease, ledger, graph, live table, description in MLflow, report) whose tasks end at once: in
place of Ray stands an executor that answers with empty results, so what is measured is ours. Each point has one
evaluation, ten points share a trunk, and each size has a process of its own. The ledger is an sqlite file of its own
unless a tracking server is given, whose own work is then not this process's. CPU time is told beside wall time, because
it does not depend on who else uses the machine. Aim: under 50 ms a point, ``gridlaw status`` in 2 s at 1,000 points.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gridlaw.modules.training.job import FitResult
from gridlaw.pipelines.grid import executor, submission
from gridlaw.pipelines.grid.graph import NodeKey
from gridlaw.pipelines.grid.outcome import Outcome
from gridlaw.pipelines.grid.state import read_state
from gridlaw.pipelines.grid.watch import Watch
from gridlaw.pipelines.live import LiveTable
from gridlaw.pipelines.plan import grids_folder, make_plan
from gridlaw.platform.cluster import Node, Request
from gridlaw.platform.spec.load import load_grid

BUDGETS = 10


@dataclass
class Nothing:
    """An executor whose tasks have ended before they begin."""

    store: str
    _ended: list[tuple[NodeKey, Outcome]] = field(default_factory=list)

    def submit(self, key: NodeKey, stage: str, task: dict[str, Any], request: Request) -> None:
        self._ended.append((key, Outcome(result=_result(stage, task))))

    def num_running(self) -> int:
        return len(self._ended)

    def wait(self, timeout_seconds: float) -> list[tuple[NodeKey, Outcome]]:
        ended, self._ended = self._ended, []
        return ended

    def kill_all(self) -> None:
        self._ended.clear()


def _result(stage: str, task: dict[str, Any]) -> dict[str, Any]:
    if stage == "prepare":
        return {"counts": {"train": {"windows": 1}, "heldout": {"documents": 1}}}
    if stage == "evaluate":
        return {"metrics": {"loss": 2.0, "perplexity": 7.4}, "details": {}, "num_samples": 1, "seconds": 0.0}
    steps = task["job"]["until_step"]
    return FitResult(
        steps=steps, tokens=steps, executed_steps=steps, executed_now=steps, resumed_from=0, final_loss=2.0,
        checkpoint="nothing", seconds=0.0, tokens_per_second=1.0, micro_batch=1,
    ).to_dict()  # fmt: skip


class NoCluster:
    """Two cores that are there at once."""

    def result(self) -> NoCluster:
        return self

    def nodes(self) -> list[Node]:
        return [Node(node_id="", host="here", resources={"CPU": 2.0, "memory": 2.0**40})]

    def check(self, requests: object) -> None:
        return

    def shutdown(self) -> None:
        return


def grid(num_points: int, folder: Path, *, num_budgets: int = BUDGETS) -> dict[str, Any]:
    return {
        "name": f"nothing-{folder.name}",
        "architectures": ["full"],
        "scales": ["n1"],
        "budgets": [f"{number}N" for number in range(2, 2 + num_budgets)],
        "seeds": list(range(num_points // num_budgets)),
        "data": {"context": 64},
        "training": {"batch_tokens": 512, "precision": "fp32"},
        "evaluate": ["loss"],
        "run": {"store": str(folder / "runs")},
    }


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __call__(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def timed(owner: Any, name: str) -> list[tuple[float, float]]:
    """Times of the calls of a function from now on."""
    times: list[tuple[float, float]] = []
    inner = getattr(owner, name)

    def call(*given: Any, **more: Any) -> Any:
        clock = Clock()
        try:
            return inner(*given, **more)
        finally:
            times.append(clock())

    setattr(owner, name, call)
    return times


def measure(num_points: int, tracking_uri: str | None) -> dict[str, Any]:
    """One size, in this process."""
    executor.RayExecutor = Nothing
    submission.begin_cluster = NoCluster
    with tempfile.TemporaryDirectory(prefix="gridlaw-bench-") as folder:
        clock = Clock()
        file = Path(folder) / "grid.yaml"  # JSON is YAML
        declared = grid(num_points, Path(folder))
        declared["run"] |= {"tracking_uri": tracking_uri} if tracking_uri else {}
        file.write_text(json.dumps(declared))
        plan = make_plan(load_grid(str(file), shipped_folder=grids_folder()))
        planned = clock()
        report = timed(submission, "write_report")
        driver = timed(submission.Driver, "run")
        clock = Clock()
        with Path(os.devnull).open("w") as nowhere, LiveTable("nothing", file=nowhere, live=True) as table:
            watcher = submission.Watcher(tick=Watch(table).tick, say=table.note)
            ended = submission.run_grid(plan, watcher=watcher)
        whole = clock()
        assert ended.num_done == num_points, ended
        place = submission.Place.of(plan)
        store = place.store(create=False)
        ledger = place.ledger(plan, store)
        clock = Clock()
        read_state(plan, ledger, store)
        search = clock()
        command = [sys.executable, "-m", "gridlaw.pipelines.cli.main", "status", str(file), "--json"]
        clock = Clock()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = (clock()[0], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {
        "points": num_points,
        "plan": planned,
        "submission": whole,
        "driver_ms": tuple(1000 * seconds / num_points for seconds in driver[0]),
        "report": report[0],
        "search": search,
        "status": status,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--one", type=int, default=None, help="measure this size here and print JSON")
    parser.add_argument("--tracking-uri", default=None, help="of a tracking server, instead of an sqlite file")
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measure(given.one, given.tracking_uri)))
        return
    print("| points | plan | submission | driver a point | ledger search | report | gridlaw status | memory |")
    print("|---|---|---|---|---|---|---|---|")
    place = ["--tracking-uri", given.tracking_uri] if given.tracking_uri else []
    for number in given.points:
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(number), *place], check=True, stdout=subprocess.PIPE, text=True
        )
        row = json.loads(done.stdout.splitlines()[-1])
        keys = ("plan", "submission", "search", "report", "status")
        plan, whole, *rest = (f"{wall:.2f} s ({cpu:.2f} s CPU)" for wall, cpu in map(row.get, keys))
        wall, cpu = row["driver_ms"]
        cells = [f"{number:,}", plan, whole, f"{wall:.1f} ms ({cpu:.1f} ms CPU)", *rest, f"{row['mib']:.0f} MiB"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
