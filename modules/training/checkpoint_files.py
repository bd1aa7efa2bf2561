"""Checkpoints of one run as files: written whole or not at all, checked before use, pruned with care. Imports no torch.

A checkpoint is ``step-000000240.ckpt`` with ``step-000000240.ckpt.json`` beside it, which holds size, SHA-256 and step
and is written first: a checkpoint without a matching sidecar is not valid, and neither a cut-off file nor a flipped bit
passes. Every file appears by a rename within its own folder after an fsync, so that a kill at any moment leaves either
the old or the new one, also where the temporary folder is another file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

SUFFIX = ".ckpt"
SIDECAR = ".json"
MICRO_BATCH_FILE = "micro_batch.json"
"""Beside the checkpoints: the micro-batch that fitted into memory."""
_NAME = re.compile(r"step-(\d{9})\.ckpt")
_TEMPORARY = ".tmp-"


def checkpoint_name(step: int) -> str:
    """The file name of the checkpoint after ``step`` optimizer steps."""
    return f"step-{step:09d}{SUFFIX}"


def step_of(path: Path) -> int | None:
    """The step in a checkpoint's file name, or None if it is none."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


class HashingFile:
    """A binary file that hashes what is written through it; for writers that only append."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.num_bytes = file, hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``."""
        self._hash.update(data)
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error  # torch.save turns it into an error of its own that does not say why
            raise
        self.num_bytes += written
        return written

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        self._file.flush()

    @property
    def sha256(self) -> str:
        """Of all that was written."""
        return self._hash.hexdigest()


def write_whole(
    path: Path, write: Callable[[HashingFile], None], *, before_rename: Callable[[HashingFile], None] | None = None
) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then fsync and rename it to ``path``.

    before_rename: called with the finished file's hash and size, while ``path`` still is as it was.
    An error or a full disk leaves ``path`` as it was and no temporary file. The folder must be there: one that vanished
    with its disk is not made again.
    """
    temporary = path.with_name(f"{path.name}{_TEMPORARY}{uuid.uuid4().hex[:12]}")
    hashing: HashingFile | None = None
    try:
        with temporary.open("wb") as file:
            hashing = HashingFile(file)
            write(hashing)
            file.flush()
            os.fsync(file.fileno())
        if before_rename is not None:
            before_rename(hashing)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        cause = error if isinstance(error, OSError) else hashing.error if hashing is not None else None
        if cause is not None and cause.errno is not None:
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, whole or not at all."""
    data = (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
    write_whole(path, lambda file: void(file.write(data)))


def void(_: object) -> None:
    """Drop a value where a callable must return None."""


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sidecar(path: Path) -> Path:
    """The file with size and hash beside a checkpoint."""
    return path.with_name(path.name + SIDECAR)


def fault(path: Path) -> str | None:
    """Why the checkpoint at ``path`` cannot be used, or None if it is whole."""
    try:
        expected = json.loads(sidecar(path).read_text(encoding="utf-8"))
        num_bytes, sha256 = expected["bytes"], expected["sha256"]
    except FileNotFoundError:
        return "its checksum file is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its checksum file cannot be read ({type(error).__name__})"
    try:
        with path.open("rb") as file:
            actual = os.fstat(file.fileno()).st_size
            if actual != num_bytes:
                return f"it has {actual} bytes instead of {num_bytes}"
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return "its content does not match its checksum"
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    return None


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of all checkpoint files in ``folder``, oldest step first, valid or not."""
    if not folder.is_dir():
        return []
    found = [(step, path) for path in folder.iterdir() if (step := step_of(path)) is not None]
    return sorted(found)


def complete_steps(names: Iterable[str]) -> list[int]:
    """Steps, rising, of the checkpoints that are there with their sidecars, by the names of a folder's files."""
    there = set(names)
    steps = (step_of(Path(name)) for name in there if name + SIDECAR in there)
    return sorted(step for step in steps if step is not None)


def newest_valid(folder: Path, *, until_step: int | None = None) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, of step ``until_step`` at most, and a sentence for each damaged one passed over."""
    damaged: list[str] = []
    for step, path in reversed(checkpoints(folder)):
        if until_step is not None and step > until_step:
            continue
        reason = fault(path)
        if reason is None:
            return path, damaged
        damaged.append(f"{path}: {reason}")
    return None, damaged


def remove(path: Path) -> None:
    """Delete a checkpoint and its sidecar; one that is gone already is fine."""
    for file in (path, sidecar(path)):
        file.unlink(missing_ok=True)


def prune(folder: Path, *, keep_steps: Iterable[int], keep_last: int) -> list[Path]:
    """Delete checkpoints but those of ``keep_steps`` and the ``keep_last`` newest, and left-over temporary files.

    Only ever called by the one process that writes the folder, so a temporary file here is a dead attempt's.
    """
    kept = set(keep_steps)
    others = [path for step, path in checkpoints(folder) if step not in kept]
    removed = others[: max(0, len(others) - keep_last)]
    for path in removed:
        remove(path)
    for path in folder.glob(f"*{_TEMPORARY}*"):
        path.unlink(missing_ok=True)
    return removed
