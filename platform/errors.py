"""Errors that end a command, each with the exit code that DESIGN gives it.

Not for our own bugs: those are assertions and stay tracebacks.
"""

from __future__ import annotations

from typing import Any


class GridlawError(Exception):
    """Base of all errors that are told to people in one message. ``exit_code`` ends the command."""

    exit_code = 1


class BadInput(GridlawError):
    """What a person wrote cannot be used: field, value seen, what is allowed, next step. Nothing was changed."""

    exit_code = 2

    def __init__(self, field: str, *, seen: Any = None, allowed: str, hint: str = "") -> None:
        self.field, self.seen, self.allowed, self.hint = field, seen, allowed, hint
        shown = "" if seen is None else f" is {seen!r}"
        super().__init__(f"{field}{shown}; allowed: {allowed}" + (f". {hint}" if hint else ""))


class Drift(GridlawError):
    """A finished run has this name with other settings: shown field by field, nothing touched."""

    exit_code = 2


class InUse(GridlawError):
    """Another driver holds the experiment's lease, or the experiment belongs to another store."""

    exit_code = 2


class Surroundings(GridlawError):
    """Store, disk, tracking server or lease failed underneath a run: mend that, then run again."""

    exit_code = 3
