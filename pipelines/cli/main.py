"""The ``gridlaw`` command: a table of commands, imported when called, and one place that ends with an exit code.

Exit codes: 0 done; 1 some point failed; 2 refused before anything changed (bad input, drift, experiment in use);
3 stopped by the surroundings (store, disk, tracking, lease); 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

import click

from gridlaw.modules.errors import BadSetting
from gridlaw.platform.errors import GridlawError

# name: (where the click command is, what --help says). Nothing here is imported until the command is called.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("gridlaw.pipelines.cli.grid:run", "Run a grid: train, evaluate, fit, report; only what is missing."),
    "plan": ("gridlaw.pipelines.cli.grid:plan", "Show what a run would do, and what it costs. Starts nothing."),
    "status": ("gridlaw.pipelines.cli.grid:status", "Show what the ledger holds of a grid."),
    "submit": ("gridlaw.pipelines.cli.cluster:submit", "Run a grid as a job of a Ray cluster."),
    "logs": ("gridlaw.pipelines.cli.cluster:logs", "Print what a job has printed."),
    "stop": ("gridlaw.pipelines.cli.cluster:stop", "Stop a grid's driver; what runs is saved."),
    "report": ("gridlaw.pipelines.cli.grid:report", "Make a grid's report page again from the ledger."),
    "describe": (
        "gridlaw.pipelines.cli.describe:describe",
        "Show an architecture at a scale: layers, parameters, FLOPs.",
    ),
    "evaluate": ("gridlaw.pipelines.cli.evaluate:evaluate", "Evaluate a checkpoint, a point or a grid by hand."),
    "data": ("gridlaw.pipelines.cli.data:data", "Prepare data, train a tokenizer."),
    "fit": ("gridlaw.pipelines.cli.laws:fit", "Fit a scaling law to a table or to a grid in the ledger."),
    "compare": ("gridlaw.pipelines.cli.laws:compare", "Compare architectures' laws at one N and D."),
    "suggest": ("gridlaw.pipelines.cli.laws:suggest", "Rank what to run next for a prediction, per FLOP."),
    "doctor": ("gridlaw.pipelines.cli.doctor:doctor", "Check this machine or a cluster: versions, store, clocks."),
    "tune": ("gridlaw.pipelines.cli.tune:tune", "Tune settings of one point: run, status, best."),
    "ui": ("gridlaw.pipelines.cli.ui:ui", "Open the MLflow UI, or Optuna's dashboard."),
}


class LazyGroup(click.Group):
    """Lists commands from ``COMMANDS`` and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gridlaw")
def cli() -> None:
    """From one YAML grid of language-model training runs to scaling laws.

    Start with: gridlaw run quickstart
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; always leaves through ``SystemExit``."""
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="gridlaw", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except GridlawError as error:
        click.echo(f"gridlaw: {error}", err=True)
        code = error.exit_code
    except BadSetting as error:
        click.echo(f"gridlaw: {error}", err=True)
        code = 2
    except BrokenPipeError:  # a reader such as head went away: not an error of ours
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
