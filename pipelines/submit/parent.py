"""What a Ray Job starts: a small parent of the gridlaw command, which it starts again after a death by signal.

Ray Jobs retry nothing. A command that ends by itself, whatever its exit code, has said what it had to say; one that was
killed (for memory, by a crash) has not, and going on is what ``gridlaw run`` does anyway. Stopping the job (SIGTERM)
reaches the command, too; the parent then waits for it and starts nothing again.

Light on purpose: no torch, no Ray, so that it is not what a node short of memory kills.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from gridlaw.pipelines.submit import credentials

_PAUSE_SECONDS = 1.0


class Parent:
    """Runs a command until it ends by itself, at most ``restarts`` times again."""

    def __init__(self, command: Sequence[str], *, restarts: int) -> None:
        self._command, self._restarts = list(command), restarts
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = 0

    def run(self) -> int:
        """The command's exit code; 128 + the signal's number where a signal has ended it."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._stop)
        for number in range(self._restarts + 1):
            self._child = subprocess.Popen(self._command)
            if self._stopping:  # asked while the child was being made
                self._child.send_signal(signal.SIGTERM)
            code = self._child.wait()
            if code >= 0:
                return code
            name = signal.Signals(-code).name
            if self._stopping or number == self._restarts:
                _say(f"ended by {name}" + ("" if self._stopping else self._advice()))
                return 128 - code
            _say(f"ended by {name}; starting it again ({number + 1} of {self._restarts})")
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last turn returns")

    def _advice(self) -> str:
        return ". What was saved is kept: submit it again to go on"

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        """Ray signals every process of the job; passed on for whoever signals the parent alone."""
        first = not self._stopping
        self._stopping = signum
        if first and self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)


def _say(sentence: str) -> None:
    print(f"gridlaw: {sentence}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="gridlaw-job")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    credentials.load()
    arguments = [each for each in given.arguments if each != "--"]
    sys.exit(Parent([sys.executable, "-m", "gridlaw.pipelines.cli.main", *arguments], restarts=given.restarts).run())


if __name__ == "__main__":
    main()
