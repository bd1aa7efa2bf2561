"""The commands about Ray Jobs: submit, logs, stop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gridlaw.pipelines.cli.grid import load_plan
from gridlaw.pipelines.cli.options import AtLeastZero, dashboard_option, place_options, storage_option
from gridlaw.pipelines.cli.tune import load_tune_plan
from gridlaw.pipelines.plan import grids_folder
from gridlaw.platform.errors import BadInput

if TYPE_CHECKING:
    from gridlaw.pipelines.submit.submit import Submission


@click.command()
@click.argument("grid")
@dashboard_option(required=True)
@place_options
@storage_option
@click.option("--restarts", default=0, show_default=True, type=click.IntRange(0), help="After a death by signal.")
@click.option("--rerun", is_flag=True, help="As for gridlaw run: train drifted points again.")
@click.option("--shared-store", is_flag=True, help="The store's folder is a mount that every node has.")
@click.option("--autoscaling", is_flag=True, help="The cluster adds nodes for trials that fit none yet; grids only.")
@click.option("--forward", multiple=True, metavar="NAME", help="Send a variable of this environment along.")
@click.option("--ship-limit", default=64.0, show_default=True, type=AtLeastZero(), help="MiB of files to ship.")
@click.option("--python", default="python", show_default=True, help="The cluster's interpreter that has gridlaw.")
@click.option(
    "--wait", "wait_seconds", default=120.0, show_default=True, type=AtLeastZero(),
    help="Seconds to wait for its driver.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def submit(
    grid: str,
    address: str,
    store: str | None,
    tracking_uri: str | None,
    storage: str | None,
    forward: tuple[str, ...],
    ship_limit: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Run GRID, a grid file or a tune file, as a job of the Ray cluster at --address. It goes on without this command.

    Files named by relative paths are shipped; what must be there already is said. MLFLOW_TRACKING_USERNAME, _PASSWORD
    and _TOKEN are sent along, and AWS credentials for an s3 store.
    """
    from gridlaw.pipelines.submit.submit import Options, submit_grid
    from gridlaw.platform.spec.load import find_grid, load_grid

    if load_grid(grid, shipped_folder=grids_folder()).tune is not None:
        study = load_tune_plan(grid, store=store, tracking_uri=tracking_uri, storage=storage)
        spec, warnings = study.spec, study.base.warnings
    else:
        plan = load_plan(grid, store=store, tracking_uri=tracking_uri)
        spec, warnings = plan.spec, plan.warnings
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    submission = submit_grid(
        spec,
        find_grid(grid, shipped_folder=grids_folder()).read_text(encoding="utf-8-sig"),
        address,
        environment=os.environ,
        options=Options(forward=forward, ship_limit_mib=ship_limit, **options),
        say=lambda sentence: click.echo(sentence, err=True),
    )
    _print_submission(submission, spec.name, as_json=as_json)
    raise SystemExit(submission.exit_code or 0)


def _print_submission(submission: Submission, name: str, *, as_json: bool) -> None:
    job = submission.job
    if as_json:
        shown = {"job": job.job_id, "grid": name, "status": job.status, "started": submission.started}
        click.echo(json.dumps(shown | {"exit_code": submission.exit_code, "shipped": sorted(submission.package.files)}))
    else:
        click.echo(job.job_id)
    if submission.output:
        click.echo(submission.output, err=True)
    if submission.exit_code is not None:
        click.echo(f"the job has ended with exit code {submission.exit_code}", err=True)
        if "No module named 'gridlaw'" in submission.output or submission.exit_code == 127:
            click.echo("the cluster's interpreter has no gridlaw: install it on every node, or give --python", err=True)
    elif submission.started:
        click.echo(f"its driver runs. gridlaw status | logs --follow | stop {job.job_id}", err=True)
    else:
        click.echo(f"job {job.status}, not in the ledger yet: see gridlaw logs {job.job_id}", err=True)


@click.command()
@click.argument("job")
@dashboard_option(required=True)
@click.option("--follow", is_flag=True, help="Go on printing until the job ends.")
def logs(job: str, address: str, follow: bool) -> None:
    """Print what JOB has printed: a job id, or a grid's name for its newest job."""
    from gridlaw.platform.jobs import JobServer

    server = JobServer.connect(address)
    found = server.find(job)
    if not follow:
        click.echo(server.logs(found.job_id), nl=False)
        return
    for text in server.follow(found.job_id):
        click.echo(text, nl=False)


@click.command()
@click.argument("name")
@dashboard_option()
@place_options
def stop(name: str, address: str | None, store: str | None, tracking_uri: str | None) -> None:
    """Stop the driver of NAME (a grid, its file, or a job id): trials save, and the same command goes on later.

    With --address the cluster's job; without it a driver on this machine.
    """
    from gridlaw.pipelines.submit.stop import stop_here, stop_job
    from gridlaw.platform.spec.load import load_grid

    if address is not None:
        ended = stop_job(address, _name_of(name))
    else:
        spec = load_grid(name, shipped_folder=grids_folder())
        ended = stop_here(spec.placed(store=store, tracking_uri=tracking_uri))
    click.echo(ended)


def _name_of(name: str) -> str:
    """A grid's name, where its file is given; else what was given."""
    from gridlaw.platform.spec.load import load_grid

    if not Path(name).suffix:
        return name
    try:
        return load_grid(name, shipped_folder=grids_folder()).name
    except BadInput:
        return name
