"""SHA-256 of files, remembered for large ones by path, size and modification time.

The memory is a small JSON file in the user's cache folder. It only saves time: unreadable, read-only or lost, files are
hashed again. A file changed within two seconds of being hashed is not remembered, since its time could repeat.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

REMEMBER_FROM_BYTES = 16 * 1024 * 1024
_SETTLED_SECONDS = 2.0


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    status = path.stat()
    remember = status.st_size >= REMEMBER_FROM_BYTES
    key, stamp = str(path.resolve()), [status.st_size, status.st_mtime_ns]
    if remember:
        known = _read_memory().get(key)
        if known and known[:2] == stamp:
            return str(known[2])
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if remember and time.time() - status.st_mtime > _SETTLED_SECONDS:
        _write_memory({**_read_memory(), key: [*stamp, digest]})
    return digest


def _memory_path() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gridlaw" / "file-hashes.json"


def _read_memory() -> dict[str, list[int | str]]:
    try:
        memory = json.loads(_memory_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _write_memory(memory: dict[str, list[int | str]]) -> None:
    path = _memory_path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(memory, file)
        os.replace(aside, path)
