"""What the ledger holds of a grid, as plain values and as a table. Starts nothing, writes nothing."""

from __future__ import annotations

from typing import Any

from gridlaw.pipelines.grid.preview import in_a_line, open_state, why
from gridlaw.pipelines.grid.state import GridState, Standing, blocked_by, ended_word, training_blocked_by
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
            console.print(text + (f": {trunk['reason']}" if trunk["reason"] else ""))
    table = Table()
    for name in ("point", "state", "where", "evaluations", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name == "state")
    for point in shown["points"]:
        evaluations = ", ".join(f"{name} {state}" for name, state in point["evaluations"].items())
        table.add_row(point["name"], point["state"], point["where"], evaluations, point["reason"])
    console.print(table)


def _point(plan: GridPlan, state: GridState, point: PointPlan, alive: bool) -> dict[str, Any]:
    standing = state.points[point.name]
    found, where, reason = _state(standing, alive)
    if found == "drift":
        reason = identity.drift_text(standing.differences)
    elif found == "left" and (cause := training_blocked_by(plan, state, plan.trunk_of(point))):
        found, reason = "blocked", in_a_line(cause)
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
        return ended_word(run), "", why(standing)
    return "left", "", why(standing)


def _where(run: RunRecord) -> str:
    """Where the ledger says that a run is, once it has been under way for some seconds."""
    host, pid = run.tags.get("host", ""), run.tags.get("pid", "")
    return f"{host} (pid {pid})" if host and pid else host
