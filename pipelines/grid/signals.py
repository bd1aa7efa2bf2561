"""Signals that ask a submission to stop, and the exit codes that tell of them."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


def stop_code(signum: int) -> int:
    """Exit code of a submission that had to stop: by a signal, or by its surroundings (0)."""
    return {int(signal.SIGINT): 130, int(signal.SIGTERM): 143}.get(signum, 3)


class StopRequests:
    """Ctrl-C and SIGTERM are remembered instead of ending the process; a second Ctrl-C ends it.

    ``install`` again after Ray has started: Ray puts its own handler in place, which prints a stack trace on SIGTERM
    and aborts.
    """

    def __init__(self) -> None:
        self._seen: list[int] = []
        self._before: dict[int, Any] = {}

    def __call__(self) -> int:
        """The first signal, or 0."""
        return self._seen[0] if self._seen else 0

    def install(self) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(each, self._remember)
            self._before.setdefault(each, before)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        if self._seen and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self._seen.append(signum)

    def __enter__(self) -> StopRequests:
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)
