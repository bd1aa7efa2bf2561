"""Experiments and runs straight from the tables of MLflow's sqlite database, without MLflow.

MLflow's import takes several times as long as all else that ``gridlaw status`` does, and its search makes some thirty
objects a run. Queries only: what is written goes through MLflow. ``Tracking.read`` runs them, and asks MLflow where one
raises ``sqlite3.Error``.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from gridlaw.platform.ledger.records import ExperimentRecord, RunRecord, run_record


def find_experiment(connection: sqlite3.Connection, name: str) -> ExperimentRecord | None:
    """The experiment of that name, a deleted one, too."""
    found = connection.execute(
        "SELECT experiment_id, lifecycle_stage FROM experiments WHERE name = ? AND workspace = 'default'", (name,)
    ).fetchone()
    if found is None:
        return None
    number, stage = found
    tags = connection.execute("SELECT key, value FROM experiment_tags WHERE experiment_id = ?", (number,))
    return ExperimentRecord(experiment_id=str(number), deleted=stage == "deleted", tags=dict(tags.fetchall()))


def find_runs(
    connection: sqlite3.Connection, experiment_id: str, tags: Mapping[str, str], status: str
) -> list[RunRecord]:
    """Runs that are not deleted, newest first. tags: with prefix. status: "" for any."""
    where, values = "experiment_id = ? AND lifecycle_stage = 'active'", [experiment_id]
    if status:
        where, values = f"{where} AND status = ?", [*values, status]
    for each in tags.items():
        where += " AND run_uuid IN (SELECT run_uuid FROM tags WHERE key = ? AND value = ?)"
        values += each

    def by_run(columns: str) -> Mapping[str, dict[str, Any]]:
        """columns: a key, a value, and the table that they are in."""
        grouped: dict[str, dict[str, Any]] = defaultdict(dict)
        inside = f"run_uuid IN (SELECT run_uuid FROM runs WHERE {where})"
        for run_id, key, value in connection.execute(f"SELECT run_uuid, {columns} WHERE {inside}", values):
            grouped[run_id][key] = value
        return grouped

    runs = connection.execute(
        f"SELECT run_uuid, status, artifact_uri, start_time, end_time FROM runs WHERE {where} "
        "ORDER BY start_time DESC, run_uuid",
        values,
    ).fetchall()
    texts, params = by_run("key, value FROM tags"), by_run("key, value FROM params")
    metrics = by_run("key, iif(is_nan, 'nan', value) FROM latest_metrics")
    return [
        run_record(
            run_id=run_id,
            status=state,
            artifact_uri=artifacts,
            milliseconds=(start, end),
            tags=texts.get(run_id, {}),
            metrics={key: float(value) for key, value in metrics.get(run_id, {}).items()},
            params=params.get(run_id, {}),
        )
        for run_id, state, artifacts, start, end in runs
    ]
