"""A whole grid, as a person runs it: train, evaluate, fit, report; again does nothing; a budget more does only that."""

from __future__ import annotations

import csv
import json
import platform
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from other_code import OtherCode, other_interpreter

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def finished(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    done = place.run()
    assert done.returncode == 0, done.stderr
    place.first = done
    return place


def test_every_point_is_finished_with_its_metrics_and_dimensions(finished: Any) -> None:
    runs = {run.data.tags["gridlaw.name"]: run for run in finished.runs("point")}
    assert sorted(runs) == sorted(
        f"{architecture}/{scale}/{budget}/seed0"
        for architecture in ("full", "swa-16")
        for scale in "ab"
        for budget in ("2N", "4N")
    )
    for run in runs.values():
        assert run.info.status == "FINISHED"
        assert 0 < run.data.metrics["loss"] < 6
        assert {"gridlaw.architecture", "gridlaw.scale", "gridlaw.budget", "gridlaw.seed"} <= set(run.data.tags)
        assert (finished.folder / "gridlaw-runs" / run.data.tags["gridlaw.checkpoint"] / "model.safetensors").is_file()


def test_nothing_is_left_running_and_children_hang_under_one_parent(finished: Any) -> None:
    (parent,) = finished.runs("submission")
    kinds = {kind: finished.runs(kind) for kind in ("trunk", "point", "evaluation", "law")}
    assert {kind: len(runs) for kind, runs in kinds.items()} == {"trunk": 4, "point": 8, "evaluation": 8, "law": 2}
    for run in (parent, *(run for runs in kinds.values() for run in runs)):
        assert run.info.status == "FINISHED"
        assert run is parent or run.data.tags["mlflow.parentRunId"] == parent.info.run_id


def test_each_metric_and_step_is_in_mlflow_exactly_once(finished: Any) -> None:
    client = finished.client()
    plan = {point["name"]: point for point in finished.plan()["points"]}
    for run in finished.runs("point"):
        point = plan[run.data.tags["gridlaw.name"]]
        told = {"train_loss", "lr", "grad_norm", "tokens", "tokens_per_second", "data_wait_share", "memory_bytes"}
        assert told | {"seconds_left"} <= set(run.data.metrics)
        steps = [each.step for each in client.get_metric_history(run.info.run_id, "tokens_per_second")]
        assert max(Counter(steps).values()) == 1
        history = client.get_metric_history(run.info.run_id, "lr")
        expected = list(range(point["branches_at_step"] + 1, point["steps"] + 1))
        assert sorted(each.step for each in history) == expected


def test_the_report_stands_alone_and_is_an_artifact(finished: Any) -> None:
    (path,) = (finished.folder / "gridlaw-runs" / "reports").glob("*.html")
    page = path.read_text()
    assert "swa-16" in page and "<script src" not in page and "https://cdn" not in page
    for figure in ("with the fitted law", "log residuals of", "Predicted against measured", "Gap to"):
        assert figure in page
    (parent,) = finished.runs("submission")
    assert [each.path for each in finished.client().list_artifacts(parent.info.run_id) if each.path.endswith(".html")]
    assert "small" in parent.data.tags["mlflow.note.content"]
    assert str(path) in finished.first.stdout


def test_laws_are_fitted_without_the_verified_point_and_keep_their_history(finished: Any) -> None:
    client = finished.client()
    for run in finished.runs("law"):
        law = json.loads(_artifact(client, run.info.run_id, "law.json"))
        assert len(law["row"]["fitted"]) == 3
        (held,) = law["row"]["held_out"]
        assert held["name"].endswith("/b/4N/seed0")
        assert held["predicted"] > 0
        assert len(law["fit"]["draws"]) == law["fit"]["num_resamples"] > 900  # for the report's bands and clouds
        history = json.loads(_artifact(client, run.info.run_id, "history.json"))
        assert len(history["data"]) >= 1


def _artifact(client: Any, run_id: str, name: str) -> str:
    with open(client.download_artifacts(run_id, name), encoding="utf-8") as file:
        return file.read()


def test_a_second_run_does_nothing_and_loads_neither_ray_nor_torch(finished: Any) -> None:
    before = len(finished.runs("submission"))
    done = finished.without_ray("run", "grid.yaml")
    assert "8 points already done" in done.stdout
    assert len(finished.runs("submission")) == before


def test_report_is_made_again_from_the_ledger(finished: Any) -> None:
    (path,) = (finished.folder / "gridlaw-runs" / "reports").glob("*.html")
    path.unlink()
    done = finished.gridlaw("report", "grid.yaml")
    assert done.returncode == 0, done.stderr
    assert path.is_file()


def test_tables_over_architectures_lie_beside_the_report_and_are_artifacts(finished: Any) -> None:
    folder = finished.folder / "gridlaw-runs" / "reports"
    with open(folder / "small.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "loss"]
    assert {(row["architecture"], row["scale"], row["budget"]) for row in rows} == {
        (architecture, scale, budget)
        for architecture in ("full", "swa-16")
        for scale in "ab"
        for budget in ("2N", "4N")
    }
    losses = finished.losses()
    for row in rows:
        value = losses["/".join([row["architecture"], row["scale"], row["budget"], "seed0"])]
        assert float(row["value"]) == value
        assert float(row["low"]) < value < float(row["high"])
        assert int(row["num_samples"]) > 1000
    assert {row["rank"] for row in rows} == {"1", "2"}
    assert "**" in (folder / "small.md").read_text()
    (parent,) = finished.runs("submission")
    kept = {each.path for each in finished.client().list_artifacts(parent.info.run_id)}
    assert {"small.html", "small.md", "small.csv"} <= kept


def test_changed_settings_are_drift_shown_field_by_field_and_touch_nothing(finished: Any) -> None:
    """marin #473 #4204 #5216: nobody knows what is hashed; innocent edits retrain everything."""
    finished.write({"training": {"batch_tokens": 512, "precision": "fp32", "optimizer": {"name": "adamw", "lr": 0.5}}})
    try:
        before = finished.snapshot()
        done = finished.run()
        assert finished.snapshot() == before
        shown = finished.plan()
    finally:
        finished.write()
    assert done.returncode == 2
    assert "lr" in done.stderr and "→ 0.5" in done.stderr and "--rerun" in done.stderr
    assert "warmup_steps 4 → 100" in done.stderr
    assert all(point["status"] == "drift" for point in shown["points"])
    assert len(finished.runs("point")) == 8


def test_the_plan_says_drift_field_by_field(finished: Any) -> None:
    training = yaml.safe_load(finished.file.read_text())["training"]
    finished.write({"training": training | {"optimizer": {"name": "adamw", "lr": 2e-3}}})
    try:
        shown = finished.plan()
        text = finished.gridlaw("plan", "grid.yaml").stdout
    finally:
        finished.write()
    old = finished.runs("trunk")[0].data.params["lr"]
    actions = {point["action"] for point in shown["points"] if "/a/" in point["name"]}
    assert actions == {"drift: lr 0.032 → 2e-3, rest_lr 0.16 → null"}, old
    assert text.count("drift: lr ") == 8


def test_code_of_another_version_is_warned_about_and_never_drift(finished: Any, tmp_path: Path) -> None:
    other = OtherCode(tmp_path)
    other.install_as("9.9")
    other.edit("pipelines/plan.py", "TRAINING_FACTOR = 3\n", "TRAINING_FACTOR = 3  # still\n")
    finished.plugins = other.path
    try:
        planned, done = finished.gridlaw("plan", "grid.yaml"), finished.run()
    finally:
        finished.plugins = None
    expected = re.compile(
        rf"warning: 8 finished points were made by gridlaw \S+( \([0-9a-f]{{10}}(, changed)?\))? on Python [\d.]+; "
        rf"this is gridlaw 9\.9 \({other.commit[:10]}, changed\) on Python [\d.]+\n"
    )
    for each in (planned, done):
        assert each.returncode == 0, each.stderr
        assert expected.search(each.stderr), each.stderr
    assert "8 points already done" in done.stdout
    assert "warning" not in finished.gridlaw("plan", "grid.yaml").stderr


def test_a_field_added_with_a_default_leaves_old_ledgers_valid(finished: Any, tmp_path: Path) -> None:
    """A later version of the code has another setting of training; with its legacy value nothing is trained again."""
    other = OtherCode(tmp_path)
    other.edit(
        "modules/training/settings.py", "    clip: float = 1.0\n", "    clip: float = 1.0\n    z_loss: float = 0.0\n"
    )
    finished.plugins = other.path
    try:
        drifted = finished.plan()
        with open(tmp_path / "platform/identity.py", "a") as file:
            file.write('LEGACY["trunk.training.z_loss"] = 0.0  # type: ignore[index]\n')
        shown, done = finished.plan(), finished.run()
    finally:
        finished.plugins = None
    assert {point["action"] for point in drifted["points"]} == {"drift: z_loss absent → 0"}
    assert {point["action"] for point in shown["points"]} == {"done"}
    assert shown["laws_to_fit"] == []
    assert done.returncode == 0 and "8 points already done" in done.stdout


def test_another_interpreters_embedded_corpus_is_drift_that_names_both_versions(finished: Any, tmp_path: Path) -> None:
    first = finished.runs("point")[0].info.run_id
    finished.client().set_tag(first, "gridlaw.python", "3.10.4")  # as if that one had been trained there
    before = finished.snapshot()
    finished.more_environment = other_interpreter(tmp_path)
    try:
        done, planned = finished.run(), finished.gridlaw("plan", "grid.yaml")
        after = finished.snapshot()
    finally:
        finished.more_environment = {}
        finished.client().set_tag(first, "gridlaw.python", platform.python_version())
    note = (
        "The embedded corpus is Python's own library: these points saw that of Python "
        f"3.10.4, {platform.python_version()}, this is {platform.python_version()}"
    )
    assert done.returncode == 2
    assert "mixture[0].source.sha256" in done.stderr and "--rerun" in done.stderr and note in done.stderr
    assert planned.returncode == 0
    assert note in planned.stderr
    assert planned.stdout.count("drift: mixture[0].source.sha256") == 8
    assert after == before


def test_a_grid_in_the_ledger_is_fitted_and_what_to_run_next_suggested(finished: Any) -> None:
    """The file names another store than the command, which goes before it."""
    (finished.folder / "elsewhere.yaml").write_text(finished.file.read_text() + "run: {store: nowhere}\n")
    place = ("--store", "gridlaw-runs")
    done = finished.gridlaw("fit", "elsewhere.yaml", "--form", "d", "--resamples", "100", "--json", *place)
    assert done.returncode == 0, done.stderr
    assert [law["architecture"] for law in json.loads(done.stdout)["laws"]] == ["full", "swa-16"]
    done = finished.gridlaw(
        "suggest", "elsewhere.yaml", "--at", "n1/40N", "--form", "d", "--flops", "1e12", "--write", "next.yaml", *place
    )
    assert done.returncode == 0, done.stderr
    assert "seed1" in done.stdout
    assert "gridlaw run next.yaml --store gridlaw-runs\n" in done.stdout
    done = finished.gridlaw("plan", "next.yaml", "--json", *place)
    points = {point["name"]: point["status"] for point in json.loads(done.stdout)["points"]}
    assert sum(status == "done" for status in points.values()) == 8
    assert len(points) > 8


def test_a_budget_added_continues_trunks_and_trains_only_its_branches(finished: Any) -> None:
    """Last in this file: it changes the workplace."""
    old = {run.info.run_id: run.data.metrics["loss"] for run in finished.runs("point")}
    trunks = {run.data.tags["gridlaw.name"]: run for run in finished.runs("trunk")}
    finished.write({"budgets": ["2N", "4N", "6N"], "evaluate": [{"loss": {"tokens": 4096}}]})
    planned = [point for point in finished.plan()["points"] if point["status"] != "done"]
    assert [point["name"].split("/")[2] for point in planned] == ["6N"] * 4
    done = finished.run()
    assert done.returncode == 0, done.stderr
    runs = finished.runs("point")
    assert len(runs) == 12
    assert {run.info.run_id: run.data.metrics["loss"] for run in runs if run.info.run_id in old} == old
    for run in finished.runs("trunk"):
        before = trunks[run.data.tags["gridlaw.name"]]
        assert run.info.run_id == before.info.run_id
        steps, executed = (int(run.data.tags[f"gridlaw.{key}"]) for key in ("steps", "executed_steps"))
        assert steps == executed > int(before.data.tags["gridlaw.steps"])
