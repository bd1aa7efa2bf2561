"""A Lightning Logger that appends rows to a file of JSON lines: for fits outside a grid, and for tests."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger


class JsonLinesLogger(Logger):
    """Appends ``{"step": …, metric: value, …}`` to ``path``; a resumed fit goes on in the same file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def version(self) -> str:
        """There is one only."""
        return "0"

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one row, with a single write: lines of a killed process are whole."""
        line = json.dumps({"step": step, **metrics}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: settings are in the job."""

    def rows(self) -> list[dict[str, float]]:
        """All rows, in the order of writing."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
