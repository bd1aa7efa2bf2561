"""What attention really reads: shapes as they reach the kernel, whoever chose them.

A router's choice says what should be read; the tensors that a kernel is given say what is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Read:
    """One call of a kernel: batch rows, queries a row, keys that each row's queries are held against, query heads."""

    rows: int
    queries: int
    keys: int
    heads: int

    @property
    def head_keys(self) -> int:
        """Keys times queries, rows and heads: equal to what is read where every query sees all keys given, as in
        decoding."""
        return self.rows * self.queries * self.keys * self.heads


_reads: ContextVar[list[Read] | None] = ContextVar("attention_reads", default=None)


@contextmanager
def record_reads() -> Iterator[list[Read]]:
    """Inside it, every call of an attention kernel in this context adds what it was given to the list."""
    found: list[Read] = []
    token = _reads.set(found)
    try:
        yield found
    finally:
        _reads.reset(token)


def note_read(q: Tensor, k: Tensor) -> None:
    """Called where a kernel is: q [B, T, H, K], k [B, S, G, K]."""
    found = _reads.get()
    if found is not None:
        found.append(Read(rows=q.shape[0], queries=q.shape[1], keys=k.shape[1], heads=q.shape[2]))
