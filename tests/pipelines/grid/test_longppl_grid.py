"""LongPPL in a grid whose own point finds the key tokens: made once, shared, in laws, blocked if that point fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONGPPL = {
    "evaluator": "full/b/4N", "context": 16, "slide": 8, "alpha": -0.05, "beta": -20, "split": True, "documents": 40,
    "min_key_tokens": 1,
}  # fmt: skip
LOSS = {"loss": {"tokens": 4096}}
LAWS = [
    {"target": "loss", "form": "d", "verify": {"points": ["b/4N"]}},
    {"target": "log:longppl", "form": "d", "verify": {"points": ["b/4N"]}},
]


def grid(*, laws: Any = LAWS, budgets: Any = ("2N", "4N"), name: str = "small", **settings: Any) -> dict[str, Any]:
    longppl = {key: value for key, value in {**LONGPPL, **settings}.items() if value is not None}
    return {"name": name, "evaluate": [LOSS, {"longppl": longppl}], "laws": laws, "budgets": list(budgets)}


@pytest.fixture(scope="module")
def finished(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    place.write(grid())
    place.done = place.run()
    assert place.done.returncode == 0, place.done.stderr
    return place


def folders(place: Any) -> list[Path]:
    return sorted((place.folder / "gridlaw-runs" / "examples").iterdir())


def undone(place: Any) -> dict[str, list[str]]:
    return {point["name"]: point["evaluations_to_do"] for point in place.plan()["points"] if point["evaluations_to_do"]}


def test_every_point_has_its_value_and_key_tokens_were_found_once(finished: Any) -> None:
    points = finished.runs("point")
    assert len(points) == 8
    assert all(run.data.metrics["longppl"] > 1 and run.data.metrics["longppl_key_tokens"] > 100 for run in points)
    assert len({run.data.metrics["longppl_key_tokens"] for run in points}) == 1
    (run,) = finished.runs("data")
    assert run.info.status == "FINISHED"
    (folder,) = folders(finished)
    assert run.data.tags["gridlaw.fingerprint"] == run.data.tags["gridlaw.folder"] == folder.name
    shared = (folder / "key-tokens.jsonl").read_text().splitlines()
    assert len(shared) == 1 + 40
    (copy,) = [each.path for each in finished.client().list_artifacts(run.info.run_id) if each.path.endswith("jsonl")]
    assert Path(finished.client().download_artifacts(run.info.run_id, copy)).read_text().splitlines() == shared
    assert "longppl key tokens by full/b/4N/seed0: 40 examples ready" in finished.done.stderr


def test_the_evaluators_fingerprint_enters_the_evaluations(finished: Any) -> None:
    points = {run.data.tags["gridlaw.name"]: run.data.tags["gridlaw.fingerprint"] for run in finished.runs("point")}
    for run in finished.runs("evaluation"):
        if run.data.tags["gridlaw.evaluation"] == "longppl":
            path = finished.client().download_artifacts(run.info.run_id, "identity.json")
            identity = json.loads(Path(path).read_text())
            assert identity["settings"]["evaluator"] == points["full/b/4N/seed0"]


def test_laws_are_fitted_to_its_logarithm(finished: Any) -> None:
    import math

    laws = [run for run in finished.runs("law") if run.data.tags["gridlaw.target"] == "log:longppl"]
    assert len(laws) == 2
    values = {run.data.tags["gridlaw.name"]: run.data.metrics["longppl"] for run in finished.runs("point")}
    for run in laws:
        law = json.loads(Path(finished.client().download_artifacts(run.info.run_id, "law.json")).read_text())
        assert len(law["row"]["fitted"]) == 3
        for point in law["row"]["fitted"]:
            assert point["measured"] == pytest.approx(math.log(values[point["name"]]))
        assert law["row"]["held_out"][0]["name"].endswith("b/4N/seed0")
    (path,) = (finished.folder / "gridlaw-runs" / "reports").glob("*.html")
    assert "LongPPL" in path.read_text() or "longppl" in path.read_text()


def test_adding_points_budgets_and_evaluations_changes_no_evaluation(finished: Any) -> None:
    finished.write(grid(budgets=["2N", "4N", "6N"]))
    assert {name.split("/")[2] for name in undone(finished)} == {"6N"}
    finished.write(grid() | {"evaluate": [*grid()["evaluate"], {"efficiency": {"length": 8, "repeats": 1}}]})
    assert set(map(tuple, undone(finished).values())) == {("efficiency",)}
    finished.write(grid())
    assert undone(finished) == {}


@pytest.mark.slow
def test_another_evaluator_is_another_evaluation_and_trains_nothing(finished: Any) -> None:
    before = {run.info.run_id for run in finished.runs("point")}
    finished.write(grid(evaluator="full/a/4N", alpha=1000))
    assert len(undone(finished)) == 8
    done = finished.run()
    assert done.returncode == 0, done.stderr
    assert {run.info.run_id for run in finished.runs("point")} == before
    assert len(folders(finished)) == len(finished.runs("data")) == 2


@pytest.mark.slow
def test_no_key_tokens_is_told_and_neither_a_failure_nor_a_number(finished: Any) -> None:
    """The evaluator of the test before finds none, because no gap is as wide as its threshold."""
    for run in finished.runs("point"):
        assert run.data.tags["gridlaw.longppl_outcome"] == "no key tokens"
    runs = [run for run in finished.runs("evaluation") if run.data.tags.get("gridlaw.outcome") == "no key tokens"]
    assert len(runs) == 8
    assert all(run.info.status == "FINISHED" and "longppl" not in run.data.metrics for run in runs)
    (path,) = (finished.folder / "gridlaw-runs" / "reports").glob("*.html")
    assert "no key tokens" in path.read_text()
    assert (
        "too few of its points have a value" in path.read_text()
    )  # the fit to the first evaluator's values is not told
    assert undone(finished) == {}


@pytest.mark.slow
def test_another_experiment_shares_the_key_tokens(finished: Any) -> None:
    """Same points, same evaluator by fingerprint: trained again under the new name, but nothing is looked for again."""
    finished.write(
        grid(name="second", laws=[], documents=None) | {"architectures": ["full"], "evaluate": [{"longppl": LONGPPL}]}
    )
    mark = [path.stat().st_mtime_ns for folder in folders(finished) for path in folder.iterdir()]
    done = finished.run()
    assert done.returncode == 0, done.stderr
    assert finished.runs("data", name="second") == []
    assert [path.stat().st_mtime_ns for folder in folders(finished) for path in folder.iterdir()] == mark
    values = {
        run.data.tags["gridlaw.name"]: run.data.metrics["longppl"] for run in finished.runs("point", name="second")
    }
    assert len(values) == 4


@pytest.fixture(scope="module")
def blocked(new_workplace: Callable[[], Any]) -> Any:
    """The evaluator's training fails; another architecture goes on."""
    place = new_workplace()
    place.install_faulty_mixer()
    broken = {"name": "broken", "pattern": [{"mixer": "faulty", "fault": "raise", "after": 3}]}
    scales = [{"name": "b", "layers": 2, "d_model": 24, "ffn_dim": 48, "heads": 2, "kv_heads": 1}]
    place.write(grid(evaluator="broken/b/4N", laws=[]) | {"architectures": ["full", broken], "scales": scales})
    place.done = place.run()
    return place


