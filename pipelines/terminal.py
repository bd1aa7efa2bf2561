"""The console that results are printed on, as wide as the terminal or as a file needs, and bars for long work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

WIDTH_OF_FILES = 160


def results_console() -> Console:
    """Standard output for tables. A pipe has no width of its own, and cut numbers are of no use in a file.

    Square brackets are printed as they are: reasons, paths and names are no markup.
    """
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH_OF_FILES)


@contextmanager
def progress_bar(what: str) -> Iterator[Any]:
    """A callable (what, done, total) that draws a bar on a terminal and says a line per kind of work elsewhere."""
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        said: set[str] = set()

        def say(now: str, done: int, total: int) -> None:
            if now not in said:
                said.add(now)
                print(now, file=sys.stderr)

        yield say
        return
    with Progress(console=console) as bar:
        task = bar.add_task(what)
        yield lambda now, done, total: bar.update(task, description=now, completed=done, total=total or None)
