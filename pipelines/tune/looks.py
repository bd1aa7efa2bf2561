"""A trial's training as its study sees it while it runs: means of its metrics at even steps, from its journal.

The journal is the file in which the worker logs (``platform/ledger/journal``); each step stands in it once, whatever
was interrupted, so the same looks come out of it again after any restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gridlaw.platform.ledger.sender import parse_row


class Looks:
    """Reads one journal forward. metrics: names in it. every_steps: optimizer steps between looks."""

    def __init__(self, path: Path, metrics: Sequence[str], every_steps: int) -> None:
        self._path, self._metrics, self._every = path, list(metrics), every_steps
        self._offset = 0
        self._sums = [0.0] * len(self._metrics)
        self._count = 0
        self.last_step = 0

    def new(self) -> Iterator[tuple[int, list[float]]]:
        """(step, mean of each metric over the steps since the look before) for each look that is new."""
        for step, row in self._rows():
            if step <= self.last_step or not all(name in row for name in self._metrics):
                continue
            self.last_step = step
            self._sums = [total + row[name] for total, name in zip(self._sums, self._metrics, strict=True)]
            self._count += 1
            if step % self._every == 0:
                means = [total / self._count for total in self._sums]
                self._sums, self._count = [0.0] * len(self._metrics), 0
                yield step, means

    def _rows(self) -> Iterator[tuple[int, dict[str, float]]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return  # being written
                    self._offset += len(line)
                    row = parse_row(line)
                    if row is not None:
                        yield row["s"], row["m"]
        except FileNotFoundError:
            return