@pytest.mark.slow
def test_evaluations_are_blocked_if_the_evaluator_fails_and_the_rest_goes_on(blocked: Any) -> None:
    assert blocked.done.returncode == 1, blocked.done.stderr
    for budget in ("2N", "4N"):
        assert f"blocked: evaluation full/b/{budget}/seed0/longppl" in blocked.done.stderr
    points = blocked.runs("point")
    assert {run.data.tags["gridlaw.name"] for run in points} == {"full/b/2N/seed0", "full/b/4N/seed0"}
    assert all(run.info.status == "FINISHED" and "loss" in run.data.metrics for run in points)
    assert {run.data.tags["gridlaw.evaluation"] for run in blocked.runs("evaluation")} == {"loss"}
    assert blocked.runs("data") == []


@pytest.mark.slow
def test_status_and_report_say_what_is_blocked_and_why(blocked: Any) -> None:
    shown = json.loads(blocked.gridlaw("status", "grid.yaml", "--json").stdout)
    states = {point["name"]: point["evaluations"] for point in shown["points"]}
    assert states["full/b/2N/seed0"] == {"loss": "done", "longppl": "blocked"}
    reason = next(point["reason"] for point in shown["points"] if point["name"] == "full/b/2N/seed0")
    assert "broken/b/seed0 failed: ZeroDivisionError: injected" in reason
    (path,) = (blocked.folder / "gridlaw-runs" / "reports").glob("*.html")
    assert "full/b/2N/seed0/longppl" in path.read_text()


def test_by_hand_with_the_files_settings_and_the_grids_key_tokens(finished: Any) -> None:
    """The same code, the same examples, the same value; nothing is written to the ledger."""
    finished.write(grid())
    before, runs = folders(finished), len(finished.runs("evaluation"))
    done = finished.gridlaw("evaluate", "grid.yaml:swa-16/a/2N/seed0", "longppl", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["swa-16/a/2N/seed0"]["longppl"]
    own = [
        run
        for run in finished.runs("evaluation")
        if run.data.tags["gridlaw.name"] == "swa-16/a/2N/seed0/longppl" and "longppl" in run.data.metrics
    ]
    assert [found["metrics"]["longppl"]] == [run.data.metrics["longppl"] for run in own]
    assert folders(finished) == before
    assert len(finished.runs("evaluation")) == runs


@pytest.mark.slow
def test_a_folder_by_hand_with_a_folder_as_evaluator(finished: Any) -> None:
    runs = {run.data.tags["gridlaw.name"]: run.data.tags["gridlaw.checkpoint"] for run in finished.runs("point")}
    store = finished.folder / "gridlaw-runs"
    (data,) = [path for path in (store / "data").iterdir() if path.is_dir()]
    settings = {**LONGPPL, "evaluator": str(store / runs["full/b/4N/seed0"])}
    options = [part for key, value in settings.items() for part in ("--set", f"longppl.{key}={json.dumps(value)}")]
    model = str(store / runs["full/a/2N/seed0"])
    done = finished.gridlaw("evaluate", model, "longppl", "--data", str(data), *options, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout).values()
    own = {
        run.data.metrics.get("longppl")
        for run in finished.runs("evaluation")
        if run.data.tags["gridlaw.name"] == "full/a/2N/seed0/longppl"
    }
    assert found["longppl"]["metrics"]["longppl"] in own
    refused = finished.gridlaw(
        "evaluate", model, "longppl", "--data", str(data), "--set", "longppl.evaluator=full/b/4N"
    )
    assert refused.returncode == 2
    assert "Points are known within a grid only" in refused.stderr
