"""The corpus that is on every machine: the running interpreter's standard-library sources.

Left out are tests, idlelib, installed packages and files that a build generates (they differ between two builds of one
Python version). About 12 MB. It enters identities by content: another Python version is another corpus.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from functools import cache
from pathlib import Path

LEFT_OUT_FOLDERS = frozenset({"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"})
GENERATED_PREFIX = "_sysconfigdata"


def python_library_files(root: Path | None = None) -> list[Path]:
    """The corpus' files, sorted by their path below the standard library, so that every machine lists them alike."""
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT_FOLDERS and not name.startswith("config-")]
        found += [
            Path(folder) / name for name in names if name.endswith(".py") and not name.startswith(GENERATED_PREFIX)
        ]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def python_library_texts(root: Path | None = None) -> list[str]:
    """The documents: one per file, empty files and files that are not UTF-8 left out."""
    texts = []
    for path in python_library_files(root):
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            texts.append(text)
    return texts


def sized(text: str) -> tuple[int, bytes]:
    """(UTF-8 bytes, SHA-256) of a text."""
    raw = text.encode("utf-8")
    return len(raw), hashlib.sha256(raw).digest()


@cache
def python_library_sizes() -> tuple[tuple[int, bytes], ...]:
    """(bytes, SHA-256) of each document in order."""
    return tuple(sized(text) for text in python_library_texts())


@cache
def python_library_sha256() -> str:
    """The corpus' identity: a hash over the documents' hashes in order; paths do not enter."""
    return hashlib.sha256(b"".join(digest for _, digest in python_library_sizes())).hexdigest()
