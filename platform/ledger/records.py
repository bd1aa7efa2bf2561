"""What the ledger knows of a run, and the tags that carry it.

Every dimension of a run is a flat tag of its own (``gridlaw.architecture``, ``gridlaw.scale`` …), because MLflow's page
collapses child runs and shows a hundred at a time: a search must find them without the tree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow.entities import Run

PREFIX = "gridlaw."
TRAIN_LOSS = "train_loss"
"""The training loss in the ledger: ``loss`` there is the evaluation's, and both stand on a point's run."""
KINDS = ("submission", "trunk", "point", "evaluation", "law", "study", "trial", "data")
MAX_TAG_LENGTH = 5000  # MLflow's servers differ: 5,000 in older ones, 8,000 now


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run as the ledger has it.

    tags: without the ``gridlaw.`` prefix, as text. metrics: latest value of each. start_seconds, end_seconds: since the
    epoch. artifact_uri: where its artifacts lie.
    """

    run_id: str
    kind: str
    name: str
    fingerprint: str
    status: str
    parent_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 0.0
    end_seconds: float | None = None
    note: str = ""
    artifact_uri: str = ""

    @property
    def superseded(self) -> bool:
        """Set aside by ``--rerun``: kept for reading, counted nowhere."""
        return "superseded" in self.tags

    @property
    def diverged(self) -> bool:
        """Training met a non-finite loss."""
        return "diverged" in self.tags

    @property
    def finished(self) -> bool:
        """Done, and to be counted."""
        return self.status == "FINISHED" and not self.superseded

    @property
    def running(self) -> bool:
        """Marked as running; without a living driver that is stale."""
        return self.status in {"RUNNING", "SCHEDULED"}

    @property
    def reason(self) -> str:
        """Why the run failed or was stopped."""
        return self.tags.get("reason", "")

    def number(self, tag: str) -> float | None:
        """A tag as a number; None if it is absent or no number."""
        try:
            return float(self.tags[tag])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, kw_only=True)
class ExperimentRecord:
    """One experiment as the ledger has it. tags: with all prefixes."""

    experiment_id: str
    deleted: bool
    tags: Mapping[str, str]


def from_mlflow(run: Run) -> RunRecord:
    """MLflow's run as a record. A run that is not ours gets kind ""."""
    return run_record(
        run_id=run.info.run_id,
        status=run.info.status,
        artifact_uri=run.info.artifact_uri,
        milliseconds=(run.info.start_time, run.info.end_time),
        tags=run.data.tags,
        metrics=dict(run.data.metrics),
        params=dict(run.data.params),
    )


def run_record(
    *,
    run_id: str,
    status: str,
    artifact_uri: str,
    milliseconds: tuple[int, int | None],
    tags: Mapping[str, str],
    metrics: Mapping[str, float],
    params: Mapping[str, str],
) -> RunRecord:
    """A record of what MLflow has. milliseconds: of start and end. tags: with all prefixes."""
    own = {key.removeprefix(PREFIX): value for key, value in tags.items() if key.startswith(PREFIX)}
    start, end = milliseconds
    return RunRecord(
        run_id=run_id,
        kind=own.get("kind", ""),
        name=own.get("name", ""),
        fingerprint=own.get("fingerprint", ""),
        status=status,
        parent_id=tags.get("mlflow.parentRunId", ""),
        tags=own,
        metrics=metrics,
        params=params,
        start_seconds=start / 1000,
        end_seconds=end / 1000 if end else None,
        note=tags.get("mlflow.note.content", ""),
        artifact_uri=artifact_uri,
    )


def newest_first(records: Iterable[RunRecord]) -> list[RunRecord]:
    """By start, newest first; run id breaks ties so that the order is stable."""
    return sorted(records, key=lambda record: (record.start_seconds, record.run_id), reverse=True)


def by_name(records: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Records of each name, newest first, superseded ones left out."""
    grouped: dict[str, list[RunRecord]] = {}
    for record in newest_first(records):
        if not record.superseded:
            grouped.setdefault(record.name, []).append(record)
    return grouped


def tag_text(value: Any) -> str | None:
    """A tag's text: numbers in full precision, booleans as true and false, lists and mappings as JSON; None for
    None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple, dict)):
        value = json.dumps(value, sort_keys=True)
    text = value if isinstance(value, str) else repr(value) if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_TAG_LENGTH else text[: MAX_TAG_LENGTH - 1] + "…"


def prefixed(tags: Mapping[str, Any]) -> dict[str, str]:
    """Our tags as MLflow gets them; those that are None are left out, ``mlflow.`` ones keep their name."""
    texts = {key if key.startswith("mlflow.") else PREFIX + key: tag_text(value) for key, value in tags.items()}
    return {key: text for key, text in texts.items() if text is not None}
