"""Where documents come from: each source has an identity (by content) and, on this machine, a location.

    embedded:python            the interpreter's standard library (``embedded``)
    generate:NAME              made text: needle, mqar, passkey, repeat (``generators``)
    hf:NAME[:SUBSET]           a Hugging Face dataset at a revision; hf:FOLDER a local one, by content
    anything else              a path or glob of text files (a document each), JSONL or Parquet files (a document a row)

``resolve_source`` reads a source's form (files are hashed and their first rows checked, nothing is tokenised);
``read_documents`` yields the texts in a fixed order. Empty documents are refused, with their place.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gridlaw.modules.data import embedded, generators
from gridlaw.modules.data.absent import note_absent
from gridlaw.modules.data.files import check_beginning, file_format, read_file
from gridlaw.modules.data.hashing import file_sha256
from gridlaw.modules.errors import BadSetting

SOURCE_KEYS = ("source", "revision", "split", "text_column", "settings")
DEFAULT_TEXT_COLUMN = "text"
DEFAULT_SPLIT = "train"
CHECKED_FILES, CHECKED_BYTES = 1000, 64 * 1024
"""What is looked at before anything starts; mistakes further on are found when the text is tokenised."""

Identity = dict[str, Any]
Location = dict[str, Any]


def resolve_source(entry: dict[str, Any], *, base_folder: Path, field: str) -> tuple[Identity, Location]:
    """(identity, location) of one ``{source: …}`` entry. BadSetting says which key is wrong.

    A location is {} where the identity alone finds the text.
    """
    source = entry.get("source")
    if not isinstance(source, str) or not source.strip():
        raise BadSetting(
            f"{field}.source", seen=source, allowed="embedded:python, generate:NAME, hf:NAME or a path or glob of files"
        )
    kind, _, rest = source.partition(":")
    if kind == "embedded":
        _only(entry, field, ())
        return _resolve_embedded(rest, field)
    if kind == "generate":
        _only(entry, field, ("settings",))
        return generators.resolve(rest, entry.get("settings"), field=field), {}
    if kind == "hf":
        _only(entry, field, ("revision", "split", "text_column"))
        return _resolve_hugging_face(rest, entry, base_folder=base_folder, field=field)
    _only(entry, field, ("text_column",))
    return _resolve_files(source, entry, base_folder=base_folder, field=field)


def read_documents(identity: Identity, location: Location) -> Iterator[str]:
    """The texts of a source in order; BadSetting for a text that cannot be used, or another content than declared."""
    kind = identity["kind"]
    if kind == "embedded":
        if identity["sha256"] != embedded.python_library_sha256():
            raise BadSetting(
                "embedded:python",
                seen="the standard library of another Python version",
                allowed="the one that was declared",
                hint="Prepare with the interpreter that declared the data, or read data that it prepared",
            )
        return iter(embedded.python_library_texts())
    if kind == "generate":
        return generators.documents(identity)
    if kind == "hf":
        from gridlaw.modules.data.hugging_face import read_rows

        return read_rows(identity, location)
    return _read_files(identity, location)


def _only(entry: dict[str, Any], field: str, allowed: tuple[str, ...]) -> None:
    """BadSetting for a key that this kind of source would ignore."""
    for key in SOURCE_KEYS[1:]:
        if entry.get(key) is not None and key not in allowed:
            raise BadSetting(
                f"{field}.{key}",
                seen=entry[key],
                allowed=f"nothing for {entry['source']}" + (f" beside {', '.join(allowed)}" if allowed else ""),
                hint="Remove it",
            )


def _resolve_embedded(name: str, field: str) -> tuple[Identity, Location]:
    if name != "python":
        raise BadSetting(f"{field}.source", seen=f"embedded:{name}", allowed="embedded:python")
    return {"kind": "embedded", "name": "python", "sha256": embedded.python_library_sha256()}, {}


def _resolve_hugging_face(
    rest: str, entry: dict[str, Any], *, base_folder: Path, field: str
) -> tuple[Identity, Location]:
    split = _text(entry, "split", DEFAULT_SPLIT, field)
    common = {"kind": "hf", "split": split, "text_column": _text(entry, "text_column", DEFAULT_TEXT_COLUMN, field)}
    folder = base_folder / rest
    if rest and folder.is_dir():
        if entry.get("revision") is not None:
            raise BadSetting(
                f"{field}.revision",
                seen=entry["revision"],
                allowed="nothing for a local folder, which is declared by its content",
                hint="Remove it",
            )
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {**common, "sha256": _content(files, [p.relative_to(folder).as_posix() for p in files])}, {
            "folder": str(folder.resolve())
        }
    name, _, subset = rest.partition(":")
    if not name or name.startswith((".", "/")):
        raise BadSetting(
            f"{field}.source", seen=f"hf:{rest}", allowed="hf:NAME, hf:NAME:SUBSET or hf:FOLDER of a folder that exists"
        )
    if entry.get("revision") is None:
        raise BadSetting(
            f"{field}.revision",
            allowed=f"the commit of {name} to use, as text",
            hint="A dataset without a revision may change under a finished run",
        )
    return {**common, "name": name, "subset": subset or None, "revision": _text(entry, "revision", "", field)}, {}


def _no_files(paths: list[Path], pattern: str, *, base_folder: Path, field: str) -> BadSetting:
    """What a path or glob matched that cannot be read as text, or that it matched nothing."""
    found, hint = f"nothing matches below {base_folder}", "Check the path"
    if paths:
        path = next(path for path in paths if not path.is_file())
        kind = "a folder" if path.is_dir() else "no plain file" if path.exists() else "a link to nothing"
        found = f"{path} is {kind}"
        hint = "Name the files in the folder, as in FOLDER/*.jsonl" if path.is_dir() else "Remove it, or name others"
    return BadSetting(f"{field}.source", seen=pattern, allowed=f"a path or glob of existing files; {found}", hint=hint)


def _resolve_files(pattern: str, entry: dict[str, Any], *, base_folder: Path, field: str) -> tuple[Identity, Location]:
    whole = str(base_folder / pattern)
    matched = [whole] if Path(whole).exists() else glob.glob(whole, recursive=True)
    paths = sorted(Path(path) for path in matched)
    if not paths and note_absent(field, pattern):
        return {"kind": "files", "absent": pattern}, {}
    if not paths or not all(path.is_file() for path in paths):
        raise _no_files(paths, pattern, base_folder=base_folder, field=field)
    formats = [file_format(path) for path in paths]
    identity: Identity = {"kind": "files", "sha256": _content(paths, formats)}
    if set(formats) != {"text"}:
        identity["text_column"] = _text(entry, "text_column", DEFAULT_TEXT_COLUMN, field)
    elif entry.get("text_column") is not None:
        raise BadSetting(f"{field}.text_column", seen=entry["text_column"], allowed="nothing for text files")
    for path in paths[:CHECKED_FILES]:
        check_beginning(path, text_column=identity.get("text_column", DEFAULT_TEXT_COLUMN), num_bytes=CHECKED_BYTES)
    return identity, {"paths": [str(path.resolve()) for path in paths]}


def _text(entry: dict[str, Any], key: str, default: str, field: str) -> str:
    value = entry.get(key)
    if value is None:
        return default
    if not isinstance(value, str) or not value:
        raise BadSetting(f"{field}.{key}", seen=value, allowed="a text")
    return value


def _content(paths: list[Path], labels: list[str]) -> str:
    """One hash over files in order: what they hold and how they are read, not where they lie."""
    whole = hashlib.sha256()
    for path, label in zip(paths, labels, strict=True):
        whole.update(f"{label}:{file_sha256(path)}\n".encode())
    return whole.hexdigest()


def _read_files(identity: Identity, location: Location) -> Iterator[str]:
    paths = [Path(path) for path in location.get("paths", [])]
    missing = [str(path) for path in paths if not path.is_file()]
    if not paths or missing:
        raise BadSetting(
            "files of a source",
            seen=missing or "no location",
            allowed="the files that were declared",
            hint="Prepare on a machine that has them",
        )
    if _content(paths, [file_format(path) for path in paths]) != identity["sha256"]:
        raise BadSetting(
            "files of a source",
            seen=[str(path) for path in paths[:3]],
            allowed="files with the content that was declared",
            hint="They changed since: start again, so that they are declared as they are now",
        )
    for path in paths:
        yield from read_file(path, text_column=identity.get("text_column", DEFAULT_TEXT_COLUMN))
