"""From a grid's finished points to what to run next: candidates, their marginal costs, and a grid file of the batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gridlaw.modules.catalog import full_num_params, resolve_scale
from gridlaw.pipelines.laws.fit import fit_law
from gridlaw.pipelines.laws.suggest import Candidate, Plan, TrunkKey, suggest
from gridlaw.pipelines.plan import GridPlan, TrunkPlan
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.quantities import BadQuantity, Budget, parse_budget

if TYPE_CHECKING:
    import pandas as pd


def suggest_for(plan: GridPlan, done: pd.DataFrame, *, at: str, target: str, flops: float, form: str) -> Plan:
    """Rank what the grid has not run: its own undone points, its budgets at every scale, and one more seed of each.

    done: finished points (``grid_frame``). at: SCALE/BUDGET. Raises ``BadInput`` for targets and places that are none.
    """
    metric = target.removeprefix("log:")
    if metric not in done:
        raise BadInput("--target", seen=target, allowed=f"a metric of finished points: {', '.join(_metrics(done))}")
    done = done.dropna(subset=[metric])
    laws = {}
    for architecture, own in done.groupby("architecture"):
        values = own[metric].map(math.log) if target.startswith("log:") else own[metric]
        trunks = [f"{scale}/{seed}" for scale, seed in zip(own["scale"], own["seed"], strict=True)]
        laws[str(architecture)] = fit_law(own["N"], own["D"], values, form=form, groups=trunks)
    held: dict[TrunkKey, float] = {}
    for trunk in plan.trunks:
        rows = done[
            (done["architecture"] == trunk.architecture) & (done["scale"] == trunk.scale) & (done["seed"] == trunk.seed)
        ]
        steps = [point.trunk_steps for point in trunk.points if point.name in set(rows["name"])]
        if steps:
            held[trunk.architecture, trunk.scale, trunk.seed] = max(steps) * trunk.batch_tokens
    fraction = plan.trunks[0].training["schedule"]["decay_fraction"]
    return suggest(
        laws, _candidates(plan, done, list(laws)), at=_place(at), flops=flops, trunks=held, decay_fraction=fraction
    )


def write_grid(plan: GridPlan, found: Plan, path: Path) -> None:
    """A grid file with the same name and settings whose also-blocks are the batch: finished points stay finished."""
    spec = plan.spec
    blocks = []
    for block in found.grid_blocks():
        architectures = [spec.architecture_for(name) for name in block["architectures"]]
        blocks.append({**block, "architectures": architectures, "scales": [spec.scale_for(s) for s in block["scales"]]})
    whole = spec.given()
    new = _without_known(plan, blocks)
    whole["also"] = [*whole.get("also", []), *new]
    if path.exists():
        raise BadInput("--write", seen=str(path), allowed="a file that does not exist yet", hint="Give another name")
    path.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")


def _without_known(plan: GridPlan, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Blocks without points that the file lists already."""
    known = {point.name for point in plan.points}

    def name_of(entry: Any) -> str:
        return entry if isinstance(entry, str) else str(entry["name"])

    kept = []
    for block in blocks:
        (architecture,), (scale,), (seed,) = block["architectures"], block["scales"], block["seeds"]
        budgets = [
            budget
            for budget in block["budgets"]
            if f"{name_of(architecture)}/{name_of(scale)}/{budget}/seed{seed}" not in known
        ]
        if budgets:
            kept.append({**block, "budgets": budgets})
    return kept


def _candidates(plan: GridPlan, done: pd.DataFrame, architectures: list[str]) -> list[Candidate]:
    finished = set(done["name"])
    budgets: dict[str, Budget] = {point.id.budget.label: point.id.budget for point in plan.points if point.is_trained}
    found = {}
    for trunk in plan.trunks:
        if trunk.architecture not in architectures:
            continue
        seeds = (trunk.seed, max(point.id.seed for point in plan.points) + 1)
        for seed in seeds:
            for budget in budgets.values():
                candidate = _candidate(trunk, budget, seed)
                if candidate.name not in finished:
                    found[candidate.name] = candidate
    if not found:
        raise BadInput("grid", seen=plan.spec.name, allowed="a grid with something left to suggest")
    return list(found.values())


def _candidate(trunk: TrunkPlan, budget: Budget, seed: int) -> Candidate:
    steps = budget.num_steps(trunk.num_params, trunk.batch_tokens)
    return Candidate(
        architecture=trunk.architecture,
        scale=trunk.scale,
        budget=budget.label,
        seed=seed,
        num_params=trunk.num_params,
        num_tokens=steps * trunk.batch_tokens,
        flops_per_token=trunk.flops_per_token,
    )


def _place(at: str) -> tuple[float, float]:
    """``S5/1000N`` → (N, D)."""
    scale, slash, budget = at.partition("/")
    if not slash:
        raise BadInput("--at", seen=at, allowed="SCALE/BUDGET, such as S5/1000N")
    num_params = full_num_params(resolve_scale(scale))
    try:
        return float(num_params), float(parse_budget(budget).num_tokens(num_params))
    except BadQuantity as error:
        raise BadInput("--at", seen=at, allowed=f"SCALE/BUDGET with {error.allowed}", hint=error.hint) from None


def _metrics(done: pd.DataFrame) -> list[str]:
    known = {"name", "architecture", "scale", "budget", "seed", "N", "D"}
    return [column for column in done.columns if column not in known]
