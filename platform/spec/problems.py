"""Mistakes in a grid file, as messages for the person who wrote it.

All mistakes of form are told together, in the order of the file's lines: mending one at a time costs one run each.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from gridlaw.platform.errors import BadInput

Path = tuple[str | int, ...]
"""Where a value stands in the file: keys and list positions from the top."""

MAX_SHOWN_CHARACTERS = 80
MAX_SHOWN_PROBLEMS = 12


class Shown(str):
    """A text that is shown as it stands, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def shown(value: Any) -> Shown:
    """How a value of the file is shown in a message: as YAML would write it on one line, cut where it is long."""
    if value is None:
        return Shown("empty")
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    if len(text) > MAX_SHOWN_CHARACTERS:
        text = text[: MAX_SHOWN_CHARACTERS - 1] + "…"
    return Shown(text)


def dotted(path: Iterable[str | int]) -> str:
    """``("also", 0, "scales")`` → ``also[0].scales``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a mistyped one most likely means, or None if none is close."""
    lowered = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """``Did you mean X?`` or nothing."""
    found = nearest(word, known) if isinstance(word, str) else None
    return f"Did you mean {found}?" if found else ""


def listed(names: Iterable[Any], limit: int = 20) -> str:
    """``a, b, c`` with the rest counted."""
    every = [str(name) for name in names]
    more = len(every) - limit
    return ", ".join(every[:limit]) + (f", … ({more} more)" if more > 0 else "")


class Problem(BadInput):
    """One mistake at one place of the file. ``seen`` is the value there; leave it out where nothing was written."""

    def __init__(self, path: Path, *, seen: Any = ..., allowed: str, hint: str = "", line: int | None = None) -> None:
        self.path, self.line = path, line
        super().__init__(
            dotted(path) or "the grid file",
            seen=None if seen is ... else seen if isinstance(seen, Shown) else shown(seen),
            allowed=allowed,
            hint=hint,
        )


class BadGrid(BadInput):
    """The mistakes of one file. ``field``, ``seen``, ``allowed`` and ``hint`` are those of the first."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        assert problems, "a BadGrid without a problem"
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        first = self.problems[0]
        super().__init__(first.field, seen=first.seen, allowed=first.allowed, hint=first.hint)
        told = [
            (f"line {problem.line}: " if problem.line else "") + str(problem)
            for problem in self.problems[:MAX_SHOWN_PROBLEMS]
        ]
        left = len(problems) - len(told)
        if len(problems) == 1:
            text = f"{source}, {told[0]}" if first.line else f"{source}: {told[0]}"
        else:
            text = f"{source} has {len(problems)} mistakes:\n" + "\n".join(f"  {line}" for line in told)
            text += f"\n  … and {left} more" if left else ""
        self.args = (text,)
