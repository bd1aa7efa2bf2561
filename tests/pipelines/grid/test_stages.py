"""Several stages for one model as whole grids: continual pretraining, zero-shot changes, weights from elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

SCALE = {"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}
PRETRAIN = {"name": "pretrain", "architectures": ["full"], "scales": [SCALE], "budgets": ["2N"]}
STAGES = [
    PRETRAIN,
    {"name": "cpt", "from": "pretrain/full/2N", "architectures": ["swiattn-16"], "budgets": ["2N", "4N"]},
    {"name": "zero-shot", "from": "pretrain/full/2N", "architectures": ["full", "swa-only-16"], "budgets": [0]},
    {"name": "long", "from": "pretrain/full/2N", "architectures": ["full"], "budgets": ["2N"],
     "data": {"context": 128}, "rope": {"yarn": {}}},
    {"name": "measured", "from": "pretrain/full/2N", "architectures": ["full"], "budgets": [0],
     "data": {"mixture": [{"source": "generate:needle", "settings": {"documents": 300}}]}, "evaluated_on": "pretrain"},
]  # fmt: skip
LAWS = [{"target": "loss", "form": "d", "fit": {"stages": ["cpt"]}}]
BASE = "pretrain/full/a/2N/seed0"
ROUTERS = "layers.0–1.mixer.router.weight, layers.0–1.mixer.router.bias"


@pytest.fixture(scope="module")
def finished(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    place.write_stages(STAGES, {"laws": LAWS})
    place.before = place.gridlaw("plan", "grid.yaml")
    place.first = place.run()
    assert place.first.returncode == 0, place.first.stderr
    place.points = {run.data.tags["gridlaw.name"]: run for run in place.runs("point")}
    return place


def model_of(place: Any, name: str) -> Path:
    """The folder of a point's exported model."""
    folder: Path = place.folder / "gridlaw-runs" / place.points[name].data.tags["gridlaw.checkpoint"]
    return folder


def weights(place: Any, name: str) -> dict[str, torch.Tensor]:
    return load_file(model_of(place, name) / "model.safetensors")


def test_the_plan_says_where_weights_come_from_and_what_is_new(finished: Any) -> None:
    shown = " ".join(finished.before.stdout.split())
    assert f"cpt/swiattn-16/a/seed0 from pretrain/full/a/2N/seed0: 23 tensors taken over; new: {ROUTERS};" in shown
    assert (
        "zero-shot/full/a/seed0 and 3 more from pretrain/full/a/2N/seed0: 23 tensors taken over; new: nothing" in shown
    )
    assert "new, without training" in shown


def test_a_zero_shot_point_is_its_base_under_another_architecture(finished: Any) -> None:
    base = weights(finished, BASE)
    for name in ("zero-shot/full/a/0N/seed0", "zero-shot/swa-only-16/a/0N/seed0"):
        own = weights(finished, name)
        assert own.keys() == base.keys()
        assert all(torch.equal(own[key], base[key]) for key in base)
        tags = finished.points[name].data.tags
        assert (tags["gridlaw.tokens"], tags["gridlaw.steps"], tags["gridlaw.budget"]) == ("0", "0", "0N")
        assert tags["gridlaw.base"] == BASE


def test_every_point_is_evaluated_as_its_own_architecture(finished: Any) -> None:
    losses = {name: run.data.metrics["loss"] for name, run in finished.points.items()}
    assert losses["zero-shot/full/a/0N/seed0"] == losses[BASE]
    assert losses["measured/full/a/0N/seed0"] == losses[BASE]  # on the base's held-out text, not on its own needles
    assert losses["zero-shot/swa-only-16/a/0N/seed0"] != losses[BASE]
    assert losses["cpt/swiattn-16/a/4N/seed0"] < losses[BASE]


