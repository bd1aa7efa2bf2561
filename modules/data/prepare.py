"""From a declaration to Arrow windows on disk, once. Free of torch.

A prepared folder is content-addressed (``prepared_name``) and appears whole: it is built in ``NAME.partial`` beside it
under a lock, and renamed. In the build folder, tokenised documents are kept in numbered shards; a killed preparation
takes up after its last whole shard. Two processes that ask for the same data: one builds, the other waits.

    train/          windows of context + 1 tokens, overlapping by one (``arrow.WindowWriter``)
    heldout/        documents, each by itself: tokens, bytes of text, text
    prepared.json   declaration, fingerprint, counts, sizes of the files

The training stream is: end token, document, end token, document, …, end token. Every document so begins after an end
token, and evaluations put one before a document, too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gridlaw.modules.data.arrow import WindowTable, list_rows, map_table, sync_file
from gridlaw.modules.data.declaration import prepared_name
from gridlaw.modules.data.tokenizers import Tokenizer, load_tokenizer
from gridlaw.modules.errors import BadSetting

MANIFEST = "prepared.json"

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, units done, units in all; 0 when not known)."""


@dataclass(frozen=True, kw_only=True)
class HeldoutDocument:
    """A held-out document: ids without special tokens, its text and the text's UTF-8 bytes."""

    tokens: npt.NDArray[Any]
    num_bytes: int
    text: str


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """An opened folder. Windows and documents are mapped when first used; pickles as its folder's path."""

    folder: Path
    fingerprint: str
    declaration: dict[str, Any]
    counts: dict[str, Any]

    @property
    def vocab_size(self) -> int:
        """Words of the tokenizer, the end-of-document token included."""
        return int(self.declaration["vocab_size"])

    @property
    def end_token_id(self) -> int:
        """The end-of-document token."""
        return int(self.declaration["tokenizer"]["end_token_id"])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens."""
        identity = self.declaration["tokenizer"]
        if identity["name"] == "bytes":
            return load_tokenizer(identity, {})
        text = (self.folder / "tokenizer.json").read_text(encoding="utf-8")
        return load_tokenizer(identity, {identity["sha256"]: {"text": text}})

    @property
    def context(self) -> int:
        """Inputs of a window, in tokens."""
        return int(self.declaration["context"])

    @property
    def num_train_windows(self) -> int:
        """Windows of one epoch."""
        return int(self.counts["train"]["windows"])

    @property
    def num_train_tokens(self) -> int:
        """Tokens that are a target in one epoch: windows × context."""
        return self.num_train_windows * self.context

    @cached_property
    def train(self) -> WindowTable:
        """The training windows, memory-mapped."""
        return WindowTable(self.folder / "train")

    def train_windows(self, windows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Copies of windows by number: [num, context + 1]."""
        return self.train.rows(windows)

    @cached_property
    def heldout_documents(self) -> list[HeldoutDocument]:
        """The held-out documents, each by itself, in the source's order."""
        documents: list[HeldoutDocument] = []
        for path in sorted((self.folder / "heldout").glob("*.arrow")):
            table = map_table(path)
            columns = zip(
                list_rows(table["tokens"]), table["num_bytes"].to_pylist(), table["text"].to_pylist(), strict=True
            )
            documents += [HeldoutDocument(tokens=tokens, num_bytes=size, text=text) for tokens, size, text in columns]
        return documents

    def __reduce__(self) -> tuple[Any, ...]:
        return open_prepared, (self.folder,)


def open_prepared(folder: Path) -> PreparedData:
    """Open a finished folder; BadSetting if it is none or if a file is not as long as it was when written."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise BadSetting(
            "prepared data folder",
            seen=str(folder),
            allowed=f"a folder with a readable {MANIFEST}",
            hint="Prepare the data first (gridlaw data prepare)",
        ) from None
    for name, size in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise BadSetting(
                f"file {name} of prepared data",
                seen=f"{path.stat().st_size} bytes" if path.is_file() else "missing",
                allowed=f"{size} bytes, as written",
                hint=f"Delete {folder} and prepare again",
            )
    return PreparedData(
        folder=folder,
        fingerprint=manifest["fingerprint"],
        declaration=manifest["declaration"],
        counts=manifest["counts"],
    )


def prepare(
    declaration: dict[str, Any],
    folder: Path,
    *,
    locations: dict[str, Any] | None = None,
    num_workers: int = 0,
    progress: Progress | None = None,
) -> PreparedData:
    """Tokenise and pack what ``declaration`` declares into ``folder``; at once if the folder is there already.

    declaration: from ``declare``. folder: its name should be ``prepared_name(declaration)``. locations: from
    ``locate``, where the sources' files lie on this machine; the embedded corpus and generators need none.
    num_workers: processes that tokenise; 0 does it in this one. Raises BadSetting for data that cannot be used; a
    build folder left by a refusal is removed.
    """
    from gridlaw.modules.data.build import build

    folder = Path(folder)
    if (folder / MANIFEST).is_file():
        return _matching(folder, declaration)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadSetting(
            "folder for prepared data",
            seen=str(folder),
            allowed="a folder that is new, empty or already prepared",
            hint="Give another folder, or delete what is in it",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(folder.name + ".partial")
    with _locked(folder.with_name(folder.name + ".lock")):
        if not (folder / MANIFEST).is_file():
            partial.mkdir(exist_ok=True)
            try:
                counts = build(
                    declaration, partial, locations=locations or {}, num_workers=num_workers, progress=progress
                )
            except BadSetting:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            _finish(declaration, counts, partial, folder)
    return _matching(folder, declaration)


def _matching(folder: Path, declaration: dict[str, Any]) -> PreparedData:
    prepared = open_prepared(folder)
    if prepared.fingerprint != prepared_name(declaration):
        raise BadSetting(
            "prepared data folder",
            seen=str(folder),
            allowed="a folder made from the same declaration, or one that does not exist",
            hint="Give another folder",
        )
    return prepared


def _finish(declaration: dict[str, Any], counts: dict[str, Any], partial: Path, folder: Path) -> None:
    """Write the manifest last and make the folder visible in one rename."""
    files = {
        path.relative_to(partial).as_posix(): path.stat().st_size
        for path in sorted(partial.rglob("*"))
        if path.is_file()
    }
    manifest = {
        "fingerprint": prepared_name(declaration),
        "declaration": declaration,
        "counts": counts,
        "files": files,
    }
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    sync_file(partial / MANIFEST)
    os.replace(partial, folder)  # an empty folder in its place is replaced, too
    sync_file(folder.parent)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on this machine; the kernel frees it when the process dies.

    Its holder removes the file. Whoever waited for the removed one, which locks nobody out any more, begins again.
    """
    while True:
        with open(path, "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                removed = not os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE):  # the latter where another machine removed it
                    raise
                removed = True
            if removed:
                continue
            try:
                yield
            finally:
                with suppress(OSError):  # another user's, in a folder where only its owner may remove a file
                    path.unlink()
            return
