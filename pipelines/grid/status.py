"""What the ledger holds of a grid, as plain values and as a table. Starts nothing, writes nothing."""

from __future__ import annotations

from typing import Any

from gridlaw.pipelines.grid.preview import open_state, why
from gridlaw.pipelines.grid.state import GridState, Standing, blocked_by
from gridlaw.pipelines.plan import GridPlan, PointPlan, TrunkPlan
from gridlaw.platform import identity
from gridlaw.platform.ledger.records import RunRecord
from gridlaw.platform.store.lease import look


def status_of(plan: GridPlan) -> dict[str, Any]:
    """State of every point, evaluation and trunk, where it runs or why it failed, and who drives the grid now.

    state of points: done, running, failed, diverged, blocked, interrupted (its driver died), drift, left; evaluations
    and trunks have the same, as far as they apply.
    """
    store, ledger, state = open_state(plan)
    lease = look(store, plan.spec.name)
    alive = lease is not None and not lease.stale
    return {
        "name": plan.spec.name,
        "driver": str(lease.owner) if alive and lease is not None else None,
        "in_ledger": ledger is not None,
        "points": [_point(plan, state, point, alive) for point in plan.points],
        "trunks": [_trunk(state.trunks[trunk.name], trunk, alive) for trunk in plan.trunks if trunk.branch_steps],
    }


def print_status(shown: dict[str, Any]) -> None:
    """The status as tables on standard output."""
    from rich.table import Table

    from gridlaw.pipelines.terminal import results_console

    console = results_console()
    states = [point["state"] for point in shown["points"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    console.print(f"{shown['name']}: {counts}")
    console.print(f"driver: {shown['driver']}" if shown["driver"] else "no driver is running")
    for trunk in shown["trunks"]:
        if trunk["state"] not in ("done", "left"):
            text = f"trunk {trunk['name']}: {trunk['state']}, step {trunk['step']:,} of {trunk['until_step']:,}"
            text += f", on {trunk['where']}" if trunk["where"] else ""
            console.print(text + (f": {trunk['reason']}" if trunk["reason"] else ""), markup=False)
    table = Table()
    for name in ("point", "state", "where", "evaluations", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name == "state")
    for point in shown["points"]:
        evaluations = ", ".join(f"{name} {state}" for name, state in point["evaluations"].items())
        table.add_row(*map(_plain, (point["name"], point["state"], point["where"], evaluations, point["reason"])))
    console.print(table)


def _point(plan: GridPlan, state: GridState, point: PointPlan, alive: bool) -> dict[str, Any]:
    standing = state.points[point.name]
    found, where, reason = _state(standing, alive)
    if found == "drift":
        reason = identity.drift_text(standing.differences)
    elif found == "left" and (cause := _blocked_by(plan, state, plan.trunk_of(point))):
        found, reason = "blocked", cause
    evaluations = {}
    for each in plan.evaluations:
        evaluations[each.name], place, problem = _state(state.evaluations[point.name, each.name], alive)
        where = where or place
        if evaluations[each.name] == "failed":
            reason = "; ".join(filter(None, (reason, f"{each.name} failed: {problem}")))
        elif evaluations[each.name] == "left" and found in ("failed", "diverged", "blocked"):
            evaluations[each.name] = "blocked"
        elif evaluations[each.name] == "left" and (cause := blocked_by(plan, state, plan.trunk_of(point), each)):
            evaluations[each.name] = "blocked"
            reason = reason or f"{each.name} blocked: {cause}"
    return {"name": point.name, "state": found, "where": where, "reason": reason, "evaluations": evaluations}


def _blocked_by(plan: GridPlan, state: GridState, trunk: TrunkPlan) -> str:
    """Why a point of this trunk cannot be trained: its trunk failed, or what it starts from; nothing if it can."""
    standing = state.trunks[trunk.name]
    if standing.run is not None and standing.run.status == "FAILED":
        return f"its trunk {_failed(standing.run)}: {why(standing)}"
    parent = trunk.base.point if trunk.base is not None else None
    if parent is None or state.points[parent.name].status == "done":
        return ""
    above = state.points[parent.name]
    if above.run is not None and above.run.status == "FAILED":
        return f"{parent.name} {_failed(above.run)}: {why(above)}"
    reason = _blocked_by(plan, state, next(each for each in plan.trunks if each.name == parent.trunk_name))
    return f"{parent.name} is blocked: {reason}" if reason else ""


def _trunk(standing: Standing, trunk: TrunkPlan, alive: bool) -> dict[str, Any]:
    found, where, reason = _state(standing, alive)
    tokens = standing.run.metrics.get("tokens", 0.0) if standing.run is not None else 0.0
    return {
        "name": trunk.name,
        "state": found,
        "step": int(tokens) // trunk.batch_tokens,
        "until_step": trunk.branch_steps[-1],
        "where": where,
        "reason": reason,
    }


def _state(standing: Standing, alive: bool) -> tuple[str, str, str]:
    """(state, where it runs, why it ended) of a run. alive: whether a driver holds the lease."""
    run = standing.run
    if standing.status in ("done", "drift"):
        return standing.status, "", ""
    if run is None:
        return "left", "", ""
    if run.running:
        return ("running", _where(run), "") if alive else ("interrupted", "", "its driver died")
    if run.status == "FAILED":
        return _failed(run), "", why(standing)
    return "left", "", why(standing)


def _failed(run: RunRecord) -> str:
    return "diverged" if run.diverged else "failed"


def _where(run: RunRecord) -> str:
    """Where the ledger says that a run is, once it has been under way for some seconds."""
    host, pid = run.tags.get("host", ""), run.tags.get("pid", "")
    return f"{host} (pid {pid})" if host and pid else host


def _plain(text: str) -> Any:
    """Names and reasons are no markup."""
    from rich.text import Text

    return Text(text)
