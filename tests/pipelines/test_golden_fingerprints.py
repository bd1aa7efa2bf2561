"""Fingerprints of the shipped grids do not change by accident: finished runs of users would count as drifted.

The files they read are stood in for by fixed ones. A change that is meant is written down with
``UPDATE_GOLDEN=1 pytest tests/pipelines/test_golden_fingerprints.py``, and its commit says why runs change.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gridlaw.modules.data import embedded
from gridlaw.pipelines.plan import GridPlan, grids_folder, make_plan
from gridlaw.platform.spec.load import load_grid, shipped_grids

GOLDEN = Path(__file__).parent / "golden" / "fingerprints.json"
VOCABULARY = 73_448


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(embedded, "python_library_sha256", lambda: "0" * 64)
    words = {f"w{index}": index for index in range(VOCABULARY - 1)} | {"</s>": VOCABULARY - 1}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    for folder in ("long", "heldout", "govreport"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(json.dumps({"text": f"{folder} " * 100_000}) + "\n")


def planned(name: str) -> GridPlan:
    return make_plan(load_grid(name, shipped_folder=grids_folder()))


@pytest.mark.usefixtures("stand_ins")
def test_fingerprints_of_every_shipped_grid_are_as_they_were() -> None:
    names = shipped_grids(grids_folder())
    assert {"quickstart", "zoo", "paper"} <= set(names)
    found = {name: {point.name: point.fingerprint for point in planned(name).points} for name in names}
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    expected = json.loads(GOLDEN.read_text())
    assert found == expected


@pytest.mark.usefixtures("stand_ins")
def test_the_papers_grid_costs_what_sharing_trunks_promises() -> None:
    plan = planned("paper")
    assert len(plan.points) == 172
    assert len(plan.trunks) == 30
    shared = sum(trunk.tokens_shared for trunk in plan.trunks)
    assert shared == pytest.approx(1.937e12, rel=2e-3)
    assert sum(point.tokens for point in plan.points) == pytest.approx(4.063e12, rel=2e-3)