def test_continual_pretraining_starts_from_the_bases_weights_at_step_0(finished: Any) -> None:
    (trunk,) = [run for run in finished.runs("trunk") if run.data.tags["gridlaw.stage"] == "cpt"]
    first = min(finished.client().get_metric_history(trunk.info.run_id, "train_loss"), key=lambda each: each.step)
    assert first.step == 1
    assert first.value < 5.0, "a fresh start would be at log(257) = 5.5 nats"
    assert trunk.data.tags["gridlaw.new_weights"] == ROUTERS
    assert trunk.data.tags["gridlaw.dropped_weights"] == "nothing"
    path = finished.client().download_artifacts(trunk.info.run_id, "transfer.json")
    kept = json.loads(Path(path).read_text())
    assert kept["new"] == [f"layers.{i}.mixer.router.{part}" for i in (0, 1) for part in ("weight", "bias")]
    assert len(kept["transferred"]) == 23
    said = f"cpt/swiattn-16/a/seed0 starts from pretrain/full/a/2N/seed0: 23 tensors taken over; new: {ROUTERS}"
    assert said in " ".join(finished.first.stderr.split())


def test_a_longer_context_with_yarn_is_a_stage(finished: Any) -> None:
    config = json.loads((model_of(finished, "long/full/a/2N/seed0") / "config.json").read_text())
    assert config["context"] == 128
    assert (config["rope_scaling"]["factor"], config["rope_scaling"]["original_context"]) == (2.0, 64)
    (trunk,) = [run for run in finished.runs("trunk") if run.data.tags["gridlaw.stage"] == "long"]
    first = min(finished.client().get_metric_history(trunk.info.run_id, "train_loss"), key=lambda each: each.step)
    assert first.value < 5.0
    assert trunk.data.tags["gridlaw.new_weights"] == "nothing"


def test_laws_leave_budget_0_out_and_the_report_shows_it(finished: Any) -> None:
    runs = finished.runs("law")
    assert {run.data.tags["gridlaw.architecture"] for run in runs} == {"swiattn-16"}
    (path,) = (finished.folder / "gridlaw-runs" / "reports").glob("*.html")
    page = path.read_text()
    assert "swa-only-16" in page and "0N" in page and "zero-shot" in page
    done = finished.gridlaw("fit", "grid.yaml", "--form", "d", "--resamples", "100", "--json")
    assert "zero-shot" not in done.stdout


def test_a_second_run_does_nothing_and_status_shows_all_done(finished: Any) -> None:
    done = finished.run()
    assert done.returncode == 0, done.stderr
    assert "7 points already done" in done.stdout
    status = json.loads(finished.gridlaw("status", "grid.yaml", "--json").stdout)
    assert {point["state"] for point in status["points"]} == {"done"}


def test_a_change_of_the_base_is_drift_of_what_starts_from_it(finished: Any) -> None:
    changed = PRETRAIN | {"training": {"optimizer": {"name": "adamw", "lr": 0.01}}}
    finished.write_stages([changed, *STAGES[1:]], {"laws": LAWS})
    try:
        done = finished.run()
    finally:
        finished.write_stages(STAGES, {"laws": LAWS})
    assert done.returncode == 2
    assert "7 finished points" in done.stderr and "lr" in done.stderr and "parent" in done.stderr


def test_a_base_whose_model_is_gone_is_said_before_anything_starts(finished: Any) -> None:
    folder = finished.folder / "gridlaw-runs" / finished.points[BASE].data.tags["gridlaw.checkpoint"]
    folder.rename(folder.with_name("away"))
    more = {"name": "more", "from": "pretrain/full/2N", "architectures": ["sh-3to1-16"], "budgets": [0]}
    finished.write_stages([*STAGES, more], {"laws": LAWS})
    try:
        done = finished.run()
    finally:
        folder.with_name("away").rename(folder)
        finished.write_stages(STAGES, {"laws": LAWS})
    assert done.returncode == 2
    assert "model of pretrain/full/a/2N/seed0" in done.stderr
    assert len(finished.runs("submission")) == 1


OTHER = {"architectures": ["swa-only-16"], "scales": [SCALE], "budgets": [0]}


