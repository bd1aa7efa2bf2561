"""What status and report read from a ledger: what keeps points from being trained, and needles. Nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridlaw.pipelines.grid.collect import collect
from gridlaw.pipelines.grid.curves import full_ratio_curve
from gridlaw.pipelines.grid.records import DETAILS
from gridlaw.pipelines.grid.state import evaluation_name, read_state, training_blocked_by
from gridlaw.pipelines.plan import GridPlan, make_plan
from gridlaw.pipelines.report.data import HeatMap, ReportData
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.tracking import default_tracking_uri
from gridlaw.platform.spec.load import grid_from_mapping
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.open import open_store

STAGES = [
    {"name": "first", "architectures": ["full"], "scales": ["n1"], "budgets": ["2N", "4N"]},
    {"name": "then", "from": "first/full/2N", "architectures": ["full"], "budgets": ["2N"]},
]


class Held:
    """A plan of two stages, and a ledger to write into what a run would have."""

    def __init__(self, folder: Path, name: str) -> None:
        grid = {"name": name, "data": {"context": 64}, "training": {"batch_tokens": 512}, "stages": STAGES}
        evaluate = {"evaluate": [{"loss": {"tokens": 4096}}]}
        self.plan: GridPlan = make_plan(grid_from_mapping(grid | evaluate, source="test", base_folder=folder))
        self.store: Store = open_store(folder / "store", create=True)
        uri = default_tracking_uri(str(folder / "store"))
        self.ledger = Ledger.open(uri, name, self.store.address, create=True)
        self.points = {point.name: point for point in self.plan.points}
        self.trunks = {trunk.name: trunk for trunk in self.plan.trunks}

    def end(self, kind: str, name: str, reason: str = "", *, fingerprint: str = "") -> None:
        """A run that failed for a reason, or succeeded without one."""
        own = self.trunks[name] if kind == "trunk" else self.points.get(name)
        found = fingerprint or (own.fingerprint if own is not None else "")
        run_id = self.ledger.start_run(kind, name=name, fingerprint=found)
        if reason:
            self.ledger.fail_run(run_id, reason)
        else:
            self.ledger.finish_run(run_id)

    def rows(self) -> dict[str, tuple[str, str]]:
        """(status, reason) of every point in the report."""
        return {row.name: (row.status, row.reason) for row in self.report().points}

    def report(self) -> Any:
        state = read_state(self.plan, self.ledger, self.store)
        return collect(self.plan, self.ledger, state, hardware="", wall_seconds=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests of this file, because making one takes seconds; an experiment each."""
    return tmp_path_factory.mktemp("held")


@pytest.fixture
def held(folder: Path, request: pytest.FixtureRequest) -> Held:
    return Held(folder, request.node.name)


FIRST, LONGER, THEN = "first/full/n1/2N/seed0", "first/full/n1/4N/seed0", "then/full/n1/2N/seed0"


def test_a_failed_trunk_blocks_its_points_and_what_starts_from_them(held: Held) -> None:
    held.end("trunk", "first/full/n1/seed0", "worker lost")
    blocked = ("blocked", "its trunk failed: worker lost")
    assert held.rows() == {
        FIRST: blocked, LONGER: blocked, THEN: ("blocked", f"{FIRST} is blocked: its trunk failed: worker lost"),
    }  # fmt: skip


def test_a_finished_point_blocks_nothing_though_its_trunk_failed_later(held: Held) -> None:
    """The trunk was to be continued for the longer budget."""
    held.end("point", FIRST)
    held.end("trunk", "first/full/n1/seed0", "worker lost")
    assert held.rows() == {
        FIRST: ("done", ""), LONGER: ("blocked", "its trunk failed: worker lost"), THEN: ("not run", ""),
    }  # fmt: skip
    state = read_state(held.plan, held.ledger, held.store)
    assert training_blocked_by(held.plan, state, held.trunks["then/full/n1/seed0"]) == ""


def test_failures_of_other_settings_are_not_this_files(held: Held) -> None:
    held.end("point", FIRST)
    name = evaluation_name(FIRST, "loss")
    held.end("evaluation", name, "of 8,192 tokens: out of memory", fingerprint="that of other settings")
    assert held.report().failures == ()
    own = held.plan.evaluation_fingerprint(held.points[FIRST], held.plan.evaluations[0])
    held.end("evaluation", name, "worker lost", fingerprint=own)
    (failure,) = held.report().failures
    assert (failure.name, failure.reason) == (name, "worker lost")
    held.end("evaluation", name, fingerprint=own)
    assert held.report().failures == (), "a later run succeeded"


NEEDLES = {
    "name": "maps",
    "data": {"context": 64},
    "training": {"batch_tokens": 512},
    "stages": [
        {"name": "first", "architectures": ["full", "swa-16"], "scales": ["n1"], "budgets": ["2N", "4N"]},
        {"name": "then", "from": "first/full/2N", "architectures": ["full"], "budgets": ["2N"]},
    ],
    "evaluate": [{"niah": {"depths": 2, "lengths": [50, 60, 64], "samples": 4}}],
}


