"""What a running grid is doing, told on stderr: a live table on a terminal, plain lines anywhere else.

Not a source of truth (the ledger is) and not a scheduler: the driver hands over the rows that changed with ``update``,
about twice a second, from one thread; an update costs what its changes cost, however many rows there are. Nothing is
drawn between updates, so no thread of ours can outlive an interrupted driver. A terminal that goes away (a closed
connection, a broken pipe) silences the table and never stops the grid.

On a terminal: running work first, as many rows as fit the height, failures below, counts and one bar above. Elsewhere
(a file, a pipe, CI, TERM=dumb): one line when something changes its state and a heartbeat line every so many seconds.
NO_COLOR is respected; terminals without UTF-8 get ASCII.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gridlaw.pipelines.report.terminal import to_ascii
from gridlaw.pipelines.report.words import count, duration, significant

STATES = ("running", "waiting", "done", "failed", "diverged", "blocked", "stopped")
RowKey = tuple[str | int, ...]
_TRAINING = ("trunk", "point")
_ON_EXAMPLES = ("examples", "evaluation")
BAD_STATES = ("failed", "diverged", "blocked")
_STYLES = {"running": "cyan", "done": "green", "failed": "bold red", "diverged": "bold red", "blocked": "yellow"}
# name, from which terminal width on it is shown
_COLUMNS = (("name", 0), ("state", 64), ("step", 0), ("tokens/s", 80), ("loss", 48), ("left", 34), ("node", 100))
_MOST_FAILURES = 4
_OTHER_WORK = 0.2  # of a training task: an evaluation is to take at most a quarter of the training time


@dataclass(frozen=True, kw_only=True)
class LiveRow:
    """One piece of work, its state one of STATES. kind: trunk, point, examples, evaluation, law, data; loss in nats per
    token; step, total_steps: optimizer steps, or examples of an evaluation.

    node: where it runs, machine and device, shown if there is more than one. reason: why it did not succeed. key: what
    tells it from other rows; kind and name, where they do.
    """

    name: str
    kind: str = "point"
    state: str = "waiting"
    step: int = 0
    total_steps: int = 0
    tokens_per_second: float | None = None
    loss: float | None = None
    seconds_left: float | None = None
    node: str = ""
    reason: str = ""
    key: RowKey = ()

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"LiveRow.state is {self.state!r}; allowed: {', '.join(STATES)}")

    @property
    def fraction(self) -> float:
        """How much of it is done, 0 to 1; what has ended without success has nothing left to do, either."""
        if self.state in ("done", *BAD_STATES):
            return 1.0
        return min(self.step / self.total_steps, 1.0) if self.total_steps > 0 else 0.0


@dataclass
class _Totals:
    """Sums over all rows, kept current as rows come and change."""

    states: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    """Of training whose steps are known; so is what follows."""
    steps_done: float = 0.0
    known: int = 0
    unknown: int = 0
    """Training whose steps are not known yet."""
    unknown_done: float = 0.0
    others: int = 0
    """Evaluations, data, laws."""
    others_done: float = 0.0

    def add(self, row: LiveRow, sign: int = 1) -> None:
        """sign: -1 takes a row out."""
        self.states[row.state] += sign
        done = sign * row.fraction
        if row.kind not in _TRAINING:
            self.others += sign
            self.others_done += done
        elif row.total_steps > 0:
            self.known += sign
            self.steps += sign * row.total_steps
            self.steps_done += done * row.total_steps
        else:
            self.unknown += sign
            self.unknown_done += done

    def fraction(self) -> float:
        """Share of the work that is behind us: training by its steps, other work as a part of the usual training.

        Training whose steps are not known yet weighs as much as the mean of the known.
        """
        usual = self.steps / self.known if self.known else 1.0
        total = self.steps + usual * (self.unknown + _OTHER_WORK * self.others)
        done = self.steps_done + usual * (self.unknown_done + _OTHER_WORK * self.others_done)
        return min(max(done / total, 0.0), 1.0) if total else 0.0


class _Console(Console):
    """rich's console ends the program when its pipe breaks; a grid goes on without anyone watching."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("the terminal is gone")


