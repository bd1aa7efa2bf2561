"""The live table on a real pseudo-terminal, and its plain lines in a file."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import textwrap
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridlaw.pipelines.live import STATES, LiveRow, LiveTable, wants_table

PROGRAM = """
import sys, time
from gridlaw.pipelines.live import LiveRow, LiveTable
{setting}
def rows(step):
    done = [LiveRow(name=f"full/n1/{{i}}N/seed0", state="done", loss=2.5) for i in range(3)]
    trunk = dict(kind="trunk", state="running", step=step, total_steps=200, loss=3.0 - step / 200)
    speed = dict(tokens_per_second=31_200.0, seconds_left=12.0)
    running = [LiveRow(name=f"full/n{{i}}/seed0", node=f"node-{{i % 2}}", **trunk, **speed) for i in range({running})]
    reason = "ValueError: −0.5\\nsecond line\\x1b[31m"
    bad = [LiveRow(name=f"gdn/n1/{{5 + i}}N/seed0", state="failed", reason=reason) for i in range({bad})]
    waiting = [LiveRow(name=f"gdn/n2/{{i}}N/seed0") for i in range(4)]
    return done + running + bad + waiting
with LiveTable("quickstart") as table:
    for step in range(0, {steps}, 10):
        table.update(rows(step))
        if step == 50:
            table.note("law of full refitted: α 0.33")
        time.sleep({pause})
