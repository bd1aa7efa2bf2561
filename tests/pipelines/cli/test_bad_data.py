"""Text that cannot be trained on, from the command line: one message with file and line, exit code 2, nothing left."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridlaw.pipelines.cli.main import main

FILES: dict[str, tuple[str, bytes, list[str]]] = {
    "not UTF-8": ("a.txt", b"caf\xe9 au lait", ["a.txt", "0xe9", "UTF-8"]),
    "an empty document": ("a.jsonl", b'{"text": "x"}\n{"text": " "}\n', ["a.jsonl line 2", "not empty"]),
    "a line that is not JSON": ("a.jsonl", b'{"text": "x"}\nnot json\n', ["a.jsonl line 2", "not json", "JSON"]),
    "a line without the column": ("a.jsonl", b'{"body": "x"}\n', ["a.jsonl line 1", "body", "text"]),
    "an empty file": ("a.jsonl", b"", ["a.jsonl", "empty"]),
    "no Parquet at all": ("a.parquet", b"PAR0", ["a.parquet", "Parquet"]),
    "too little text": ("a.txt", b"short", ["data"]),
}


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """``gridlaw data prepare`` ends with 2 and leaves no file."""
    with pytest.raises(SystemExit) as end:
        main(["data", "prepare", *arguments, "--out", "out", "--context", "64", "--workers", "0"])
    assert end.value.code == 2
    left = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert left == []
    told = capsys.readouterr()
    assert told.out == "" and "Traceback" not in told.err
    return told.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", FILES)
def test_files_that_cannot_be_read(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, content, words = FILES[kind]
    (folder / name).write_bytes(content)
    told = refused(folder, capsys, name)
    for word in words:
        assert word in told


def test_a_parquet_file_without_the_text_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"body": ["x"], "id": [1]}), folder / "a.parquet")
    told = refused(folder, capsys, "a.parquet")
    assert "a.parquet" in told and "'body', 'id'" in told and "'text'" in told