class LiveTable:
    """Use as a context manager, feed with ``update``.

    file: where to write, by default stderr. heartbeat_seconds: how often plain output says that it lives.
    live: force the table or the plain lines; by default a terminal that is not in CI gets the table.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        title: str,
        *,
        file: TextIO | None = None,
        heartbeat_seconds: float = 30.0,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        environment = os.environ if environment is None else environment
        self._file = file if file is not None else sys.stderr
        self._is_live = wants_table(self._file, environment) if live is None else live
        self._title, self._clock, self._heartbeat_seconds = title, clock, heartbeat_seconds
        self._rows: dict[RowKey, LiveRow] = {}
        self._places: dict[RowKey, int] = {}
        self._running: dict[RowKey, LiveRow] = {}
        self._bad: dict[RowKey, LiveRow] = {}
        self._totals = _Totals()
        self._started = self._last_said = clock()
        self._seconds_left: float | None = None
        self._first: tuple[float, float] | None = None  # progress and time at the first update: what was done before
        self._gone = False
        self._live: Live | None = None
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        self._ascii = not encoding.lower().replace("-", "").startswith("utf")
        if self._is_live:
            self._console = _Console(file=self._file, highlight=False)

    def __enter__(self) -> Self:
        self._started = self._last_said = self._clock()
        if self._is_live:
            to_terminal = sys.stdout is not None and sys.stdout.isatty()  # else prints would move from a pipe to stderr
            self._live = Live(
                console=self._console, auto_refresh=False, redirect_stdout=to_terminal, vertical_overflow="crop"
            )
            self._safely(self._live.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the last table standing and gives the cursor back, whatever ended the work."""
        if self._live is not None:
            live, self._live = self._live, None
            self._safely(live.stop)
        elif not self._is_live and self._rows:
            self._say(f"{'stopped' if error else 'ended'}: {self._counts()} after {duration(self._elapsed())}")

    def update(self, changed: Iterable[LiveRow], *, seconds_left: float | None = None) -> None:
        """Take in what is new or has changed since the last update, and show it.

        seconds_left: the driver's estimate for everything, else from progress so far.
        """
        was_empty = not self._rows
        changes = [(self._take(row), row) for row in changed]
        self._seconds_left = seconds_left if seconds_left is not None else self._estimate()
        if self._live is not None:
            self._live.update(self.render())
            self._safely(self._live.refresh)
        elif not self._is_live:
            self._tell(changes, is_first=was_empty and bool(changes))

    def _take(self, row: LiveRow) -> LiveRow | None:
        """What the row was before."""
        key = row.key or (row.kind, row.name)
        before = self._rows.get(key)
        if before is not None:
            self._totals.add(before, -1)
        self._totals.add(row)
        self._rows[key] = row
        self._places.setdefault(key, len(self._places))
        for rows, states in ((self._running, ("running",)), (self._bad, BAD_STATES)):
            rows.pop(key, None)
            if row.state in states:
                rows[key] = row
        return before

    def note(self, text: str) -> None:
        """One line that stays: above the table, or among the plain lines."""
        if self._live is not None:
            self._safely(lambda: self._console.print(Text(self._clean(text))))
        else:
            self._say(text)

    # -- the table ---------------------------------------------------------------------------------------------------

    def render(self) -> RenderableType:
        """The table as it is now, in the size of the terminal."""
        width, height = self._console.width, self._console.height
        running, bad = self._in_order(self._running), list(self._bad.values())
        room = max(height - 5, 1)  # two lines above, the heading, one for "more", one for the cursor
        bad_shown = bad[-min(_MOST_FAILURES, max(room // 3, 1)) :] if room > 3 else []
        rows_shown = running[: max(room - len(bad_shown) - (len(bad) > len(bad_shown)), 1)]
        parts: list[RenderableType] = [self._heading(width), self._bar(width)]
        if rows_shown:
            parts.append(self._table(rows_shown, width))
        if len(running) > len(rows_shown):
            parts.append(self._line(f"and {len(running) - len(rows_shown)} more running", "dim"))
        for row in bad_shown:
            parts.append(self._line(f"{row.state}: {row.name}" + (f": {row.reason}" if row.reason else ""), "red"))
        if bad_shown and len(bad) > len(bad_shown):
            parts.append(self._line(f"and {len(bad) - len(bad_shown)} more not successful", "red"))
        return Group(*parts[: max(height - 1, 2)])

    def _heading(self, width: int) -> Text:
        heading = Text(self._clean(self._title), style="bold", no_wrap=True, overflow="ellipsis")
        return heading.append(self._clean(f"  {self._counts()}"), style="not bold")

    def _bar(self, width: int) -> RenderableType:
        fraction = self._totals.fraction()
        left = f", about {duration(self._seconds_left)} left" if self._seconds_left is not None else ""
        text = f"{fraction:4.0%}  {duration(self._elapsed())}{left}"
        if width < len(text) + 14:
            return self._line(text)
        bar = ProgressBar(total=1.0, completed=fraction, width=min(width - len(text) - 2, 40))
        grid = Table.grid(padding=(0, 1))
        grid.add_row(bar, self._line(text))
        return grid

    def _table(self, rows: Sequence[LiveRow], width: int) -> Table:
        """Figures keep their width; names take what is left and are cut."""
        several = len({row.node for row in rows if row.node}) > 1
        shown = [name for name, least in _COLUMNS if width >= least and (name != "node" or several)]
        cells = {name: [self._cell(row, name) for row in rows] for name in shown}
        widths = {name: max(len(name) * (name != "name"), *map(len, cells[name])) for name in shown}
        room = width - sum(widths[name] + 2 for name in shown if name != "name")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        for name in shown:
            table.add_column(
                "" if name == "name" else name,
                justify="left" if name in ("name", "state", "node") else "right",
                no_wrap=True,
                overflow="crop" if self._ascii else "ellipsis",
                width=max(min(widths[name], room), 4) if name == "name" else widths[name],
            )
        for row in zip(*cells.values(), strict=True):
            table.add_row(*row)
        return table

    def _cell(self, row: LiveRow, column: str) -> Text:
        if column == "state":
            return self._line(row.state, _STYLES.get(row.state, ""))
        values = {
            "name": _named(row),
            "step": f"{row.step}/{row.total_steps}" if row.total_steps else "",
            "tokens/s": count(row.tokens_per_second) if row.tokens_per_second else "",
            "loss": significant(row.loss) if row.loss is not None else "",
            "left": duration(row.seconds_left) if row.seconds_left is not None else "",
            "node": row.node,
        }
        return self._line(values[column])

    def _line(self, text: str, style: str = "") -> Text:
        return Text(self._clean(text), style=style, no_wrap=True, overflow="crop" if self._ascii else "ellipsis")

    # -- plain lines -------------------------------------------------------------------------------------------------

    def _tell(self, changes: Iterable[tuple[LiveRow | None, LiveRow]], *, is_first: bool) -> None:
        if is_first:
            self._say(f"{self._title}: {self._counts()}")
        for before, row in changes:
            quiet = row.state in ("waiting", "done") if before is None else row.state in (before.state, "waiting")
            if not quiet:
                self._say(_change(row))
        if self._clock() - self._last_said >= self._heartbeat_seconds:
            self._say(self._heartbeat())

    def _heartbeat(self) -> str:
        running = self._in_order(self._running)
        parts = [_progress(row) for row in running[:3]] + ([f"{len(running) - 3} more"] if len(running) > 3 else [])
        left = f", about {duration(self._seconds_left)} left" if self._seconds_left is not None else ""
        work = f"; {'; '.join(parts)}" if parts else ""
        return f"{self._totals.fraction():.0%} after {duration(self._elapsed())}{left}: {self._counts()}{work}"

    def _say(self, text: str) -> None:
        self._last_said = self._clock()

        def write() -> None:
            self._file.write(f"{time.strftime('%H:%M:%S')} {self._clean(text)}\n")
            self._file.flush()

        self._safely(write)

    # -- shared ------------------------------------------------------------------------------------------------------

    def _counts(self) -> str:
        """12 of 36 done, 2 running, 22 waiting: in a fixed order, states that nothing has left out."""
        states = self._totals.states
        parts = [f"{states['done']} of {len(self._rows)} done"]
        return ", ".join(parts + [f"{states[state]} {state}" for state in STATES if state != "done" and states[state]])

    def _in_order(self, rows: Mapping[RowKey, LiveRow]) -> list[LiveRow]:
        """In the order in which they were first seen."""
        return [rows[key] for key in sorted(rows, key=self._places.__getitem__)]

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _estimate(self) -> float | None:
        """Seconds left at the pace since the first update; None while too little is known."""
        fraction, elapsed = self._totals.fraction(), self._elapsed()
        if self._first is None:
            self._first = (fraction, elapsed)
        gained = fraction - self._first[0]
        if gained < 0.02 or fraction >= 1.0:
            return None
        return (elapsed - self._first[1]) / gained * (1.0 - fraction)

    def _clean(self, text: str) -> str:
        """One line without control characters (a reason may hold a whole traceback), in ASCII where needed."""
        plain = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text)
        flat = "".join(c if c.isprintable() else " " for c in plain)
        return to_ascii(flat) if self._ascii else flat

    def _safely(self, action: Callable[[], object]) -> None:
        """Writes, unless the terminal is gone: a grid goes on without anyone watching."""
        if self._gone:
            return
        try:
            with _uninterrupted():
                action()
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            if isinstance(error, ValueError) and "closed file" not in str(error):
                raise
            self._gone = True


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Holds Ctrl-C back while a frame is written: half a frame would leave the next redraw on wrong lines."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if held:
            signal.raise_signal(signal.SIGINT)


def wants_table(file: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether the file is a terminal that can redraw lines, and no CI log that only looks like one."""
    try:
        terminal = file.isatty()
    except (AttributeError, ValueError):
        return False
    return terminal and environment.get("TERM", "dumb") not in ("dumb", "") and not environment.get("CI")


def _named(row: LiveRow) -> str:
    return row.name if row.kind in ("point", "examples") else f"{row.name} {row.kind}"


def _change(row: LiveRow) -> str:
    """running full/n3/seed0 trunk (540 steps) on node-1; failed gdn/n1/5N/seed0: reason."""
    text = f"{row.state} {_named(row)}"
    if row.state == "running" and row.total_steps and row.kind in _ON_EXAMPLES:
        text += f" ({row.step} of {row.total_steps} examples)"
    elif row.state == "running" and row.total_steps:
        text += f" from step {row.step} of {row.total_steps}" if row.step else f" ({row.total_steps} steps)"
    if row.state == "done" and row.loss is not None:
        text += f", loss {significant(row.loss)}"
    if row.state == "running" and row.node:
        text += f" on {row.node}"
    return text + (f": {row.reason}" if row.reason else "")


def _progress(row: LiveRow) -> str:
    parts = [_named(row)]
    if row.total_steps:
        parts.append(f"{row.step}/{row.total_steps}{' examples' if row.kind in _ON_EXAMPLES else ''}")
    if row.loss is not None:
        parts.append(f"loss {significant(row.loss)}")
    if row.tokens_per_second:
        parts.append(f"{count(row.tokens_per_second)} tokens/s")
    return " ".join(parts)
