"""``gridlaw doctor``: is this machine, or this cluster, ready for a grid?"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from gridlaw.pipelines.cli.options import place_options
from gridlaw.pipelines.plan import grids_folder
from gridlaw.platform.spec.sections import RunSection

if TYPE_CHECKING:
    from gridlaw.pipelines.doctor.checks import Check


@click.command()
@click.argument("grid", required=False)
@click.option("--address", default=None, help="http://HOST:8265 of a Ray cluster; else this machine.")
@place_options
@click.option("--shared-store", is_flag=True, help="The store's folder is a mount that every node has.")
@click.option("--python", default="python", show_default=True, help="The cluster's interpreter that has gridlaw.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    grid: str | None,
    address: str | None,
    store: str | None,
    tracking_uri: str | None,
    shared_store: bool,
    python: str,
    as_json: bool,
) -> None:
    """Check versions, kernels, shared memory, store, tracking server and clocks, here or on every node.

    GRID: take store and tracking server from its run: section.
    """
    run = _run_section(grid, store, tracking_uri)
    if address is not None and "://" in address:
        from gridlaw.pipelines.doctor.job import examine_by_job

        checks = examine_by_job(run, address, environment=os.environ, shared_store=shared_store, python=python)
    else:
        from gridlaw.pipelines.doctor.checks import examine

        checks = examine(run, address=address, shared_store=shared_store)
    good = all(check.ok for check in checks)
    if as_json:
        click.echo(json.dumps({"ok": good, "checks": [check.to_dict() for check in checks]}))
    else:
        for check in checks:
            click.echo(_line(check))
    raise SystemExit(0 if good else 1)


def _run_section(grid: str | None, store: str | None, tracking_uri: str | None) -> RunSection:
    from gridlaw.platform.spec.load import load_grid

    if grid is not None:
        return load_grid(grid, shipped_folder=grids_folder()).placed(store=store, tracking_uri=tracking_uri).run
    given: dict[str, Any] = {"store": store, "tracking_uri": tracking_uri}
    return RunSection(**{key: value for key, value in given.items() if value is not None})


def _line(check: Check) -> str:
    where = f" {check.node}:" if check.node else ""
    advice = f" → {check.advice}" if check.advice else ""
    return f"{'ok  ' if check.ok else 'MEND'}  {check.check:<14}{where} {check.found}{advice}"
