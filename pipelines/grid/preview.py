"""What a run would do, point by point, and what it costs, as plain values and as tables. Starts nothing, writes
nothing. What the ledger holds is ``status``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gridlaw.pipelines.bases import Base
from gridlaw.pipelines.grid.laws import LawBook, Refit
from gridlaw.pipelines.grid.notices import notices
from gridlaw.pipelines.grid.state import (
    GridState,
    Standing,
    interpreter_note,
    law_name,
    read_state,
    refuse_lost_models,
)
from gridlaw.pipelines.place import Place
from gridlaw.pipelines.plan import GridPlan, PointPlan, TrunkPlan, summary_costs
from gridlaw.platform import identity
from gridlaw.platform.errors import BadInput
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.store.base import Store

_CHECKPOINT_BYTES_PER_PARAM = 12
"""fp32 weights and two optimizer moments (AdamW; Muon keeps one, so this is an upper bound)."""
_MODEL_BYTES_PER_PARAM = 4
_KEPT_FOR_RESUME = 2

_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("tokens D", lambda point: f"{point['tokens']:,}"),
    ("FLOPs", lambda point: f"{point['train_flops']:.3g}"),
    ("N", lambda point: f"{point['num_params']:,}"),
    ("steps", lambda point: f"{point['steps']:,}"),
    ("epochs", lambda point: "?" if point["epochs"] is None else f"{point['epochs']:.2f}"),
    ("6ND", lambda point: f"{point['six_nd']:.3g}"),
)
_WIDE, _NARROW_COLUMNS = 110, 2
_REASON_CHARACTERS = 100


def preview(plan: GridPlan) -> dict[str, Any]:
    """A run's points with what would be done to each, and totals: tokens, FLOPs, device-hours, storage, cost."""
    store, ledger, state = open_state(plan)
    points = []
    for point in plan.points:
        trunk = plan.trunk_of(point)
        points.append(
            {
                "name": point.name,
                **_next(plan, state, point),
                "base": trunk.base.label if trunk.base is not None else None,
                "num_params": trunk.num_params,
                "num_params_own": trunk.num_params_own,
                "steps": point.total_steps,
                "branches_at_step": point.trunk_steps,
                "tokens": point.tokens,
                "epochs": point.epochs,
                "train_flops": point.train_flops,
                "six_nd": 6 * trunk.num_params * point.tokens,
            }
        )
    return {
        "name": plan.spec.name,
        "warnings": _warnings(plan, state, store),
        "absent": [{"field": field, "path": path} for field, path in plan.absent],
        "points": points,
        "trunks": [_trunk(state, trunk) for trunk in plan.trunks],
        "laws_to_fit": [law_name(plan.laws[index], architecture) for index, architecture, *_ in _behind(plan, state)],
        "totals": _totals(plan, state, ledger is not None),
        "data": [
            {"folder": each.folder, "sources": [part["source"] for part in each.declaration["mixture"]]}
            for each in plan.data.values()
        ],
    }


def print_preview(shown: dict[str, Any]) -> None:
    """The preview as tables on standard output."""
    from rich.table import Table

    from gridlaw.pipelines.terminal import results_console

    table = Table(title=f"{shown['name']}: {len(shown['points'])} points", title_justify="left")
    table.add_column("point", no_wrap=True, min_width=max(len(point["name"]) for point in shown["points"]))
    table.add_column("would be", overflow="fold")
    console = results_console()
    columns = _COLUMNS if console.width >= _WIDE else _COLUMNS[:_NARROW_COLUMNS]
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for point in shown["points"]:
        table.add_row(point["name"], point["action"], *(text(point) for _, text in columns))
    console.print(table)
    for line in _base_lines(shown["trunks"]):
        console.print(line)
    if shown["absent"]:
        missing = ", ".join(f"{each['path']} ({each['field']})" for each in shown["absent"])
        console.print(f"not there yet, and needed by a run: {missing}")
        console.print("Until then a vocabulary is taken to be the papers', and the ledger is not asked.")
    totals = shown["totals"]
    saved = 1 - totals["tokens"] / totals["tokens_without_sharing"] if totals["tokens_without_sharing"] else 0.0
    console.print(
        f"{totals['points']} points on {totals['trunks']} trunks: {totals['tokens']:,} tokens, "
        f"{totals['flops']:.4g} FLOPs; "
        f"without shared trunks {totals['tokens_without_sharing']:,} tokens ({saved:.0%} saved)"
    )
    console.print(f"left to do: {totals['tokens_left']:,} tokens, {totals['flops_left']:.4g} FLOPs")
    hours = totals["device_hours_left"]
    console.print(
        f"about {hours:.3g} device-hours ({totals['hours_from']})"
        if hours is not None
        else "device-hours: unknown until something was measured, or set run.hardware (peak_tflops, mfu)"
    )
    if totals["cost_left"] is not None:
        console.print(f"about {totals['cost_left']:,.2f} at the given price per device-hour")
    console.print(f"storage for checkpoints and models: about {totals['storage_bytes'] / 2**20:,.1f} MiB")


