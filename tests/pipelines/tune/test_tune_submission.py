"""What a study's submission refuses, keeps to itself, and does when its ledger is away; without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gridlaw.pipelines.tune.records import open_study_run


def test_the_study_s_run_tells_no_password(house: Any) -> None:
    """Whoever may open the ledger sees its artifacts; the storage's password is nothing for them."""
    plan = house.plan(run={"storage": "postgresql+psycopg://me:topsecret@127.0.0.1:1/studies"})
    ledger = house.ledger(plan)
    open_study_run(ledger, plan, None)
    kept = [path.read_text(errors="replace") for path in Path(house.folder).rglob("*.json")]
    assert any("studies" in text for text in kept), "the file as resolved is an artifact"
    assert not any("topsecret" in text for text in kept)
