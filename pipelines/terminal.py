"""The console that results are printed on: as wide as the terminal, or wide enough for every column in a file."""

from __future__ import annotations

import sys

from rich.console import Console

WIDTH_OF_FILES = 160


def results_console() -> Console:
    """Standard output for tables. A pipe has no width of its own, and cut numbers are of no use in a file."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_FILES)
