"""The job's parent process, with real children that are really killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import os, pathlib, signal, sys, time
log = pathlib.Path(sys.argv[1])
with log.open("a") as file:
    file.write("start\\n")
kind, number = sys.argv[2], log.read_text().count("start")
if kind == "dies-twice" and number <= 2:
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "fails":
    sys.exit(2)
if kind == "waits":
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(143)))
    with log.open("a") as file:
        file.write("ready\\n")
    time.sleep(60)
"""

PARENT = """
import sys
from gridlaw.pipelines.submit.parent import Parent
sys.exit(Parent([sys.executable, "-c", sys.argv[1], *sys.argv[3:]], restarts=int(sys.argv[2])).run())
"""


def start(log: Path, kind: str, restarts: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PARENT, CHILD, str(restarts), str(log), kind]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_killed_command_is_started_again(tmp_path: Path) -> None:
    parent = start(tmp_path / "log", "dies-twice", 3)
    _, told = parent.communicate(timeout=120)
    assert parent.returncode == 0
    assert (tmp_path / "log").read_text().count("start") == 3
    assert "ended by SIGKILL; starting it again (2 of 3)" in told


def test_no_more_often_than_asked(tmp_path: Path) -> None:
    parent = start(tmp_path / "log", "dies-twice", 1)
    _, told = parent.communicate(timeout=120)
    assert parent.returncode == 128 + signal.SIGKILL
    assert (tmp_path / "log").read_text().count("start") == 2
    assert "submit it again to go on" in told


def test_a_command_that_ended_by_itself_has_its_say(tmp_path: Path) -> None:
    parent = start(tmp_path / "log", "fails", 3)
    parent.communicate(timeout=120)
    assert parent.returncode == 2
    assert (tmp_path / "log").read_text().count("start") == 1


def test_stopping_reaches_the_command_is_waited_for_and_starts_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = start(log, "waits", 3)
    deadline = time.monotonic() + 120
    while not log.exists() or "ready" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.send_signal(signal.SIGTERM)
    parent.communicate(timeout=120)
    assert parent.returncode == 143
    assert log.read_text().count("start") == 1
