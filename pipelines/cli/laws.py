"""``gridlaw fit`` and ``gridlaw suggest``, with grids of the ledger as input beside tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gridlaw.pipelines.cli.options import place_options, place_words
from gridlaw.pipelines.laws.command import make_compare_command, make_fit_command
from gridlaw.platform.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

    from gridlaw.pipelines.plan import GridPlan


def grid_frame(plan: GridPlan) -> pd.DataFrame:
    """Done points of a grid in the ledger: architecture, scale, budget, seed, N, D, name and their metrics.

    Points of budget 0 are left out: a law of D has no place for them.
    """
    import pandas as pd

    from gridlaw.pipelines.grid.state import read_state
    from gridlaw.pipelines.place import Place

    place = Place.of(plan)
    store = place.store(create=False)
    state = read_state(plan, place.ledger(plan, store), store)
    rows = []
    for point in plan.points:
        if state.points[point.name].status == "done" and point.is_trained:
            known = {
                "name": point.name,
                "architecture": point.id.architecture,
                "scale": point.id.scale,
                "budget": point.id.budget.label,
                "seed": point.id.seed,
                "N": plan.trunk_of(point).num_params,
                "D": point.tokens,
            }
            rows.append(known | state.metrics(point.name))
    if not rows:
        raise BadInput(
            "grid", seen=plan.spec.name, allowed="a grid with finished points in the ledger", hint="Run it first"
        )
    return pd.DataFrame(rows)


def _load(grid: str, *, store: str | None, tracking_uri: str | None) -> pd.DataFrame:
    from gridlaw.pipelines.cli.grid import load_plan

    return grid_frame(load_plan(grid, store=store, tracking_uri=tracking_uri))


fit = place_options(make_fit_command(_load))
compare = place_options(make_compare_command(_load))


@click.command()
@click.argument("grid")
@click.option("--at", required=True, metavar="SCALE/BUDGET", help="Where the prediction is wanted, such as S5/1000N.")
@click.option("--target", default="loss", show_default=True, help="A metric, or log:METRIC.")
@click.option("--flops", required=True, type=float, help="Training FLOPs to spend, such as 200e18.")
@click.option("--form", default="nd", show_default=True, help="Form of the law.")
@click.option("--write", default=None, type=click.Path(path_type=Path), help="Write the batch as a grid file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@place_options
def suggest(
    grid: str,
    at: str,
    target: str,
    flops: float,
    form: str,
    write: Path | None,
    as_json: bool,
    store: str | None,
    tracking_uri: str | None,
) -> None:
    """Rank what GRID has not run yet by how much it narrows the prediction at a target, per FLOP."""
    from gridlaw.pipelines.cli.grid import load_plan
    from gridlaw.pipelines.grid.suggestions import suggest_for, write_grid

    plan = load_plan(grid, store=store, tracking_uri=tracking_uri)
    found = suggest_for(plan, grid_frame(plan), at=at, target=target, flops=flops, form=form)
    if write is not None:
        write_grid(plan, found, write)
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    _print(found)
    if write is not None:
        click.echo(f"written: {write}; run it with: gridlaw run {write}{place_words()}")


def _print(found: Any) -> None:
    for architecture, (before, after) in found.half_widths.items():
        click.echo(f"{architecture}: interval at the target ±{before:.1%} now, ±{after:.1%} expected after the batch")
    click.echo(f"batch, {found.spent_flops:.3g} of {found.flops:.3g} FLOPs:")
    for suggestion in found.batch:
        click.echo(f"  {suggestion.line}")
    click.echo("each by itself, best per FLOP first:")
    for suggestion in found.ranked[:10]:
        click.echo(f"  {suggestion.line}")
