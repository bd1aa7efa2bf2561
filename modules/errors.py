"""The error for settings that a model, its data or its training cannot have."""

from __future__ import annotations

from typing import Any


class BadSetting(ValueError):
    """One message: the field, the value seen, what is allowed, what to do next."""

    def __init__(self, field: str, *, seen: Any = None, allowed: str, hint: str = "") -> None:
        self.field, self.seen, self.allowed, self.hint = field, seen, allowed, hint
        shown = "" if seen is None else f" is {seen!r}"
        super().__init__(f"{field}{shown}; allowed: {allowed}" + (f". {hint}" if hint else ""))
