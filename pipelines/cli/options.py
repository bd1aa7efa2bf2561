"""Options that several commands share: where a grid's store and ledger are, and a cluster's address."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from gridlaw.pipelines.submit.credentials import STORAGE, TRACKING_URI
from gridlaw.platform.addresses import redacted
from gridlaw.platform.errors import BadInput
from gridlaw.platform.jobs import ADDRESS_VARIABLE

Command = Callable[..., Any]


class AtLeastZero(click.FloatRange):
    """A finite number, 0 or more: click lets NaN through any range."""

    def __init__(self) -> None:
        super().__init__(min=0.0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number, 0 or more", param, ctx)
        return number


def place_options(command: Command) -> Command:
    """``--store`` and ``--tracking-uri``, instead of what the file says under run:."""
    command = click.option("--store", default=None, help="Folder or s3:// address, instead of run.store.")(command)
    return click.option(
        "--tracking-uri",
        default=None,
        envvar=TRACKING_URI,
        show_envvar=True,
        callback=_no_password,
        help="MLflow's tracking server, instead of run.tracking_uri.",
    )(command)


def storage_option(command: Command) -> Command:
    """``--storage`` of studies, instead of run.storage."""
    return click.option(
        "--storage",
        default=None,
        envvar=STORAGE,
        show_envvar=True,
        callback=_no_password,
        help="Database of the studies, instead of run.storage.",
    )(command)


def place_words() -> str:
    """The place options of the running command as they were given, for commands that it names; " " in front.

    What comes from the environment is there for the next command, too.
    """
    context = click.get_current_context()
    given = {
        f"--{name.replace('_', '-')}": context.params.get(name)
        for name in ("store", "tracking_uri", "storage")
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE
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
        name = f"--{(parameter.name or '').replace('_', '-')}"
        instead = f"Put it into {parameter.envvar}"
        if parameter.envvar == TRACKING_URI:
            instead += ", or use MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        raise BadInput(
            name,
            seen=redacted(value),
            allowed="an address without a password: every user of this machine can read command lines",
            hint=instead,
        )
    return value
