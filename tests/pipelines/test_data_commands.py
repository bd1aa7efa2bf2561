"""``gridlaw data prepare`` and ``gridlaw data tokenizer`` by their functions."""

import json
from pathlib import Path

import pytest

from gridlaw.modules.data.embedded import python_library_texts
from gridlaw.pipelines.data_commands import describe_prepared, prepare_sources, train_tokenizer
from gridlaw.platform.errors import BadInput


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = [text for text in python_library_texts() if len(text) < 20_000][:40]
    for name, part in (("a", texts[::2]), ("b", texts[1::2])):
        rows = "".join(json.dumps({"body": text}) + "\n" for text in part)
        (tmp_path / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    return tmp_path


def test_tokenizer_then_data(folder: Path) -> None:
    trained = train_tokenizer(
        ["a.jsonl", "b.jsonl"], folder / "bpe.json", vocab_size=500, text_column="body", base_folder=folder
    )
    assert trained == {"path": str(folder / "bpe.json"), "vocab_size": 500, "documents": 40}
    shown: list[tuple[str, int, int]] = []
    prepared = prepare_sources(
        ["a.jsonl", "b.jsonl"],
        folder / "out",
        context=64,
        tokenizer="bpe.json",
        weights=[2, 1],
        text_column="body",
        heldout_fraction=0.2,
        num_workers=0,
        base_folder=folder,
        progress=lambda *state: shown.append(state),
    )
    assert prepared.folder.parent == folder / "out"
    assert prepared.vocab_size == 500
    rows = describe_prepared(prepared)
    assert [row["split"] for row in rows] == ["train 1", "train 2", "heldout"]
    assert sum(row["documents"] for row in rows) == 40
    assert rows[0]["windows"] == pytest.approx(2 * rows[1]["windows"], abs=2)
    assert rows[0]["p10"] <= rows[0]["p50"] <= rows[0]["p90"] <= rows[0]["longest"]
    assert shown


def test_trained_tokenizers_read_any_text(folder: Path) -> None:
    from gridlaw.modules.data.tokenizers import load_tokenizer, resolve_tokenizer

    train_tokenizer(["a.jsonl"], folder / "bpe.json", vocab_size=300, text_column="body", base_folder=folder)
    identity, location = resolve_tokenizer("bpe.json", base_folder=folder)
    tokenizer = load_tokenizer(identity, {identity["sha256"]: location})
    text = "naïve 汉字 \U0001f600\t\r\n<|endoftext|> \x00"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sources": ["a.jsonl"], "weights": [1, 2]}, "weights is .*1 numbers, one per source"),
        ({"sources": []}, r"data\.mixture is \[\]"),
        ({"sources": ["no.jsonl"]}, r"data\.mixture\[0\]\.source is 'no\.jsonl'"),
        ({"sources": ["a.jsonl"]}, "with the key 'text'"),
        ({"sources": ["embedded:python"], "context": 0}, r"data\.context is 0"),
    ],
)
def test_wrong_arguments_of_prepare(folder: Path, arguments: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        prepare_sources(**{"out": folder / "out", "context": 64, "base_folder": folder, **arguments})
    assert not list((folder / "out").rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 257}, "vocab size is 257; allowed: a whole number above 257"),
        ({"out": Path("bpe.txt")}, r"tokenizer file is 'bpe\.txt'"),
        ({"sources": []}, r"sources is \[\]"),
        ({"sources": ["no.jsonl"]}, r"source 1\.source is 'no\.jsonl'"),
    ],
)
def test_wrong_arguments_of_tokenizer(folder: Path, arguments: dict, message: str) -> None:
    given = {"sources": ["a.jsonl"], "out": folder / "x.json", "vocab_size": 300, "base_folder": folder}
    with pytest.raises(BadInput, match=message):
        train_tokenizer(**{**given, **arguments})
    assert not (folder / "x.json").exists()
