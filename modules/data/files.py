"""Documents in local files: text (one each), JSONL and Parquet (one a row). Mistakes name file and line."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gridlaw.modules.errors import BadSetting

_ROWS_PER_BATCH = 1024


def file_format(path: Path) -> str:
    """jsonl, parquet or text, by the file's name."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    return "parquet" if name.endswith(".parquet") else "text"


def read_file(path: Path, *, text_column: str) -> Iterator[str]:
    """The documents of one file in order; BadSetting names file and line of what cannot be used."""
    readers = {"jsonl": _read_jsonl, "parquet": _read_parquet}
    reader = readers.get(file_format(path))
    return _read_text(path) if reader is None else reader(path, text_column)


def check_beginning(path: Path, *, text_column: str, num_bytes: int) -> None:
    """BadSetting for what cannot be used in about the first ``num_bytes`` of a file; the rest is not read."""
    if file_format(path) == "text":
        _check_text(path, num_bytes)
        return
    size = 0
    for text in read_file(path, text_column=text_column):
        size += len(text)
        if size >= num_bytes:
            return


def check_document(text: Any, place: str) -> str:
    """The text if it is one and says something; else BadSetting with its place."""
    if not isinstance(text, str):
        raise BadSetting(f"document at {place}", seen=text, allowed="a text")
    if not text.strip():
        raise BadSetting(f"document at {place}", seen=text, allowed="a text that is not empty", hint="Remove the row")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON's escapes can say what UTF-8 cannot
        raise BadSetting(
            f"document at {place}",
            seen=f"half of a surrogate pair, U+{ord(text[error.start]):04X}",
            allowed="text that UTF-8 can hold",
            hint="Something cut a character in two: mend or remove the row",
        ) from None
    return text


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    zipped = path.name.lower().endswith(".gz")
    try:
        with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadSetting(str(path), allowed="a whole gzip file", hint=str(error)) from None


def _check_text(path: Path, num_bytes: int) -> None:
    with _open(path) as file:
        raw = file.read(num_bytes)
        whole = not file.read(1)
    text = _decode(raw, str(path), whole=whole)
    if whole:
        check_document(text, str(path))


def _decode(raw: bytes, place: str, *, whole: bool = True) -> str:
    """whole: otherwise it may end inside a character."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(raw, final=whole)
    except UnicodeDecodeError as error:
        raise BadSetting(
            place,
            seen=f"byte 0x{raw[error.start]:02x} at offset {error.start}",
            allowed="UTF-8 text",
            hint="Convert the file to UTF-8 first",
        ) from None


def _read_text(path: Path) -> Iterator[str]:
    with _open(path) as file:
        yield check_document(_decode(file.read(), str(path)), str(path))


def _read_jsonl(path: Path, text_column: str) -> Iterator[str]:
    number = 0
    with _open(path) as file:
        for number, raw in enumerate(file, start=1):
            place = f"{path} line {number}"
            line = _decode(raw, place)
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # the second: nested without end
                raise BadSetting(place, seen=line[:60].rstrip("\n"), allowed="a JSON object", hint=str(error)) from None
            if not isinstance(row, dict) or text_column not in row:
                raise BadSetting(
                    place,
                    seen=sorted(row) if isinstance(row, dict) else row,
                    allowed=f"a JSON object with the key {text_column!r}",
                    hint="Set text_column to the key that holds the text",
                )
            yield check_document(row[text_column], place)
    if number == 0:
        raise BadSetting(str(path), seen="an empty file", allowed="one JSON object a line")


def _read_parquet(path: Path, text_column: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadSetting(str(path), allowed="a Parquet file", hint=str(error)) from None
    with file:
        if text_column not in file.schema_arrow.names:
            raise BadSetting(
                f"columns of {path}",
                seen=file.schema_arrow.names,
                allowed=f"a column {text_column!r}",
                hint="Set text_column to the column that holds the text",
            )
        row = 0
        for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=[text_column]):
            for text in batch.column(0).to_pylist():
                row += 1
                yield check_document(text, f"{path} row {row}")
