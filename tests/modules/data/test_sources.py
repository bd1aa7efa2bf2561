"""One corpus in many forms gives one set of documents; identities follow content and nothing else."""

import gzip
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gridlaw.modules.data import hashing
from gridlaw.modules.data.sources import CHECKED_BYTES, read_documents, resolve_source
from gridlaw.modules.errors import BadSetting


def read(entry: dict[str, Any], folder: Path) -> list[str]:
    identity, location = resolve_source(entry, base_folder=folder, field="data.mixture[0]")
    json.dumps(identity)
    return list(read_documents(identity, location))


def test_every_form_gives_the_same_documents(texts: list[str], tmp_path: Path) -> None:
    for number, text in enumerate(texts):
        (tmp_path / f"{number:03d}.txt").write_text(text, encoding="utf-8", newline="")
    rows = "".join(json.dumps({"content": text}) + "\n" for text in texts)
    (tmp_path / "all.jsonl").write_text(rows, encoding="utf-8")
    with gzip.open(tmp_path / "all.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(rows)
    pq.write_table(pa.table({"text": texts, "id": range(len(texts))}), tmp_path / "all.parquet")
    dataset = datasets.Dataset.from_dict({"text": texts})
    dataset.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(str(tmp_path / "saved-dict"))
    (tmp_path / "hub").mkdir()
    shutil.copy(tmp_path / "all.parquet", tmp_path / "hub" / "train-00000.parquet")
    for entry in (
        {"source": "*.txt"},
        {"source": "all.jsonl", "text_column": "content"},
        {"source": "all.jsonl.gz", "text_column": "content"},
        {"source": "all.parquet"},
        {"source": "hf:saved"},
        {"source": "hf:saved-dict"},
        {"source": "hf:hub"},
    ):
        assert read(entry, tmp_path) == texts, entry
    assert read({"source": "hf:saved-dict", "split": "test"}, tmp_path) == texts[:1]


def test_identity_follows_content_not_place(jsonl: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    def identity(folder: Path, pattern: str) -> dict[str, Any]:
        return resolve_source({"source": pattern}, base_folder=folder, field="f")[0]

    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for path in jsonl.glob("*.jsonl"):
        shutil.copy(path, elsewhere / path.name.replace("part", "piece"))
    assert identity(jsonl, "*.jsonl") == identity(elsewhere, "*.jsonl")
    assert identity(jsonl, str(elsewhere / "*.jsonl")) == identity(elsewhere, "*.jsonl")
    with open(elsewhere / "piece-1.jsonl", "a", encoding="utf-8") as file:
        file.write('{"text": "one more"}\n')
    assert identity(jsonl, "*.jsonl") != identity(elsewhere, "*.jsonl")


def test_changed_files_are_noticed_before_use(jsonl: Path) -> None:
    identity, location = resolve_source({"source": "*.jsonl"}, base_folder=jsonl, field="f")
    with open(jsonl / "part-1.jsonl", "a", encoding="utf-8") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(BadSetting, match="content that was declared"):
        list(read_documents(identity, location))
    (jsonl / "part-1.jsonl").unlink()
    with pytest.raises(BadSetting, match="files that were declared"):
        list(read_documents(identity, location))


def test_large_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "REMEMBER_FROM_BYTES", 10)
    path = tmp_path / "large.txt"
    path.write_text("x" * 100)
    old = time.time() - 100
    os.utime(path, (old, old))
    digest = hashing.file_sha256(path)
    with monkeypatch.context() as patch:
        patch.setattr(hashing.hashlib, "file_digest", lambda *a: pytest.fail("hashed again"))
        assert hashing.file_sha256(path) == digest
    path.write_text("y" * 100)
    os.utime(path, (old + 1, old + 1))
    assert hashing.file_sha256(path) != digest
    (tmp_path / "cache/gridlaw/file-hashes.json").write_text("broken")
    assert hashing.file_sha256(path) != digest


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r"data\.mixture\[0\]\.source; allowed: embedded:python, generate:NAME"),
        ({"source": "missing/*.jsonl"}, "nothing matches below .*Check the path"),
        ({"source": "folder"}, r"is a folder.*FOLDER/\*\.jsonl"),
        ({"source": "odd/*.jsonl"}, r"odd/gone\.jsonl is a link to nothing.*Remove it"),
        ({"source": "odd/*.fifo"}, r"odd/pipe\.fifo is no plain file"),
        ({"source": "embedded:c"}, "allowed: embedded:python"),
        (
            {"source": "embedded:python", "text_column": "x"},
            "text_column is 'x'; allowed: nothing for",
        ),
        ({"source": "generate:needles"}, "Did you mean generate:needle"),
        (
            {"source": "generate:mqar", "settings": {"pair": 3}},
            r"settings is .*a mapping with keys of documents",
        ),
        ({"source": "generate:mqar", "settings": {"pairs": 0}}, r"settings\.pairs is 0"),
        ({"source": "generate:mqar", "settings": {"pairs": 100}}, "at most 62"),
        ({"source": "hf:allenai/c4:en"}, r"data\.mixture\[0\]\.revision; allowed: the commit of allenai/c4"),
        ({"source": "hf:folder", "revision": "abc"}, "revision is 'abc'; allowed: nothing for a local folder"),
        ({"source": "hf:./nowhere"}, "hf:FOLDER of a folder that exists"),
        ({"source": "some.txt", "text_column": "x"}, "nothing for text files"),
        ({"source": "some.txt", "revision": "x"}, r"revision is 'x'; allowed: nothing for some.txt beside text_column"),
    ],
)
def test_wrong_sources_get_one_clear_message(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "some.txt").write_text("text")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/text.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "odd/gone.jsonl").symlink_to("nowhere")
    os.mkfifo(tmp_path / "odd/pipe.fifo")
    with pytest.raises(BadSetting, match=message):
        resolve_source(entry, base_folder=tmp_path, field="data.mixture[0]")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9 au lait", r"a\.txt is 'byte 0xe9 at offset 3'; allowed: UTF-8 text"),
        ("a.txt", b"  \n", r"document at .*a\.txt .*a text that is not empty"),
        ("a.jsonl", b'{"text": "x"}\nnot json\n', r"a\.jsonl line 2 is 'not json'; allowed: a JSON object"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ""}\n', r"document at .*a\.jsonl line 2"),
        ("a.jsonl", b'{"text": 3}\n', r"document at .*a\.jsonl line 1 is 3; allowed: a text"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl line 1 is '\[+'; allowed: a JSON object"),
        (
            "a.jsonl",
            rb'{"text": "\ud83d cut"}',
            r"a\.jsonl line 1 is 'half of a surrogate pair, U\+D83D'",
        ),
        ("a.jsonl", b'{"body": "x"}\n', r"line 1 is \['body'\]; allowed: a JSON object with the key 'text'"),
        ("a.jsonl", b'["x"]\n', r"line 1 is \['x'\]; allowed: a JSON object with the key"),
        ("a.jsonl", b'{"text": "x"}\n\xff\n', r"a\.jsonl line 2 is 'byte 0xff"),
        ("a.jsonl", b"", r"a\.jsonl is 'an empty file'"),
        ("a.parquet", b"PAR0", r"a\.parquet; allowed: a Parquet file"),
    ],
)
def test_wrong_files_get_one_clear_message(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadSetting, match=message):
        read({"source": name}, tmp_path)


