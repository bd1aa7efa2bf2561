"""The commands about grids: run, plan, status, report."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import click

from gridlaw.pipelines.cli.options import dashboard_option, place_options, place_words
from gridlaw.pipelines.plan import GridPlan, grids_folder, make_plan, make_plan_without_files
from gridlaw.platform.errors import BadInput


def load_plan(
    grid: str, *, store: str | None = None, tracking_uri: str | None = None, without_files: bool = False
) -> GridPlan:
    """The plan of a file, or of a shipped grid by its name.

    store, tracking_uri: instead of the file's, never identity. without_files: go on where files that it names are
    missing (``GridPlan.absent``); else one message tells all of them.
    """
    from gridlaw.platform.spec.load import load_grid

    spec = load_grid(grid, shipped_folder=grids_folder())
    if spec.tune is not None:
        raise BadInput(
            "grid", seen=grid, allowed="a grid file without tune:", hint=f"It is a tune file: gridlaw tune run {grid}"
        )
    plan = make_plan_without_files(spec.placed(store=store, tracking_uri=tracking_uri))
    if len(plan.absent) == 1 and not without_files:
        return make_plan(plan.spec)  # refuses it in its own words
    if plan.absent and not without_files:
        raise BadInput(
            f"files of {plan.spec.name}",
            allowed=f"files that exist below {plan.spec.base_folder}; missing there: {absent_text(plan)}",
            hint=f"Put them there. A plan is shown without them: gridlaw plan {grid}",
        )
    return plan


def absent_text(plan: GridPlan) -> str:
    """Missing files and what names them."""
    return ", ".join(f"{path} ({field})" for field, path in plan.absent)


@click.command()
@click.argument("grid")
@click.option(
    "--rerun", is_flag=True, help="Train drifted points again; old runs are tagged superseded, none is deleted."
)
@click.option("--plain", is_flag=True, help="Plain lines instead of the live table.")
@click.option("--address", default=None, help="HOST:PORT of a Ray cluster, auto inside a Ray Job; else one of its own.")
@click.option("--shared-store", is_flag=True, help="With --address: the store's folder is a mount of every node.")
@click.option("--autoscaling", is_flag=True, help="With --address: the cluster adds nodes for what fits none yet.")
@place_options
def run(
    grid: str,
    rerun: bool,
    plain: bool,
    address: str | None,
    shared_store: bool,
    autoscaling: bool,
    store: str | None,
    tracking_uri: str | None,
) -> None:
    """Run GRID, a YAML file or the name of a shipped grid. Does only what is missing."""
    from gridlaw.pipelines.grid.submission import Watcher, run_grid

    plan = load_plan(grid, store=store, tracking_uri=tracking_uri)
    for warning in plan.warnings:
        click.echo(f"warning: {warning}", err=True)
    with Screen(plan.spec.name, plain=plain) as screen:
        watcher = Watcher(tick=screen.tick, say=screen.say)
        ended = run_grid(
            plan, rerun=rerun, watcher=watcher, address=address, shared_store=shared_store, autoscaling=autoscaling
        )
    _print_end(f"{grid}{place_words()}", ended)
    raise SystemExit(ended.exit_code)


class Screen:
    """The live table, made when work starts: a run with nothing to do shows none."""

    def __init__(self, title: str, *, plain: bool) -> None:
        self._title, self._plain = title, plain
        self._table: Any = None
        self._watch: Any = None

    def __enter__(self) -> Screen:
        return self

    def tick(self, driver: Any) -> None:
        if self._table is None:
            from gridlaw.pipelines.grid.watch import Watch
            from gridlaw.pipelines.live import LiveTable

            self._table = LiveTable(self._title, live=False if self._plain else None)
            self._table.__enter__()
            self._watch = Watch(self._table)
        self._watch.tick(driver)

    def say(self, sentence: str) -> None:
        if self._table is not None:
            self._table.note(sentence)
        else:
            click.echo(sentence, err=True)

    def __exit__(self, *error: Any) -> None:
        if self._table is not None:
            self._table.__exit__(*error)


def tell_stopped(ended: Any, done: str, again: str) -> None:
    """Why a submission stopped, what was done by then, and the command that goes on (a job's folder goes with it)."""
    from gridlaw.platform.jobs import submission_id

    signals = {130: "Ctrl-C", 143: signal.Signals.SIGTERM.name}
    why = signals.get(ended.exit_code, ended.stopped)
    way = "submit it again" if submission_id() else f"gridlaw {again}"
    click.echo(f"{why}: stopped with {done}; what ran was saved. To go on: {way}", err=True)


def _print_end(grid: str, ended: Any) -> None:
    """grid: as the command line names it and its place."""
    if ended.already_done:
        click.echo(f"{ended.num_points} points already done")
        click.echo(f"report: {ended.report}")
        return
    if ended.stopped:
        tell_stopped(ended, f"{ended.num_done} of {ended.num_points} points done", f"run {grid}")
        return
    from gridlaw.pipelines.report.terminal import laws_table, points_table
    from gridlaw.pipelines.terminal import results_console

    if ended.data.laws or ended.num_done:
        results_console().print(laws_table(ended.data) if ended.data.laws else points_table(ended.data))
    for problem in ended.problems:
        click.echo(f"{problem.status}: {problem.kind} {problem.name}: {problem.reason}", err=True)
    click.echo(f"{ended.num_done} of {ended.num_points} points done")
    click.echo(f"report: {ended.report}")
    click.echo(f"MLflow: gridlaw ui {grid}")


@click.command()
@click.argument("grid")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@place_options
def plan(grid: str, as_json: bool, store: str | None, tracking_uri: str | None) -> None:
    """Show what running GRID would do, point by point, and what it costs. Starts nothing."""
    from gridlaw.pipelines.grid.preview import preview, print_preview

    planned = load_plan(grid, store=store, tracking_uri=tracking_uri, without_files=True)
    shown = preview(planned)
    if as_json:
        click.echo(json.dumps(shown))
        return
    for warning in (*planned.warnings, *shown["warnings"]):
        click.echo(f"warning: {warning}", err=True)
    print_preview(shown)


@click.command()
@click.argument("grid")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@dashboard_option()
@place_options
def status(grid: str, as_json: bool, address: str | None, store: str | None, tracking_uri: str | None) -> None:
    """Show what the ledger holds of GRID: done, running and where, failed and why, left.

    With --address a job id or a grid's name will do: its newest job there, and what the ledger counts.
    """
    from gridlaw.pipelines.grid.status import print_status, status_of
    from gridlaw.pipelines.submit.status import job_status, print_job_status

    shown: dict[str, Any]
    if address is not None and not Path(grid).is_file():
        shown, show = job_status(address, grid, tracking_uri=tracking_uri), print_job_status
    else:
        shown, show = status_of(load_plan(grid, store=store, tracking_uri=tracking_uri)), print_status
    if as_json:
        click.echo(json.dumps(shown))
    else:
        show(shown)


@click.command()
@click.argument("grid")
@place_options
def report(grid: str, store: str | None, tracking_uri: str | None) -> None:
    """Make the report page of GRID again from the ledger, and its tables as Markdown and CSV."""
    from gridlaw.pipelines.grid.submission import table_names, write_report
    from gridlaw.pipelines.place import Place

    planned = load_plan(grid, store=store, tracking_uri=tracking_uri)
    place = Place.of(planned)
    opened = place.store(create=False)
    ledger = place.ledger(planned, opened)
    if ledger is None:
        raise BadInput(
            "grid",
            seen=grid,
            allowed="a grid with an experiment in the ledger",
            hint=f"Run it first: gridlaw run {grid}",
        )
    page, _ = write_report(planned, ledger, opened)
    click.echo(f"report: {opened.url(page)}")
    click.echo(f"tables: {', '.join(map(opened.url, table_names(page)))}")
