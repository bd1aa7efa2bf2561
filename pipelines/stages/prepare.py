"""The stage that tokenises: once per content, shared by all points and experiments of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gridlaw.modules.data.prepare import prepare as prepare_data


def prepare(task: dict[str, Any]) -> dict[str, Any]:
    """task: declaration, location (content → files of this machine), folder (absolute). Returns the counts."""
    folder = Path(task["folder"])
    prepared = prepare_data(task["declaration"], folder, locations=task["location"])
    return {"folder": str(folder), "counts": prepared.counts, "fingerprint": prepared.fingerprint}
