"""Token tables on disk, as Hugging Face ``datasets`` stores them, written and read without importing ``datasets``.

A folder holds Arrow stream files plus the two small JSON files that ``datasets.load_from_disk`` wants, so the data stay
open to other tools. Reading maps the files into memory: opening costs milliseconds whatever their size.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WINDOWS_PER_FILE_TOKENS = 64 * 1024 * 1024
BATCH_TOKENS = 4 * 1024 * 1024


def sync_file(path: Path) -> None:
    """Force a written file (or a folder's entries) to the disk, before the rename that makes it visible."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_table(path: Path, table: pa.Table) -> None:
    """Write one Arrow stream file aside and rename it: the file is whole or it is not there."""
    aside = path.with_name(path.name + ".tmp")
    with pa.OSFile(str(aside), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    sync_file(aside)
    os.replace(aside, path)


def map_table(path: Path) -> pa.Table:
    """Open an Arrow stream file without reading its columns."""
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


def token_lists(tokens: list[npt.NDArray[Any]], dtype: np.dtype[Any]) -> pa.ListArray:
    """A column of token arrays of any lengths."""
    offsets = np.zeros(len(tokens) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in tokens], out=offsets[1:])
    values = np.concatenate([*tokens, np.empty(0, dtype)]).astype(dtype, copy=False)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def list_rows(column: pa.ChunkedArray) -> list[npt.NDArray[Any]]:
    """Views of a list column's rows, chunk by chunk, without copying."""
    rows: list[npt.NDArray[Any]] = []
    for chunk in column.chunks:
        values, offsets = chunk.values.to_numpy(), chunk.offsets.to_numpy()
        rows += [values[start:stop] for start, stop in pairwise(offsets)]
    return rows


class DatasetFolder:
    """Writes numbered Arrow files into ``folder`` and, at the end, what ``datasets.load_from_disk`` needs."""

    def __init__(self, folder: Path, features: dict[str, Any]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.features = folder, features
        self.names: list[str] = []

    def add(self, table: pa.Table) -> None:
        """Write the next file."""
        name = f"data-{len(self.names):05d}.arrow"
        write_table(self.folder / name, table)
        self.names.append(name)

    def close(self) -> None:
        """Write the two JSON files."""
        state: dict[str, Any] = {
            "_data_files": [{"filename": name} for name in self.names],
            "_fingerprint": "gridlaw",
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        info = {"citation": "", "description": "", "features": self.features, "homepage": "", "license": ""}
        for name, content in (("state.json", state), ("dataset_info.json", info)):
            (self.folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
            sync_file(self.folder / name)


def _value(dtype: str) -> dict[str, str]:
    return {"dtype": dtype, "_type": "Value"}


def window_features(dtype: np.dtype[Any], length: int) -> dict[str, Any]:
    """Columns of a folder of windows."""
    return {"tokens": {"feature": _value(dtype.name), "length": length, "_type": "List"}}


def document_features(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Columns of a folder of separate documents."""
    return {
        "tokens": {"feature": _value(dtype.name), "_type": "List"},
        "num_bytes": _value("int64"),
        "text": _value("string"),
    }


class WindowWriter:
    """Cuts a stream of tokens into windows of ``context + 1`` that overlap by exactly one token.

    Window w is stream[w·context : w·context + context + 1]: its last token is a target only, and is the first input of
    window w + 1. So every token of the stream but the first is a target exactly once; what does not fill a last window
    is dropped.
    """

    def __init__(self, folder: Path, *, context: int, dtype: np.dtype[Any]) -> None:
        self.context, self.dtype = context, dtype
        self.output = DatasetFolder(folder, window_features(dtype, context + 1))
        self.num_windows = 0
        self._pending: list[npt.NDArray[Any]] = []
        self._num_pending = 0
        self._blocks: list[npt.NDArray[Any]] = []

    def add(self, tokens: npt.NDArray[Any]) -> None:
        """Append tokens to the stream."""
        self._pending.append(tokens.astype(self.dtype, copy=False))
        self._num_pending += len(tokens)
        if self._num_pending >= max(BATCH_TOKENS, 4 * self.context):
            self._cut()

    def end_stream(self) -> None:
        """Drop what does not fill a window: the next token starts a stream of its own."""
        self._cut()
        self._pending, self._num_pending = [], 0

    def add_windows(self, windows: npt.NDArray[Any]) -> None:
        """Append ready windows, [num, context + 1]."""
        self._blocks.append(np.ascontiguousarray(windows, dtype=self.dtype))
        self.num_windows += len(windows)
        if sum(block.size for block in self._blocks) >= WINDOWS_PER_FILE_TOKENS:
            self._flush()

    def close(self) -> None:
        """Write what is held back."""
        self.end_stream()
        if self._blocks or not self.output.names:
            self._flush()
        self.output.close()

    def _cut(self) -> None:
        if not self._pending:
            return
        stream = np.concatenate(self._pending)
        count = max(0, (len(stream) - 1) // self.context)
        if count:
            strided = np.lib.stride_tricks.sliding_window_view(stream, self.context + 1)
            self.add_windows(strided[:: self.context][:count])
        rest = stream[count * self.context :]
        self._pending, self._num_pending = [rest], len(rest)

    def _flush(self) -> None:
        length = self.context + 1
        values = np.concatenate([block.reshape(-1) for block in self._blocks] + [np.empty(0, self.dtype)])
        column = pa.FixedSizeListArray.from_arrays(pa.array(values), length)
        self.output.add(pa.table({"tokens": column}))
        self._blocks = []


class WindowTable:
    """Windows of a folder, memory-mapped; files are found by position."""

    def __init__(self, folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        blocks: list[npt.NDArray[Any]] = []
        for file in state["_data_files"]:
            for chunk in map_table(folder / file["filename"])["tokens"].chunks:
                blocks.append(chunk.flatten().to_numpy().reshape(len(chunk), -1))
        self._blocks = blocks
        self._starts = np.cumsum([0] + [len(block) for block in blocks])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def rows(self, windows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Copies of the given windows: [num, context + 1]."""
        if len(self._blocks) == 1:
            return self._blocks[0][windows]
        owner = np.searchsorted(self._starts, windows, side="right") - 1
        return np.stack([self._blocks[b][w - self._starts[b]] for b, w in zip(owner, windows, strict=True)])
