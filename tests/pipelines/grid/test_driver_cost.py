"""What a grid asks of the ledger: counted in calls and imports, the same on any machine. Trials do nothing here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.bench_driver import NoCluster, Nothing, grid
from gridlaw.pipelines.grid import executor, submission
from gridlaw.pipelines.grid.graph import NodeKey
from gridlaw.pipelines.grid.laws import FINAL_RESAMPLES
from gridlaw.pipelines.grid.outcome import Outcome
from gridlaw.pipelines.plan import grids_folder, make_plan
from gridlaw.pipelines.stages.refit import refit
from gridlaw.platform.cluster import Request
from gridlaw.platform.ledger.tracking import Tracking
from gridlaw.platform.spec.load import load_grid

BUDGETS = 2
LAWS = [{"target": "loss", "form": "d"}]
CALLS_A_TRUNK = 4  # open; its first segment; its last: results, status
CALLS_A_POINT = 7  # open, results, status; its evaluation: open, results here and on the point, status


class Counting:
    """MLflow's client, with its calls counted by name."""

    def __init__(self, client: Any, calls: Counter[str]) -> None:
        self._client, self._calls = client, calls

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._client, name)


class SlowFits(Nothing):
    """No law is fitted before all else has ended."""

    given: ClassVar[list[tuple[int, int]]] = []
    """Points and resamples of each refit."""

    def wait(self, timeout_seconds: float) -> list[tuple[NodeKey, Outcome]]:
        others = [each for each in self._ended if each[0][0] != "refit"]
        ended, self._ended = (others, [each for each in self._ended if each not in others]) if others else (
            self._ended, []
        )  # fmt: skip
        return ended

    def submit(self, key: NodeKey, stage: str, task: dict[str, Any], request: Request) -> None:
        if stage == "refit":
            self.given.append((len(task["points"]), task["num_resamples"]))
            self._ended.append((key, Outcome(result=refit(task))))
            return
        super().submit(key, stage, task, request)


def calls_of_a_driver(num_points: int, folder: Path, database: Path, patch: pytest.MonkeyPatch) -> Counter[str]:
    (folder / "runs").mkdir(parents=True)
    shutil.copy(database, folder / "runs" / "mlflow.db")
    file = folder / "grid.yaml"
    file.write_text(json.dumps(grid(num_points, folder, num_budgets=BUDGETS)))
    calls: Counter[str] = Counter()
    client, run = Tracking.client.fget, submission.Driver.run  # type: ignore[attr-defined]

    def counted(driver: submission.Driver) -> str:
        with pytest.MonkeyPatch.context() as counting:
            counting.setattr(Tracking, "client", property(lambda tracking: Counting(client(tracking), calls)))
            return run(driver)

    patch.setattr(executor, "RayExecutor", Nothing)
    patch.setattr(submission, "begin_cluster", NoCluster)
    with pytest.MonkeyPatch.context() as driven:
        driven.setattr(submission.Driver, "run", counted)
        watcher = submission.Watcher(tick=lambda driver: None, say=lambda sentence: None)
        ended = submission.run_grid(make_plan(load_grid(str(file), shipped_folder=grids_folder())), watcher=watcher)
    assert (ended.exit_code, ended.num_done) == (0, num_points)
    return calls


def test_a_point_costs_the_ledger_few_calls_in_a_grid_of_any_size_and_its_status_none_of_mlflow(
    tmp_path: Path, fresh_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = (
        calls_of_a_driver(num_points, tmp_path / str(num_points), fresh_database, monkeypatch) for num_points in (2, 4)
    )
    more = large - small
    del more["set_tag"]  # the description, every few seconds
    assert more.total() == 2 * CALLS_A_POINT + CALLS_A_TRUNK, more
    assert not more.keys() & {"get_run", "search_runs", "list_artifacts", "log_text"}

    source = f"""if True:
        import sys
        from gridlaw.pipelines.cli.main import main
        try:
            main(["status", {str(tmp_path / "4" / "grid.yaml")!r}, "--json"])
        finally:
            print({{"mlflow", "sqlalchemy", "ray", "torch"}} & set(sys.modules), file=sys.stderr)
    """
    told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert [point["state"] for point in json.loads(told.stdout)["points"]] == ["done"] * 4
    assert told.stderr == "set()\n"


def test_points_that_arrive_faster_than_their_law_is_fitted_queue_one_refit_and_the_last_is_of_all(
    tmp_path: Path, fresh_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copy(fresh_database, tmp_path / "runs" / "mlflow.db")
    file = tmp_path / "grid.yaml"
    file.write_text(json.dumps(grid(12, tmp_path, num_budgets=4) | {"laws": LAWS}))
    monkeypatch.setattr(SlowFits, "given", [])
    monkeypatch.setattr(executor, "RayExecutor", SlowFits)
    monkeypatch.setattr(submission, "begin_cluster", NoCluster)
    watcher = submission.Watcher(tick=lambda driver: None, say=lambda sentence: None)
    ended = submission.run_grid(make_plan(load_grid(str(file), shipped_folder=grids_folder())), watcher=watcher)
    assert (ended.exit_code, ended.num_done) == (0, 12)
    assert len(SlowFits.given) <= 3 and SlowFits.given[0][0] < 12, SlowFits.given
    assert SlowFits.given[-1] == (12, FINAL_RESAMPLES), SlowFits.given