def test_the_beginning_of_files_is_checked_when_they_are_declared(tmp_path: Path) -> None:
    """A character that is cut by the end of what is looked at is whole; what is wrong beyond it shows later."""
    (tmp_path / "cut.txt").write_bytes(b"x" + "é".encode() * CHECKED_BYTES)
    resolve_source({"source": "cut.txt"}, base_folder=tmp_path, field="data.mixture[0]")
    rows = b'{"text": "some words of some length"}\n'
    (tmp_path / "late.jsonl").write_bytes(rows * CHECKED_BYTES + b"not json\n")
    identity, location = resolve_source({"source": "late.jsonl"}, base_folder=tmp_path, field="data.mixture[0]")
    with pytest.raises(BadSetting, match=rf"late\.jsonl line {CHECKED_BYTES + 1} is 'not json'"):
        list(read_documents(identity, location))
    (tmp_path / "early.jsonl").write_bytes(rows + b"not json\n" + rows * CHECKED_BYTES)
    with pytest.raises(BadSetting, match=r"early\.jsonl line 2 is 'not json'"):
        resolve_source({"source": "early.jsonl"}, base_folder=tmp_path, field="data.mixture[0]")


def test_missing_columns_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(BadSetting, match=r"columns of .*a\.parquet is \['body', 'id'\]; allowed: a column 'text'"):
        read({"source": "a.parquet"}, tmp_path)
    datasets.Dataset.from_dict({"body": ["x"]}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(BadSetting, match=r"columns of hf:.*saved is \['body'\]"):
        read({"source": "hf:saved"}, tmp_path)
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["x"]})}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(BadSetting, match="with a split 'test'"):
        read({"source": "hf:d", "split": "test"}, tmp_path)
