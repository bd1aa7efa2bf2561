"""What a cluster's job server and the ledger know of a submitted grid or study whose file is not here."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from gridlaw.pipelines.submit.submit import STORE_KEY, TRACKING_KEY
from gridlaw.platform.errors import GridlawError
from gridlaw.platform.jobs import Job, JobServer
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.records import by_name
from gridlaw.platform.ledger.tracking import default_tracking_uri

_PATIENCE_SECONDS = 10.0


def job_status(address: str, name: str, *, tracking_uri: str | None = None) -> dict[str, Any]:
    """The job of that id, or of the grid of that name, and what the ledger counts of the whole grid.

    tracking_uri: instead of the job's own, which is told without its password. ledger: num_planned and counts of points
    or trials by state; or why it cannot be read, as ``unreadable``. ``BadInput`` for a job that is not there.
    """
    job = JobServer.connect(address).find(name)
    started = datetime.fromtimestamp(job.start_seconds, UTC).isoformat(timespec="seconds")
    return {
        "job": job.job_id,
        "grid": job.grid,
        "status": job.status,
        "started": started if job.start_seconds else None,
        "exit_code": job.exit_code,
        "message": job.message,
        "store": job.metadata.get(STORE_KEY, ""),
        "ledger": _ledger(job, tracking_uri),
    }


def print_job_status(shown: dict[str, Any]) -> None:
    """The status on standard output."""
    from gridlaw.pipelines.terminal import results_console

    console = results_console()
    ended = f", exit code {shown['exit_code']}" if shown["exit_code"] is not None else ""
    lines = [f"{shown['grid']}: job {shown['job']} {shown['status']}{ended}, since {shown['started']}"]
    ledger = shown["ledger"]
    if "unreadable" in ledger:
        lines.append(f"its ledger cannot be read here: {ledger['unreadable']}")
    else:
        counts = ", ".join(f"{number} {state}" for state, number in ledger["states"].items()) or "none yet"
        lines.append(f"{ledger['kind']}s in the ledger: {counts}; planned: {ledger['num_planned']}")
    lines.append(f"store {shown['store']}. Point by point: gridlaw status FILE, with the grid's file")
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _ledger(job: Job, tracking_uri: str | None) -> dict[str, Any]:
    store = job.metadata.get(STORE_KEY, "")
    uri = tracking_uri or job.metadata.get(TRACKING_KEY) or ("" if "://" in store else default_tracking_uri(store))
    try:
        ledger = Ledger.open(uri, job.grid, store, create=False, patience_seconds=_PATIENCE_SECONDS)
    except GridlawError as error:
        return {"unreadable": str(error)}
    if ledger is None:
        return {"unreadable": "it is not there yet, or a file of another machine"}
    parents = ledger.find_runs("submission") or ledger.find_runs("study")
    kind, number = ("trial", "num_trials") if parents and parents[0].kind == "study" else ("point", "num_points")
    newest = [runs[0] for runs in by_name(ledger.find_runs(kind)).values()]
    return {
        "kind": kind,
        "num_planned": int(parents[0].tags.get(number, 0)) if parents else 0,
        "states": dict(Counter(run.status.lower() for run in newest)),
    }
