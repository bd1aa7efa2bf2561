"""A study without Ray: a tune file whose trials start from a point of an earlier stage, its store, its ledger."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gridlaw.pipelines.place import Place
from gridlaw.pipelines.plan import PointPlan
from gridlaw.pipelines.tune.plan import TunePlan, make_tune_plan
from gridlaw.pipelines.tune.submission import storage_of
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.spec.load import grid_from_mapping
from gridlaw.platform.store.base import Store
from gridlaw.platform.tuning.study import Study, open_study

STAGED: dict[str, Any] = {
    "name": "small",
    "stages": [
        {"name": "pretrain", "architectures": ["full"], "scales": ["n1"], "budgets": ["5N"]},
        {"name": "cpt", "from": "pretrain/full/5N", "architectures": ["full"], "budgets": ["2N"]},
    ],
    "data": {"context": 64},
    "training": {"batch_tokens": 512, "precision": "fp32"},
    "evaluate": ["loss"],
    "tune": {"space": {"lr": {"log": [1e-3, 0.1]}}, "objectives": {"loss": "min"}, "sampler": "random", "trials": 2},
}


@dataclass
class House:
    """Where a study lives."""

    folder: Path
    database: Path

    def plan(self, *, run: dict[str, Any] | None = None, **tune: Any) -> TunePlan:
        whole = STAGED | {"tune": STAGED["tune"] | tune, "run": {"store": str(self.folder / "runs")} | (run or {})}
        return make_tune_plan(grid_from_mapping(whole, source="test", base_folder=self.folder))

    def store(self, plan: TunePlan) -> Store:
        return Place.of(plan.base).store(create=True)

    def ledger(self, plan: TunePlan) -> Ledger:
        place = Place.of(plan.base)
        if not (self.folder / "runs" / "mlflow.db").exists():
            self.store(plan)
            shutil.copy(self.database, self.folder / "runs" / "mlflow.db")
        return Ledger.open(place.tracking_uri, plan.spec.name, self.store(plan).address, create=True)

    def study(self, plan: TunePlan) -> Study:
        found = open_study(storage_of(plan), plan.declaration, create=True)
        assert found is not None
        return found

    def base(self, plan: TunePlan) -> PointPlan:
        """The point that every trial starts from."""
        (point,) = plan.shared.points
        return point

    def finish_base(self, plan: TunePlan, ledger: Ledger) -> None:
        """As a run leaves it whose store was lost later: trained and evaluated, in the ledger alone."""
        point = self.base(plan)
        run = ledger.start_run("point", name=point.name, fingerprint=point.fingerprint)
        ledger.finish_run(run)
        for each in plan.base.evaluations:
            fingerprint = plan.base.evaluation_fingerprint(point, each)
            run = ledger.start_run("evaluation", name=f"{point.name}/{each.name}", fingerprint=fingerprint)
            ledger.finish_run(run, metrics={"loss": 2.0})


@pytest.fixture
def house(fresh_database: Path, tmp_path: Path) -> House:
    return House(tmp_path, fresh_database)
