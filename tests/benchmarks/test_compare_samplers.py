"""The comparison of samplers: what it writes for a file of three stages, and its hypervolumes, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.compare_samplers import files, summary
from gridlaw.pipelines.plan import grids_folder, make_plan
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import load_grid

STAGED: dict[str, Any] = {
    "name": "small",
    "stages": [
        {"name": "pretrain", "architectures": ["full"], "scales": ["n1"], "budgets": ["5N"], "seeds": [3]},
        {"name": "adapt", "from": "pretrain/full/5N", "architectures": ["swiattn-16"], "budgets": ["2N"]},
        {"name": "tuned", "from": "adapt/swiattn-16/2N", "architectures": ["swiattn-16"], "budgets": ["1N"]},
    ],
    "data": {"context": 64},
    "training": {"batch_tokens": 512},
    "evaluate": ["loss", "routing"],
    "tune": {
        "space": {"gamma_base": {"log": [1e-4, 1.0]}},
        "objectives": {"loss": "min", "full_ratio": "min"},
        "sampler": {"name": "tpe", "seed": 5, "startup_trials": 8},
        "trials": 24,
    },
    "run": {"parallel": 2, "max_hours": 3},
}


def loaded(path: Path) -> GridSpec:
    return load_grid(str(path), shipped_folder=grids_folder())


def test_all_stages_but_the_last_are_the_studies_common_start(tmp_path: Path) -> None:
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(STAGED))
    whole = make_plan(loaded(tmp_path / "tune.yaml"))
    base, studies = files(str(tmp_path / "tune.yaml"), tmp_path, trials=4, seeds=2)
    trained = make_plan(loaded(tmp_path / base))
    assert [each.fingerprint for each in trained.points] == [each.fingerprint for each in whole.points[:2]]
    assert list(studies) == [("tpe", 0), ("tpe", 1), ("random", 0), ("random", 1)]
    written = {key: loaded(tmp_path / name) for key, name in studies.items()}
    assert len({each.name for each in written.values()}) == 4
    for (sampler, seed), study in written.items():
        assert study.tune is not None
        source = study.source_of("tuned")
        assert source is not None and source.experiment == trained.spec.name == "small-base"
        assert study.given()["stages"][0]["from"] == f"small-base:{trained.points[-1].name}"
        assert study.points() == [whole.points[-1].id]
        chosen = (study.tune.sampler.name, study.tune.sampler.seed, study.tune.trials)
        assert chosen == (sampler, seed, 4)
        assert study.tune.sampler.startup_trials == (8 if sampler == "tpe" else None)
        assert study.tune.space == written["tpe", 0].tune.space  # type: ignore[union-attr]


def test_a_file_without_a_common_start_is_refused(tmp_path: Path) -> None:
    alone = {key: value for key, value in STAGED.items() if key != "stages"}
    alone |= {"architectures": ["swiattn-16"], "scales": ["n1"], "budgets": ["1N"]}
    (tmp_path / "tune.yaml").write_text(yaml.safe_dump(alone))
    with pytest.raises(SystemExit, match="last stage"):
        files(str(tmp_path / "tune.yaml"), tmp_path, trials=None, seeds=1)
    assert [path.name for path in tmp_path.iterdir()] == ["tune.yaml"]


def trial(number: int, state: str, loss: float = 0.0, ratio: float = 0.0, *, feasible: bool = True) -> dict[str, Any]:
    values = {"loss": loss, "full_ratio": ratio} if state == "complete" else {}
    return {"number": number, "state": state, "values": values, "feasible": feasible, "flops": 10.0}


def test_hypervolumes_are_shares_of_the_box_of_all_studies() -> None:
    objectives = {"loss": "min", "full_ratio": "min"}
    first = [trial(0, "complete", 3.0, 0.5), trial(1, "complete", 2.0, 0.25), trial(2, "fail")]
    first.append(trial(3, "complete", 9.0, 0.0, feasible=False))  # else the box would be larger
    second = [trial(0, "fail"), trial(1, "complete", 4.0, 1.0), trial(2, "complete", 3.0, 0.0)]
    shown = {
        ("tpe", 0): {"objectives": objectives, "trials": first, "front": [1]},
        ("random", 0): {"objectives": objectives, "trials": second, "front": [2]},
    }
    found = summary(shown)
    assert found["reference"] == [4.0, 1.0]  # and the best are 2 and 0
    mine, other = found["studies"]["tpe-0"], found["studies"]["random-0"]
    assert mine["hypervolume"] == pytest.approx(1.0 * 0.75)
    assert other["hypervolume"] == pytest.approx(0.5 * 1.0)
    assert (mine["complete"], mine["front size"]) == (2, 1)
    assert (mine["default"], mine["dominate the default"]) == ([3.0, 0.5], 1)
    assert (other["default"], other["dominate the default"]) == (None, 0)
    assert mine["flops"] == 40.0
    assert found["tpe"] == {"mean": pytest.approx(0.75), "sd": None}
