"""Names of settings, settings laid over a file, looks at a journal, choosing among several objectives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gridlaw.pipelines.plan import make_plan
from gridlaw.pipelines.tune.looks import Looks
from gridlaw.pipelines.tune.plan import make_tune_plan
from gridlaw.pipelines.tune.settings import Settings, with_settings
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import grid_from_mapping

FILE: dict[str, Any] = {
    "name": "small",
    "architectures": ["swiattn-16"],
    "scales": ["n1"],
    "budgets": ["5N"],
    "data": {"context": 64},
    "training": {"batch_tokens": 512, "optimizer": {"lr": 1e-2}},
    "tune": {
        "space": {"lr": {"log": [1e-3, 0.1]}, "gamma_base": {"log": [1e-4, 1]}},
        "objectives": {"loss": "min"},
        "trials": 3,
    },
    "run": {"parallel": 2},
}


def spec(**changes: Any) -> GridSpec:
    return grid_from_mapping(FILE | changes, source="test", base_folder=Path())


def test_one_setting_has_one_name_however_it_is_spelled() -> None:
    known = Settings(spec())
    for name in ("lr", "optimizer.lr", "training.optimizer.lr"):
        setting = known.resolve(name, "tune.space")
        assert (setting.name, known.short(setting)) == ("training.optimizer.lr", "lr")
    assert known.resolve("gamma_base", "x").name == "architecture.gamma_base"
    assert known.short(known.resolve("schedule.name", "x")) == "schedule.name"
    with pytest.raises(BadInput, match=r"optimizer\.name or training\.schedule\.name"):
        known.resolve("name", "x")
    with pytest.raises(BadInput, match="Did you mean decay_fraction"):
        known.resolve("decay_fractoin", "x")


def test_settings_are_laid_over_the_last_point_alone() -> None:
    stages = [
        {"name": "pretrain", "architectures": ["full"], "scales": ["n1"], "budgets": ["5N"]},
        {"name": "cpt", "from": "pretrain/full/5N", "architectures": ["swiattn-16"], "budgets": ["2N"]},
    ]
    whole = {key: value for key, value in FILE.items() if key not in ("architectures", "scales", "budgets")}
    given = grid_from_mapping(whole | {"stages": stages}, source="test", base_folder=Path())
    known = Settings(given)
    values = {known.resolve("lr", "x"): 0.05, known.resolve("gamma_base", "x"): 0.5}
    plain, changed = (make_plan(grid_from_mapping(with_settings(given, each), source="test", base_folder=Path()))
                      for each in ({}, values))  # fmt: skip
    assert plain.points[0].fingerprint == changed.points[0].fingerprint
    trunk = changed.trunks[1]
    assert (trunk.training["optimizer"]["lr"], trunk.model["layers"][0]["gamma_base"]) == (0.05, 0.5)
    assert plain.trunks[1].training["optimizer"]["lr"] == 0.01


def test_a_trial_has_the_identity_that_a_grid_with_its_settings_has() -> None:
    plan = make_tune_plan(spec())
    params = {"lr": 0.05, "gamma_base": 0.5}
    trunk = plan.trial(7, params)
    (point,) = trunk.points
    assert (trunk.name, point.name, point.trunk_steps) == ("trial7", "trial7", 0)
    values = {plan.settings[name]: value for name, value in params.items()}
    mapping = with_settings(plan.spec, values, name="best")
    (same,) = make_plan(grid_from_mapping(mapping, source="best", base_folder=Path())).points
    assert same.fingerprint == point.fingerprint


def test_trials_and_run_are_no_identity_and_all_else_is() -> None:
    def fingerprint(**changes: Any) -> str:
        return make_tune_plan(spec(**changes)).declaration.fingerprint

    own, tune = fingerprint(), FILE["tune"]
    assert fingerprint(tune=tune | {"trials": 9}) == own
    assert fingerprint(run={}) == own
    assert (
        fingerprint(
            tune=tune | {"space": {"training.optimizer.lr": {"log": [1e-3, 0.1]}, "gamma_base": {"log": [1e-4, 1]}}}
        )
        == own
    )
    assert fingerprint(tune=tune | {"sampler": {"seed": 1}}) != own
    assert fingerprint(seeds=[1]) != own
    assert fingerprint(evaluate=[{"loss": {"tokens": 100}}]) != own
    assert fingerprint(evaluate=["loss", "routing"]) == own


def test_looks_average_between_even_steps_and_wait_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    looks = Looks(path, ["train_loss"], 2)
    assert list(looks.new()) == []
    rows = [json.dumps({"s": step, "t": 0, "m": {"train_loss": float(step)}}) for step in range(1, 6)]
    path.write_text("\n".join(rows[:3]) + "\n" + rows[3][:10])
    assert list(looks.new()) == [(2, [1.5])]
    path.write_text("\n".join(rows) + "\n")
    assert list(looks.new()) == [(4, [3.5])]
    assert looks.last_step == 5
    assert list(Looks(path, ["train_loss"], 2).new()) == [(2, [1.5]), (4, [3.5])]