@pytest.mark.slow
def test_weights_of_another_experiment_and_of_a_folder(finished: Any) -> None:
    """Both are the base's own weights, so all losses agree; a changed file is another point."""
    shutil.copytree(model_of(finished, BASE), finished.folder / "weights")
    given = [
        {"name": "there", "from": "small:pretrain/full/2N", **OTHER},
        {"name": "folder", "from": "./weights", **OTHER},
    ]
    finished.write_stages(given, {"name": "other"})
    try:
        done = finished.run()
        assert done.returncode == 0, done.stderr
        again = finished.run()
        assert "2 points already done" in again.stdout, again.stderr
        runs = finished.runs("point", name="other")
        assert {run.data.tags["gridlaw.base"] for run in runs} == {"small:pretrain/full/a/2N/seed0", "./weights"}
        expected = finished.points["zero-shot/swa-only-16/a/0N/seed0"].data.metrics["loss"]
        assert {run.data.metrics["loss"] for run in runs} == {expected}
        shutil.copy(model_of(finished, "zero-shot/full/a/0N/seed0") / "model.safetensors", finished.folder / "weights")
        assert "2 points already done" in finished.run().stdout, "equal content is the same base"
        other = weights(finished, "cpt/swiattn-16/a/2N/seed0")
        save_file({name: tensor for name, tensor in other.items() if "router" not in name},
                  finished.folder / "weights" / "model.safetensors")  # fmt: skip
        changed = finished.run()
        assert changed.returncode == 2
        assert "folder/swa-only-16/a/0N/seed0" in changed.stderr and "parent" in changed.stderr
    finally:
        finished.write_stages(STAGES, {"laws": LAWS})


WIDE = SCALE | {"name": "b", "d_model": 24, "ffn_dim": 48}
BAD = [
    ("nowhere:full/2N", SCALE, "stages: x: from is 'nowhere'; allowed: an experiment that is in this grid's ledger"),
    ("small:pretrain/full/3N", SCALE, "a finished point of small: "),
    ("small:pretrain/ful/2N", SCALE, "Did you mean pretrain/full/a/2N/seed0?"),
    ("small:pretrain/full/a/2N", WIDE, "embedding.weight is (257, 16); allowed: shape (257, 24)"),
    ("./nothing", SCALE, "config.json is missing"),
    ("./empty", SCALE, "model.safetensors"),
    ("gs://bucket/weights", SCALE, "a folder with model.safetensors and config.json"),
]


@pytest.mark.parametrize(("source", "scale", "said"), BAD, ids=[source for source, *_ in BAD])
def test_bases_that_cannot_be_are_refused_with_nothing_written(
    finished: Any, source: str, scale: dict[str, Any], said: str
) -> None:
    empty = finished.folder / "empty"
    empty.mkdir(exist_ok=True)
    config = finished.folder / "gridlaw-runs" / finished.points[BASE].data.tags["gridlaw.checkpoint"]
    shutil.copy(config / "config.json", empty)
    finished.write_stages([{"name": "x", "from": source, **OTHER, "scales": [scale]}], {"name": "bad"})
    before = sorted(finished.folder.rglob("*"))
    try:
        done = finished.run()
        assert done.returncode == 2, done.stdout
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    finally:
        finished.write_stages(STAGES, {"laws": LAWS})
    assert sorted(finished.folder.rglob("*")) == before
    assert finished.client().get_experiment_by_name("bad") is None


@pytest.mark.slow
def test_a_stage_whose_base_failed_is_blocked(new_workplace: Callable[[], Any]) -> None:
    place = new_workplace()
    place.install_faulty_mixer()
    raises = {"name": "raises", "pattern": [{"mixer": "faulty", "fault": "raise"}]}
    place.write_stages([
        PRETRAIN | {"architectures": ["full", raises]},
        {"name": "cpt", "from": "pretrain/raises/2N", "architectures": ["full"], "budgets": ["2N"]},
        {"name": "zero-shot", "from": "cpt/full/2N", "architectures": ["swa-only-16"], "budgets": [0]},
    ])  # fmt: skip
    done = place.run()
    assert done.returncode == 1, done.stderr
    status = json.loads(place.gridlaw("status", "grid.yaml", "--json").stdout)
    states = {point["name"].split("/")[0] + "/" + point["name"].split("/")[1]: point for point in status["points"]}
    assert states["pretrain/full"]["state"] == "done"
    for name in ("pretrain/raises", "cpt/full", "zero-shot/swa-only-16"):
        assert states[name]["state"] == "blocked", states[name]
        assert "ZeroDivisionError: injected" in states[name]["reason"]
        assert f"blocked: point {name}" in done.stderr
    unfinished = {"name": "x", "from": "small:pretrain/raises/2N", **OTHER}
    place.write_stages([unfinished], {"name": "other"})
    refused = place.run()
    assert refused.returncode == 2
    assert "a finished point of small: pretrain/full/a/2N/seed0" in refused.stderr