def measured(folder: Path) -> ReportData:
    """All points of full are measured; of swa-16 the needles of the larger point failed."""
    plan = make_plan(grid_from_mapping(NEEDLES, source="test", base_folder=folder))
    store = open_store(folder / "store", create=True)
    ledger = Ledger.open(default_tracking_uri(str(folder / "store")), "maps", store.address, create=True)
    (niah,) = plan.evaluations
    for number, point in enumerate(plan.points):
        ledger.finish_run(ledger.start_run("point", name=point.name, fingerprint=point.fingerprint))
        run = ledger.start_run(
            "evaluation",
            name=evaluation_name(point.name, "niah"),
            fingerprint=plan.evaluation_fingerprint(point, niah),
        )
        if point.name == "first/swa-16/n1/4N/seed0":
            ledger.fail_run(run, "worker lost")
            continue
        share = number / 4
        details = {
            "lengths": [50, 60, 64],
            "depths": [0.0, 1.0],
            "rank_grid": [[share, 0.5], [0.25, 0.75], [1.0, 0.0]],
            "generate_grid": [[0.0, 0.0]] * 3,
            "samples_per_cell": 4,
            "chance": 0.125,
        }
        ledger.log_json(run, DETAILS, {"metrics": {}, "details": details, "num_samples": 24})
        ledger.finish_run(run)
    return collect(plan, ledger, read_state(plan, ledger, store), hardware="", wall_seconds=None)


def test_heat_maps_are_of_each_stages_and_architectures_largest_measured_point(folder: Path) -> None:
    report = measured(folder)
    ranked, generated, *others = report.heat_maps
    assert ranked == HeatMap(
        point="first/full/n1/4N/seed0",
        architecture="full",
        measure="ranked first",
        lengths=(50, 60, 64),
        depths=(0.0, 1.0),
        shares=((0.25, 0.5), (0.25, 0.75), (1.0, 0.0)),
        samples_per_cell=4,
        chance=0.125,
    )
    assert (generated.measure, generated.chance, generated.shares[0]) == ("generated", None, (0.0, 0.0))
    assert [(each.point, each.shares[0][0]) for each in others] == [
        ("first/swa-16/n1/2N/seed0", 0.5),
        ("first/swa-16/n1/2N/seed0", 0.0),
        ("then/full/n1/2N/seed0", 1.0),
        ("then/full/n1/2N/seed0", 0.0),
    ]
    assert ReportData.from_dict(report.to_dict()).heat_maps == report.heat_maps


ROUTED = {
    "name": "routed",
    "architectures": ["full", "swiattn-16"],
    "scales": ["n1"],
    "budgets": ["2N", "4N"],
    "data": {"context": 64},
    "training": {"batch_tokens": 512, "schedule": {"warmup_steps": 2}},
    "evaluate": [{"routing": {"tokens": 2048}}],
}


def test_routing_and_its_curve_are_what_the_evaluation_and_the_runs_say(folder: Path) -> None:
    """Over training: what the trunk logged up to the branch, then the point's own run, each step once."""
    plan = make_plan(grid_from_mapping(ROUTED, source="test", base_folder=folder))
    store = open_store(folder / "store", create=True)
    ledger = Ledger.open(default_tracking_uri(str(folder / "store")), "routed", store.address, create=True)
    (routing,) = plan.evaluations
    point = next(each for each in plan.points if each.name == "swiattn-16/n1/4N/seed0")
    trunk = plan.trunk_of(point)
    branch, end = point.trunk_steps, point.total_steps
    assert 4 < branch < end - 2

    def write(kind: str, name: str, fingerprint: str, first: int, last: int, share: float) -> str:
        run = ledger.start_run(kind, name=name, fingerprint=fingerprint)
        for step in (first, last - 1, last):
            shares = {
                "train_full_ratio/0": share + step,
                "train_full_ratio/1": share,
                "train_full_ratio": share + step / 2,
            }
            ledger.log_results(run, metrics=shares, step=step)
        ledger.finish_run(run)
        return run

    write("trunk", trunk.name, trunk.fingerprint, branch - 3, branch + 2, 100.0)  # it went on for longer budgets
    write("point", point.name, point.fingerprint, branch + 1, end, 200.0)
    details = {"by_layer": [0.25, 0.5], "documents": 1, "tokens": 9, "by_position": [], "by_loss": []}
    run = ledger.start_run(
        "evaluation",
        name=evaluation_name(point.name, "routing"),
        fingerprint=plan.evaluation_fingerprint(point, routing),
    )
    ledger.log_json(run, DETAILS, {"metrics": {}, "details": details, "num_samples": 9})
    ledger.finish_run(run)
    state = read_state(plan, ledger, store)
    steps = [branch - 3, branch + 1, end - 1, end]
    curve = full_ratio_curve(ledger, plan, state, point, by_layer=True)
    assert curve["tokens"] == [float(512 * step) for step in steps]
    assert curve["by_layer"] == [
        [100.0 + steps[0], *(200.0 + step for step in steps[1:])],
        [100.0, 200.0, 200.0, 200.0],
    ]
    report = collect(plan, ledger, state, hardware="", wall_seconds=None)
    own = next(row for row in report.points if row.name == point.name).routing
    assert own == details | {"training": {"tokens": curve["tokens"], "mean": curve["mean"]}}
    assert [row.name for row in report.points if row.routing] == [point.name]
    assert ReportData.from_dict(report.to_dict()).points == report.points
