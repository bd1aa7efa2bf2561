"""Examples of evaluations: generated and tokenised once, kept as an Arrow file, read by whoever asks them.

A folder of examples has ``examples.arrow``, which appears whole by a rename, and what helps to make it, such as the
file of key tokens: if that is half done when a worker is killed, the next one goes on from there. Two processes that
want the same folder: one makes it, the other waits.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from gridlaw.modules.data.arrow import map_table, write_table
from gridlaw.modules.data.prepare import PreparedData
from gridlaw.pipelines.evaluations.inputs import EXAMPLES_FILE, Inputs, Progress


@dataclass(frozen=True, kw_only=True)
class DataRun:
    """What ``make_examples`` of an evaluation gets: no model, only how many positions it has."""

    settings: Any
    prepared: PreparedData
    work_folder: Path
    model_config: dict[str, Any]
    inputs: Inputs = field(default_factory=Inputs)
    device: str = "cpu"
    progress: Progress | None = None

    @property
    def model_context(self) -> int:
        """The longest input that the model was made for, in tokens."""
        return int(self.model_config["context"])

    @property
    def context(self) -> int:
        """What both data and model are made for, in tokens: the longest example if no setting says otherwise."""
        return min(self.prepared.context, self.model_context)

    def report(self, done: int, total: int) -> None:
        """Tell how far the work is, in examples."""
        if self.progress:
            self.progress(done, total)


def examples_folder(inputs: Inputs, work_folder: Path) -> Path:
    """Where examples are kept: as the inputs say, else in the work folder."""
    return Path(inputs.examples) if inputs.examples else work_folder


def kept_examples(run: DataRun, make: Callable[[DataRun, Path], pa.Table]) -> pa.Table:
    """The table of a run's examples, mapped into memory; made by ``make(run, folder)`` if it is not there."""
    folder = examples_folder(run.inputs, run.work_folder)
    if not run.inputs.examples:
        folder = folder / f"examples-{_key(run)}"
    path = folder / EXAMPLES_FILE
    if not path.is_file():
        folder.parent.mkdir(exist_ok=True)  # no further up: a store that vanished is not made again
        folder.mkdir(exist_ok=True)
        with open(folder / "examples.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                write_table(path, make(run, folder))
    return map_table(path)


def _key(run: DataRun) -> str:
    """Tells examples of different settings apart that are made in one work folder."""
    values = [run.settings.to_dict(), run.settings.name, run.prepared.fingerprint, run.context, run.inputs.identity()]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
