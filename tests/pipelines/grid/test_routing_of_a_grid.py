"""Switch models in a grid: routing figures from the ledger, by the command and in the report; an ablation trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from commands import gridlaw
from gridlaw.pipelines.cli.grid import load_plan
from gridlaw.pipelines.grid.curves import full_ratio_curve
from gridlaw.pipelines.grid.state import read_state
from gridlaw.pipelines.place import Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SCALE = {"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}
STAGES = [
    {"name": "pretrain", "architectures": ["full"], "scales": [SCALE], "budgets": ["2N"]},
    {"name": "cpt", "from": "pretrain/full/2N", "architectures": ["swiattn-16"], "budgets": ["2N", "4N"]},
    {"name": "ablation", "from": "pretrain/full/2N", "budgets": ["2N"],
     "architectures": [{"name": "V1-constant-gamma", "of": "swiattn-16", "gamma": "constant", "gamma_base": 3.0}]},
]  # fmt: skip
ROUTING = {"tokens": 2048, "needles": {"depths": 2, "lengths": [100, 128], "samples": 1}}
NAME = "cpt/swiattn-16/a/4N/seed0"


@pytest.fixture(scope="module")
def finished(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    place.write_stages(
        STAGES, {"data": {"context": 128}, "evaluate": [{"loss": {"tokens": 4096}}, {"routing": ROUTING}]}
    )
    done = place.run(timeout=2800)
    assert done.returncode == 0, done.stderr
    place.points = {run.data.tags["gridlaw.name"]: run for run in place.runs("point")}
    return place


def test_the_command_draws_what_the_evaluation_and_the_runs_say(
    finished: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The share over training is what the trunk logged up to the branch, then what the point's own run did."""
    monkeypatch.chdir(finished.folder)
    assert gridlaw("evaluate", f"grid.yaml:{NAME}", "routing", "--json", "--figures", "figures") == 0
    found = json.loads(capsys.readouterr().out)[NAME]["routing"]
    kept = finished.points[NAME].data.metrics
    for metric in ("full_ratio", "full_ratio/1", "full_ratio_answering"):
        assert found["metrics"][metric] == pytest.approx(kept[metric], abs=1e-6)
    assert {each.name for each in (finished.folder / "figures").iterdir()} == {
        f"routing-{figure}-cpt-swiattn-16-a-4N-seed0.{ending}"
        for figure in ("layers", "training", "loss", "position", "needles")
        for ending in ("html", "png")
    }
    plan = load_plan("grid.yaml")
    place = Place.of(plan)
    store = place.store(create=False)
    ledger = place.ledger(plan, store)
    assert ledger is not None
    point = next(each for each in plan.points if each.name == NAME)
    curve = full_ratio_curve(ledger, plan, read_state(plan, ledger, store), point, by_layer=True)
    steps = range(1, point.total_steps + 1)
    assert curve["tokens"] == [float(step * plan.trunk_of(point).batch_tokens) for step in steps]
    trunk = next(run for run in finished.runs("trunk") if run.data.tags["gridlaw.name"] == point.trunk)
    histories = [
        {each.step: each.value for each in finished.client().get_metric_history(run.info.run_id, "train_full_ratio/1")}
        for run in (trunk, finished.points[NAME])
    ]
    assert 0 < point.trunk_steps < point.total_steps
    assert curve["by_layer"][1] == [histories[step > point.trunk_steps][step] for step in steps]
    layers = zip(*curve["by_layer"], strict=True)
    assert curve["mean"] == pytest.approx([sum(shares) / len(shares) for shares in layers])


def test_the_report_has_the_section(finished: Any) -> None:
    (page,) = (finished.folder / "gridlaw-runs" / "reports").glob("*.html")
    written = page.read_text()
    assert "Where attention is full" in written
    assert "swiattn-16/4N" in written and "V1-constant-gamma/2N" in written


def test_an_ablation_is_trained_by_its_own_regulariser(finished: Any) -> None:
    """A constant weight of 3, far above the adaptive one, drives every token into its window within the budget."""
    constant, adaptive = (
        finished.points[name].data.metrics["train_full_ratio"]
        for name in ("ablation/V1-constant-gamma/a/2N/seed0", "cpt/swiattn-16/a/2N/seed0")
    )
    assert constant < 0.05 < adaptive
