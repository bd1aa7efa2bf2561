"""Files that a grid names and that are not there yet: a plan may go on without them, a run may not.

Whether that is allowed holds for everything resolved inside ``allow_absent``, wherever a source is named (mixture,
held-out text, tokenizer, an evaluation's corpus), so that there is one rule. What stands in for absent files in an
identity is no content: such an identity may be shown, and is never compared with the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FOUND: ContextVar[list[tuple[str, str]] | None] = ContextVar("absent", default=None)


@contextmanager
def allow_absent() -> Iterator[list[tuple[str, str]]]:
    """Inside it, missing files are noted instead of refused: (field, path or glob as written), each once."""
    found: list[tuple[str, str]] = []
    token = _FOUND.set(found)
    try:
        yield found
    finally:
        _FOUND.reset(token)


def note_absent(field: str, path: str) -> bool:
    """Note missing files; False where they are not allowed to be missing."""
    found = _FOUND.get()
    if found is None:
        return False
    if (field, path) not in found:
        found.append((field, path))
    return True