def _next(plan: GridPlan, state: GridState, point: PointPlan) -> dict[str, Any]:
    """What a run would do with a point: status, step to continue from, and both in words, with the reason.

    A point without a checkpoint of its own goes on from its trunk's.
    """
    standing, trunk = state.points[point.name], state.trunks[point.trunk]
    undone = [each.name for each in plan.evaluations if state.evaluations[point.name, each.name].status != "done"]
    status, step = standing.status, 0
    if status == "done":
        runs = [state.evaluations[point.name, name].run for name in undone]
        action = f"done; evaluate {', '.join(undone)}" if undone else "done"
        reason = next((run.reason for run in runs if run is not None and run.reason), "")
    elif status == "drift":
        action, reason = f"drift: {identity.drift_text(standing.differences)}", ""
    else:
        step = standing.step or trunk.newest(point.trunk_steps)
        status, action = ("continue", f"continue from step {step:,}") if step else ("new", "new")
        action += "" if point.is_trained else ", without training"
        reason = why(standing) or why(trunk)
    return {
        "status": status,
        "step": step,
        "action": f"{action} ({reason})" if reason else action,
        "evaluations_to_do": undone,
    }


def why(standing: Standing) -> str:
    """Why the last attempt ended, in a line; nothing where it succeeded or there was none."""
    return in_a_line(standing.run.reason) if standing.run is not None and standing.status != "drift" else ""


def in_a_line(reason: str) -> str:
    """The first line of a reason, cut to what a table can show."""
    line = reason.splitlines()[0] if reason else ""
    return line if len(line) <= _REASON_CHARACTERS else f"{line[: _REASON_CHARACTERS - 1]}…"


def _warnings(plan: GridPlan, state: GridState, store: Store) -> list[str]:
    found = notices(plan, state)
    note = interpreter_note(plan, state)
    if note:
        found.append(note)
    try:
        refuse_lost_models(plan, state, store)
    except BadInput as error:  # what a run refuses, a plan says
        found.append(str(error))
    return found


def open_state(plan: GridPlan) -> tuple[Store, Ledger | None, GridState]:
    """The store and the ledger of a plan, opened for reading, and where everything stands; no ledger yet: None."""
    place = Place.of(plan)
    store = place.store(create=False)
    ledger = None if plan.absent else place.ledger(plan, store)
    return store, ledger, read_state(plan, ledger, store)


def _behind(plan: GridPlan, state: GridState) -> list[Refit]:
    return LawBook(plan, state).outdated()


def _trunk(state: GridState, trunk: TrunkPlan) -> dict[str, Any]:
    standing = state.trunks[trunk.name]
    return {
        "name": trunk.name,
        "status": standing.status,
        "step": standing.step,
        "until_step": max(trunk.branch_steps, default=0),
        "branch_steps": list(trunk.branch_steps),
        "tokens": max(trunk.branch_steps, default=0) * trunk.batch_tokens,
        "base": None if trunk.base is None else _base(trunk.base),
    }


def _base(base: Base) -> dict[str, Any]:
    transfer = base.transfer
    return {
        "label": base.label,
        "fingerprint": base.fingerprint,
        "words": transfer.words() if transfer is not None else "what is taken over is known when it runs",
        "weights": transfer.to_dict() if transfer is not None else None,
    }


def _base_lines(trunks: Sequence[dict[str, Any]]) -> list[str]:
    """One line for all trunks that take over the same from bases of one kind."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for trunk in trunks:
        if trunk["base"] is not None:
            alike.setdefault(trunk["base"]["words"], []).append(trunk)
    lines = []
    for words, (first, *others) in alike.items():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"{first['name']}{more} from {first['base']['label']}: {words}")
    return lines


def _totals(plan: GridPlan, state: GridState, has_ledger: bool) -> dict[str, Any]:
    totals: dict[str, Any] = dict(summary_costs(plan))
    tokens_left = flops_left = 0.0
    device_flops = device_seconds = 0.0
    storage = 0
    for trunk in plan.trunks:
        standing = state.trunks[trunk.name]
        left = [point for point in trunk.points if state.points[point.name].status != "done"]
        steps = sum(point.total_steps - point.trunk_steps for point in left)
        steps += max(0, max((point.trunk_steps for point in left), default=0) - standing.step)
        tokens_left += steps * trunk.batch_tokens
        flops_left += steps * trunk.batch_tokens * trunk.flops_per_token
        kept = len(trunk.branch_steps) + _KEPT_FOR_RESUME if any(point.is_trained for point in trunk.points) else 0
        storage += trunk.num_params_total * _CHECKPOINT_BYTES_PER_PARAM * kept
        storage += trunk.num_params_total * _MODEL_BYTES_PER_PARAM * len(trunk.points)
        seconds = standing.run.number("seconds") if standing.run is not None else None
        if seconds and standing.run is not None:
            device_seconds += seconds
            device_flops += (standing.run.number("tokens") or 0.0) * trunk.flops_per_token
    hardware = plan.spec.run.hardware
    speed, source = None, ""
    if device_seconds:
        speed, source = device_flops / device_seconds, "from the throughput measured in the ledger"
    elif hardware.peak_tflops and hardware.mfu:
        speed, source = hardware.peak_tflops * 1e12 * hardware.mfu, "from run.hardware"
    hours = flops_left / speed / 3600 if speed else None
    price = hardware.price_per_device_hour
    return totals | {
        "tokens_left": int(tokens_left),
        "flops_left": flops_left,
        "device_hours_left": hours,
        "hours_from": source,
        "cost_left": hours * price if hours is not None and price is not None else None,
        "storage_bytes": storage,
        "points_done": state.num_done(),
        "in_ledger": has_ledger,
    }
