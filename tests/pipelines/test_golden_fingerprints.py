"""Fingerprints of the shipped grids do not change by accident: finished runs of users would count as drifted.

The files they read are stood in for by fixed ones. A change that is meant is written down with
``UPDATE_GOLDEN=1 pytest tests/pipelines/test_golden_fingerprints.py``, and its commit says why runs change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridlaw.modules.data import embedded
from gridlaw.pipelines.plan import GridPlan, grids_folder, make_plan
from gridlaw.platform.spec.load import load_grid, shipped_grids

GOLDEN = Path(__file__).parent / "golden" / "fingerprints.json"
EVALUATIONS = GOLDEN.with_name("evaluations.json")
VOCABULARIES = {"tokenizer.json": 73_448, "tokenizer-32k.json": 32_000}

Fingerprints = dict[str, dict[str, str]]


Plans = dict[str, GridPlan]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plans]:
    """Of every shipped grid, on stand-ins."""
    folder = tmp_path_factory.mktemp("stand-ins")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(embedded, "python_library_sha256", lambda: "0" * 64)
        for file, size in VOCABULARIES.items():
            words = {f"w{index}": index for index in range(size - 1)} | {"</s>": size - 1}
            model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
            (folder / file).write_text(json.dumps({"version": "1.0", "model": model}))
        for name in ("long", "heldout", "govreport"):
            (folder / name).mkdir()
            (folder / name / "a.jsonl").write_text(json.dumps({"text": f"{name} " * 100_000}) + "\n")
        names = shipped_grids(grids_folder())
        yield {name: make_plan(load_grid(name, shipped_folder=grids_folder())) for name in names}


def test_fingerprints_of_every_shipped_grid_are_as_they_were(plans: Plans) -> None:
    assert {"quickstart", "zoo", "paper"} <= set(plans)
    found = {name: {point.name: point.fingerprint for point in plan.points} for name, plan in plans.items()}
    assert found == golden(GOLDEN, found)


def test_fingerprints_of_their_evaluations_are_as_they_were(plans: Plans) -> None:
    """Also of evaluations whose evaluator is one of the grid's points, and of a corpus of their own."""
    found = {name: evaluation_fingerprints(plan) for name, plan in plans.items()}
    assert found == golden(EVALUATIONS, found)
    assert len(found["quickstart"]) == len({*found["quickstart"].values()}) == 27 * 3


def evaluation_fingerprints(plan: GridPlan) -> dict[str, str]:
    return {
        f"{point.name}/{each.name}": plan.evaluation_fingerprint(point, each)
        for point in plan.points
        for each in plan.evaluations
    }


def golden(path: Path, found: Fingerprints) -> Fingerprints:
    """What the file has; where it is asked, ``found`` is written there first."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    kept: Fingerprints = json.loads(path.read_text())
    return kept


def test_the_papers_grid_costs_what_sharing_trunks_promises(plans: Plans) -> None:
    plan = plans["paper"]
    assert len(plan.points) == 172
    assert len(plan.trunks) == 30
    shared = sum(trunk.tokens_shared for trunk in plan.trunks)
    assert shared == pytest.approx(1.937e12, rel=2e-3)
    assert sum(point.tokens for point in plan.points) == pytest.approx(4.063e12, rel=2e-3)
