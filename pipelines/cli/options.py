"""Options that several commands share: where a grid's store and ledger are, and a cluster's address."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from gridlaw.platform.errors import BadInput
from gridlaw.platform.jobs import ADDRESS_VARIABLE
from gridlaw.platform.ledger.tracking import redacted

TRACKING_VARIABLE = "GRIDLAW_TRACKING_URI"
Command = Callable[..., Any]


def place_options(command: Command) -> Command:
    """``--store`` and ``--tracking-uri``, instead of what the file says under run:."""
    command = click.option("--store", default=None, help="Folder or s3:// address, instead of run.store.")(command)
    return click.option(
        "--tracking-uri",
        default=None,
        envvar=TRACKING_VARIABLE,
        show_envvar=True,
        callback=_no_password,
        help="MLflow's tracking server, instead of run.tracking_uri.",
    )(command)


def place_words() -> str:
    """The place options of the running command as they were given, for commands that it names; " " in front.

    What comes from the environment is there for the next command, too.
    """
    context = click.get_current_context()
    given = {
        "--store": context.params.get("store"),
        "--tracking-uri": context.params.get("tracking_uri")
        if context.get_parameter_source("tracking_uri") == ParameterSource.COMMANDLINE
        else None,
    }
    return "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value is not None)


def dashboard_option(*, required: bool = False) -> Callable[[Command], Command]:
    """``--address`` of a cluster's dashboard, where jobs are submitted and asked for."""
    return click.option(
        "--address",
        required=required,
        default=None,
        envvar=ADDRESS_VARIABLE,
        show_envvar=True,
        help="http://HOST:8265 of the Ray cluster's dashboard.",
    )


def _no_password(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None or redacted(value) == value:
        return value
    if context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE:
        raise BadInput(
            "--tracking-uri",
            seen=redacted(value),
            allowed="an address without a password: every user of this machine can read command lines",
            hint=f"Put it into {TRACKING_VARIABLE}, or use MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        )
    return value
