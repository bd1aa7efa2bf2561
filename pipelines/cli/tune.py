"""``gridlaw tune``: run a study, show it, and write down what was best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gridlaw.pipelines.cli.options import Command, place_options, place_words, storage_option
from gridlaw.pipelines.plan import grids_folder

if TYPE_CHECKING:
    from gridlaw.pipelines.tune.plan import TunePlan


def load_tune_plan(
    file: str, *, store: str | None = None, tracking_uri: str | None = None, storage: str | None = None
) -> TunePlan:
    """The plan of a tune file, or of a shipped one by its name. The places given go before the file's."""
    from gridlaw.pipelines.tune.plan import make_tune_plan
    from gridlaw.platform.spec.load import load_grid

    spec = load_grid(file, shipped_folder=grids_folder())
    return make_tune_plan(spec.placed(store=store, tracking_uri=tracking_uri, storage=storage))


def study_places(command: Command) -> Command:
    """``--store``, ``--tracking-uri`` and ``--storage``."""
    return place_options(storage_option(command))


@click.group()
def tune() -> None:
    """Tune the settings of one point. FILE is a grid file with tune:, or the name of a shipped one."""


@tune.command("run")
@click.argument("file")
@click.option("--rerun", is_flag=True, help="Begin a new study where settings changed; the old one is set aside.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live table.")
@click.option("--address", default=None, help="HOST:PORT of a Ray cluster, auto inside a Ray Job; else one of its own.")
@click.option("--shared-store", is_flag=True, help="With --address: the store's folder is a mount of every node.")
@study_places
def run_command(
    file: str, rerun: bool, plain: bool, address: str | None, shared_store: bool, **places: str | None
) -> None:
    """Run the trials of FILE that are missing."""
    from gridlaw.pipelines.cli.grid import Screen
    from gridlaw.pipelines.grid.submission import Watcher
    from gridlaw.pipelines.tune.submission import run_study

    plan = load_tune_plan(file, **places)
    for warning in plan.base.warnings:
        click.echo(f"warning: {warning}", err=True)
    with Screen(plan.spec.name, plain=plain) as screen:
        watcher = Watcher(tick=screen.tick, say=screen.say)
        ended = run_study(plan, rerun=rerun, watcher=watcher, address=address, shared_store=shared_store)
    _print_end(plan, file, ended)
    raise SystemExit(ended.exit_code)


def _print_end(plan: TunePlan, file: str, ended: Any) -> None:
    from gridlaw.pipelines.cli.grid import tell_stopped
    from gridlaw.pipelines.tune.results import summary

    results = ended.results
    if ended.stopped:
        done = f"{results.count('complete')} of {results.planned} trials complete"
        tell_stopped(ended, done, f"tune run {file}{place_words()}")
        return
    if ended.already_done:
        click.echo(f"{len(results.trials)} trials already done")
    for problem in ended.problems:
        click.echo(f"{problem.status}: {problem.kind} {problem.name}: {problem.reason}", err=True)
    if ended.closed:
        click.echo(f"ended before {results.planned} trials: {ended.closed}", err=True)
    for sentence in summary(results):
        click.echo(sentence)
    click.echo(f"report: {ended.report}")
    click.echo(f"dashboard: gridlaw ui {file} --optuna{place_words()}")


@tune.command("status")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@study_places
def status_command(file: str, as_json: bool, **places: str | None) -> None:
    """Show the study of FILE: its trials, what is best, who runs it."""
    from gridlaw.pipelines.tune.status import print_status, status_of

    shown = status_of(load_tune_plan(file, **places))
    if as_json:
        click.echo(json.dumps(shown))
    else:
        print_status(shown)


@tune.command("best")
@click.argument("file")
@click.option("--weight", "weights", multiple=True, metavar="METRIC=W", help="Several objectives: their weights.")
@click.option("--where", "bounds", multiple=True, metavar="METRIC<=X", help="Several objectives: bounds; one stays.")
@click.option("--trial", "number", default=None, type=click.IntRange(min=0), help="A trial by its number.")
@click.option("--write", default=None, type=click.Path(path_type=Path), help="Write a grid file with its settings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@study_places
def best_command(
    file: str,
    weights: tuple[str, ...],
    bounds: tuple[str, ...],
    number: int | None,
    write: Path | None,
    as_json: bool,
    **places: str | None,
) -> None:
    """Show the best trial of FILE, and write a grid file with its settings."""
    from gridlaw.pipelines.tune.best import choose, write_grid
    from gridlaw.pipelines.tune.results import settings_text, trial_dict, values_text

    plan = load_tune_plan(file, **places)
    trial = choose(plan, weights=weights, bounds=bounds, number=number)
    if write is not None:
        write_grid(plan, trial, write)
    if as_json:
        click.echo(json.dumps(trial_dict(trial)))
        return
    click.echo(f"trial{trial.number}: {values_text(trial)}")
    click.echo(settings_text(trial.params))
    if write is not None:
        click.echo(f"written: {write}; run it with: gridlaw run {write}")