print("the end")
"""


class Screen:
    """Just enough of a terminal: lines, carriage returns, cursor up, erase line. Keeps what scrolled away."""

    def __init__(self, height: int) -> None:
        self.height, self.lines, self.row, self.column = height, [""], 0, 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[^\x1b]", text):
            if part == "\n":
                self.row += 1
                while len(self.lines) <= self.row:
                    self.lines.append("")
            elif part == "\r":
                self.column = 0
            elif part.endswith("A") and part.startswith("\x1b"):
                self.row -= int(part[2:-1] or 1)
                assert self.row >= len(self.lines) - self.height, "redrew a line that has scrolled away"
            elif part == "\x1b[2K":
                self.lines[self.row] = ""
            elif not part.startswith("\x1b"):
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + part + line[self.column + 1 :]
                self.column += 1

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)


def on_terminal(
    *,
    height=24,
    width=100,
    running=2,
    bad=0,
    steps=100,
    pause=0.0,
    press=None,
    setting="",
    encoding="utf-8",
    **environment,
):
    """Runs PROGRAM on a pseudo-terminal → raw output, screen, exit status. press: keys sent after the first table."""
    code = textwrap.dedent(PROGRAM).format(running=running, bad=bad, steps=steps, pause=pause, setting=setting)
    variables = {key: value for key, value in os.environ.items() if key not in ("CI", "NO_COLOR", "COLUMNS", "LINES")}
    variables |= {"TERM": "xterm-256color", "PYTHONIOENCODING": encoding, **environment}
    pid, master = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a suite in the background has it ignored
        time.sleep(0.1)  # the parent sets the window's size
        os.execve(sys.executable, [sys.executable, "-c", code], variables)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    output, pressed, deadline = b"", False, time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not data:
            break
        output += data
        if press and not pressed and b"running" in output:
            os.write(master, press)
            pressed = True
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(master)
    text = output.decode(encoding, "replace")
    screen = Screen(height)
    screen.feed(text.replace("^C", ""))
    return text, screen, status


def test_the_last_table_stays_and_the_cursor_comes_back():
    raw, screen, status = on_terminal()
    assert status == 0
    assert screen.text.count("quickstart  3 of 9 done, 2 running, 4 waiting") == 1
    assert screen.text.count("full/n0/seed0 trunk") == 1
    assert "90/200" in screen.text
    assert "31.2K" in screen.text
    for name, node in (("full/n0/seed0", "node-0"), ("full/n1/seed0", "node-1")):
        (row,) = [line for line in screen.text.splitlines() if f"{name} trunk" in line]
        assert row.endswith(node)
    assert screen.text.index("law of full refitted: α 0.33") < screen.text.index("quickstart")
    assert raw.rindex("\x1b[?25h") > raw.rindex("\x1b[?25l")
    assert "the end" in screen.text


@pytest.mark.parametrize("height", [6, 12, 24])
def test_many_rows_keep_to_the_height(height):
    """Screen fails if a redraw reaches above the window, which is how a table that is too high smears."""
    _, screen, status = on_terminal(height=height, running=40, bad=7)
    assert status == 0
    assert screen.text.count("quickstart") == 1
    assert "more running" in screen.text
    assert "40 running" in screen.text
    shown = screen.text[screen.text.index("quickstart") : screen.text.index("the end")]
    assert len(shown.splitlines()) <= height - 1


@pytest.mark.parametrize("width", [20, 40, 70])
def test_narrow_terminals(width):
    _, screen, status = on_terminal(width=width, bad=1)
    assert status == 0
    assert max(map(len, screen.text.splitlines())) <= width
    assert screen.text.count("quickstart") == 1
    assert "90/200" in screen.text


def test_failures_are_shown_in_one_line_without_control_characters():
    _, screen, _ = on_terminal(bad=1)
    assert "failed: gdn/n1/5N/seed0: ValueError: −0.5 second line" in screen.text
    assert "[31m" not in screen.text


def test_a_terminal_without_utf8_gets_ascii():
    raw, screen, status = on_terminal(bad=1, encoding="ascii")
    assert status == 0
    assert raw.isascii()
    assert "ValueError: -0.5" in screen.text
    assert "alpha 0.33" in screen.text


def test_no_color_is_respected():
    coloured = re.compile(r"\x1b\[[0-9;]*3[1-7]m")
    assert coloured.search(on_terminal(bad=1)[0])
    assert not coloured.search(on_terminal(bad=1, NO_COLOR="1")[0])


@pytest.mark.parametrize("environment", [{"CI": "true"}, {"TERM": "dumb"}])
def test_ci_and_dumb_terminals_get_plain_lines(environment):
    raw, _, status = on_terminal(bad=1, **environment)
    assert status == 0
    assert "\x1b" not in raw
    assert raw.count("running full/n0/seed0 trunk (200 steps) on node-0") == 1


def test_ctrl_c_gives_the_cursor_back_and_leaves_the_table():
    raw, screen, status = on_terminal(steps=10_000, pause=0.05, press=b"\x03")
    assert status in (1, 130, -2)
    assert "KeyboardInterrupt" in raw
    assert raw.rindex("\x1b[?25h") > raw.rindex("\x1b[?25l")
    assert screen.text.count("quickstart  3 of 9") == 1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def row(name: str, state: str, step: int = 0, **values) -> LiveRow:
    return LiveRow(name=name, state=state, step=step, total_steps=100, **values)


def test_plain_output_says_each_change_once_and_a_heartbeat():
    file, clock = io.StringIO(), Clock()
    with LiveTable("grid", file=file, heartbeat_seconds=30, clock=clock) as table:
        table.update([row("a", "waiting"), row("b", "waiting"), row("old", "done")])
        for step in range(0, 100, 10):
            clock.now += 10
            table.update([row("a", "running", step, loss=3.25), row("b", "waiting"), row("old", "done")])
        table.update([row("a", "done", 100, loss=2.5), row("b", "failed", reason="out of\nmemory"), row("old", "done")])
    lines = [line.split(" ", 1)[1] for line in file.getvalue().splitlines()]
    assert lines[0] == "grid: 1 of 3 done, 2 waiting"
    assert lines[1] == "running a (100 steps)"
    beats = [line for line in lines if "%" in line]
    assert len(beats) == 3
    assert beats[0].startswith("43% after 40.0 s, about ")
    assert beats[0].endswith("1 of 3 done, 1 running, 1 waiting; a 30/100 loss 3.250")
    assert lines[-3:] == [
        "done a, loss 2.500",
        "failed b: out of memory",
        "ended: 2 of 3 done, 1 failed after 1 min 40 s",
    ]
    assert len(lines) == 1 + 1 + 3 + 3


def test_evaluations_count_examples():
    file, clock = io.StringIO(), Clock()
    with LiveTable("grid", file=file, heartbeat_seconds=10, clock=clock) as table:
        table.update(
            [row("a/longppl", "running", 12, kind="evaluation"), row("key tokens", "waiting", kind="examples")]
        )
        clock.now += 10
        table.update(
            [row("a/longppl", "running", 25, kind="evaluation"), row("key tokens", "waiting", kind="examples")]
        )
    assert "running a/longppl evaluation (12 of 100 examples)" in file.getvalue()
    assert "1 waiting; a/longppl evaluation 25/100 examples" in file.getvalue()


def test_what_was_done_before_does_not_count_as_pace():
    """Half is there at the first look; a quarter more takes 10 s: the last quarter takes 10 s as well."""
    file, clock = io.StringIO(), Clock()
    with LiveTable("grid", file=file, heartbeat_seconds=10, clock=clock) as table:
        table.update([row("old", "done"), row("new", "running", 0)])
        clock.now += 10
        table.update([row("old", "done"), row("new", "running", 50)])
    assert "75% after 10.0 s, about 10.0 s left" in file.getvalue()


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(5, "Input/output error"), ValueError("I/O operation on closed file.")]
)
@pytest.mark.parametrize("live", [False, True])
def test_a_terminal_that_goes_away_stops_nothing(error, live):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    with LiveTable("grid", file=Gone(), live=live) as table:
        table.update([row("a", "running", 1)])
        table.note("hello")
        table.update([row("a", "done", 100)])


def test_names_are_no_markup():
    file = io.StringIO()
    with LiveTable("[red]grid[/red]", file=file, live=True) as table:
        table.update([row("[bold]a[/bold]", "running", 1)])
    assert "[red]grid[/red]" in file.getvalue()
    assert "[bold]a[/bold]" in file.getvalue()


def test_an_unknown_state_is_refused():
    with pytest.raises(ValueError, match="allowed: running, waiting, done"):
        LiveRow(name="a", state="started")


def test_no_rows_at_all():
    file = io.StringIO()
    with LiveTable("grid", file=file) as table:
        table.update([])
    assert file.getvalue() == ""


def test_a_closed_file_is_no_terminal():
    file = io.StringIO()
    file.close()
    assert not wants_table(file, {"TERM": "xterm"})


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.lists(
            st.builds(
                LiveRow,
                key=st.tuples(st.integers(0, 4)),
                name=st.just("niah needles"),  # two data sets' examples have the same name
                kind=st.sampled_from(["trunk", "point", "examples", "evaluation"]),
                state=st.sampled_from(STATES),
                step=st.integers(0, 100),
                total_steps=st.sampled_from([0, 50, 100]),
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_counts_and_progress_are_those_of_the_newest_rows_whatever_came_before(updates: list[list[LiveRow]]) -> None:
    table = LiveTable("grid", file=io.StringIO(), live=True)
    newest: dict[Any, LiveRow] = {}
    for changed in updates:
        table.update(changed)
        newest |= {row.key: row for row in changed}
    fresh = LiveTable("grid", file=io.StringIO(), live=True)
    fresh.update(newest.values())
    states = Counter(row.state for row in newest.values())
    assert table._counts() == fresh._counts()
    assert table._counts().startswith(f"{states['done']} of {len(newest)} done")
    assert table._totals.fraction() == pytest.approx(fresh._totals.fraction(), abs=1e-9)
    running = [row.key for row in newest.values() if row.state == "running"]
    assert sorted(row.key for row in table._in_order(table._running)) == sorted(running)
