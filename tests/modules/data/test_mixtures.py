"""Mixtures, separate held-out sources, preparation in parallel and after a kill; refusals leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gridlaw.modules.data import build as build_module
from gridlaw.modules.data.arrow import map_table
from gridlaw.modules.data.declaration import declare, locate, prepared_name
from gridlaw.modules.data.embedded import python_library_texts
from gridlaw.modules.data.prepare import PreparedData, prepare
from gridlaw.modules.errors import BadSetting

PrepareData = Callable[..., PreparedData]


def write_jsonl(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def streams(prepared: PreparedData, count: int, start: int = 0) -> np.ndarray:
    """The token stream that windows [start, start + count) cover."""
    rows = prepared.train_windows(np.arange(start, start + count))
    return np.concatenate([rows[:1, 0], rows[:, 1:].reshape(-1)])


def test_long_and_short_text_in_equal_parts(texts: list[str], tmp_path: Path, prepare_data: PrepareData) -> None:
    write_jsonl(tmp_path / "all.jsonl", texts)
    write_jsonl(tmp_path / "heldout.jsonl", ["something else"])
    prepared = prepare_data(
        {
            "mixture": [
                {"source": "all.jsonl", "weight": 1, "min_tokens": 4000},
                {"source": "generate:mqar", "weight": 1},
            ],
            "heldout": {"source": "heldout.jsonl"},
        }
    )
    long, made = prepared.counts["train"]["parts"]
    assert long["windows_used"] == made["windows_used"] == min(long["windows"], made["windows"])
    assert prepared.num_train_windows == 2 * long["windows_used"]
    assert long["documents"] == sum(len(text.encode()) >= 4000 for text in texts)
    assert long["left_out_short"] == sum(len(text.encode()) < 4000 for text in texts)
    # Long documents in order, each whole until the part ends.
    expected = [256]
    for text in texts:
        if len(text.encode()) >= 4000:
            expected += [*text.encode(), 256]
    stream = streams(prepared, long["windows_used"])
    assert stream.tolist() == expected[: len(stream)]


def test_weights_are_shares_of_tokens(texts: list[str], tmp_path: Path, prepare_data: PrepareData) -> None:
    write_jsonl(tmp_path / "a.jsonl", texts[:30])
    write_jsonl(tmp_path / "b.jsonl", texts[30:])
    prepared = prepare_data({"mixture": [{"source": "a.jsonl", "weight": 3}, {"source": "b.jsonl", "weight": 1}]})
    first, second = (part["windows_used"] for part in prepared.counts["train"]["parts"])
    assert first / second == pytest.approx(3, abs=3 / second)


def test_heldout_source_is_kept_out_of_training(texts: list[str], tmp_path: Path, prepare_data: PrepareData) -> None:
    write_jsonl(tmp_path / "train.jsonl", [*texts, texts[3], texts[50]])
    write_jsonl(tmp_path / "heldout.jsonl", [texts[3], texts[7], texts[3]])
    prepared = prepare_data({"mixture": ["train.jsonl"], "heldout": {"source": "heldout.jsonl"}})
    assert [document.text for document in prepared.heldout_documents] == [texts[3], texts[7]]
    part = prepared.counts["train"]["parts"][0]
    assert part["left_out_heldout"] == 3
    assert part["documents"] == len(texts) - 1
    stream = bytes(np.minimum(streams(prepared, prepared.num_train_windows), 255).astype(np.uint8).tolist())
    assert texts[3].encode() not in stream
    assert texts[50].encode() in stream


def test_copies_never_cross_the_split(texts: list[str], tmp_path: Path, prepare_data: PrepareData) -> None:
    write_jsonl(tmp_path / "a.jsonl", texts * 3)
    prepared = prepare_data({"mixture": ["a.jsonl"], "heldout": {"fraction": 0.3}})
    heldout = {document.text for document in prepared.heldout_documents}
    assert 5 < len(prepared.heldout_documents) == len(heldout) < 35
    assert prepared.counts["train"]["documents"] == 3 * (len(texts) - len(heldout))


def test_document_limit(texts: list[str], tmp_path: Path, prepare_data: PrepareData) -> None:
    write_jsonl(tmp_path / "a.jsonl", texts)
    prepared = prepare_data({"mixture": ["a.jsonl"], "heldout": {"fraction": 0.3, "documents": 2}})
    assert len(prepared.heldout_documents) == 2


def test_bpe_tokens_and_a_folder_that_stands_alone(
    texts: list[str], bpe_text: str, tmp_path: Path, prepare_data: PrepareData
) -> None:
    (tmp_path / "bpe.json").write_text(bpe_text, encoding="utf-8")
    write_jsonl(tmp_path / "a.jsonl", texts)
    prepared = prepare_data({"tokenizer": "bpe.json", "mixture": ["a.jsonl"], "heldout": {"fraction": 0.2}})
    (tmp_path / "bpe.json").unlink()
    for document in prepared.heldout_documents:
        assert prepared.tokenizer.decode(document.tokens) == document.text
        assert document.num_bytes == len(document.text.encode()) > len(document.tokens)
    assert prepared.vocab_size == 600
    assert prepared.train_windows(np.array([0]))[0, 0] == prepared.end_token_id == 0


def test_processes_change_nothing(texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "CHUNK_CHARACTERS", 20_000)
    write_jsonl(tmp_path / "a.jsonl", texts)
    data = {"mixture": ["a.jsonl"]}
    declaration = declare(data, base_folder=tmp_path, context=128)
    alone, pooled = (
        prepare(declaration, tmp_path / str(workers), locations=locate(data, base_folder=tmp_path), num_workers=workers)
        for workers in (0, 2)
    )
    assert alone.counts == pooled.counts
    everything = np.arange(alone.num_train_windows)
    assert np.array_equal(alone.train_windows(everything), pooled.train_windows(everything))


KILLED = """
import sys, time, json
from pathlib import Path
from gridlaw.modules.data import build
from gridlaw.modules.data.prepare import prepare
build.CHUNK_CHARACTERS, build.CHUNKS_PER_SHARD = 20_000, 1
plain = build.tokenise_chunk
def slow(texts, tokenizer):
    time.sleep(0.05)
    return plain(texts, tokenizer)
build.tokenise_chunk = slow
declaration, locations = json.loads(sys.argv[1]), json.loads(sys.argv[2])
prepare(declaration, Path(sys.argv[3]), locations=locations)
"""


def test_killed_preparation_goes_on(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare_data: PrepareData
) -> None:
    """kill -9 in the middle of tokenising: whole shards are kept, not made again, and the result is the same."""
    write_jsonl(tmp_path / "a.jsonl", texts)
    data = {"mixture": ["a.jsonl"]}
    declaration, locations = declare(data, base_folder=tmp_path, context=128), locate(data, base_folder=tmp_path)
    folder = tmp_path / prepared_name(declaration)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, json.dumps(declaration), json.dumps(locations), str(folder)]
    )
    shards = folder.with_name(folder.name + ".partial") / "shards"
    deadline = time.time() + 60
    while len(list(shards.glob("*/shard-*.arrow"))) < 3 and time.time() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: os.stat(path).st_ino for path in shards.glob("*/shard-*.arrow")}
    assert len(kept) >= 3
    assert not folder.exists()
    num_kept = sum(len(map_table(path)) for path in kept)
    seen: list[int] = []
    plain = build_module.tokenise_chunk
    monkeypatch.setattr(
        build_module, "tokenise_chunk", lambda texts, tokenizer: seen.append(len(texts)) or plain(texts, tokenizer)
    )
    resumed = prepare(declaration, folder, locations=locations)
    assert sum(seen) == len(texts) - num_kept
    monkeypatch.undo()
    fresh = prepare(declaration, tmp_path / "fresh", locations=locations)
    assert resumed.counts == fresh.counts
    everything = np.arange(fresh.num_train_windows)
    assert np.array_equal(resumed.train_windows(everything), fresh.train_windows(everything))


@pytest.mark.parametrize(
    ("texts_given", "data", "message"),
    [
        (["short"], {"heldout": {"fraction": 0.5}}, "data"),
        (["a b c"] * 3, {"heldout": {"source": "other.jsonl"}}, "more than the context of 128 tokens"),
        (["x" * 5000], {"mixture": [{"source": "a.jsonl", "min_tokens": 6000}], "heldout": {"source": "other.jsonl"}},
         "0 training tokens.*lower min_tokens"),
        (["x" * 5000], {"heldout": {"source": "bad.jsonl"}}, r"bad\.jsonl line 1"),
        (["x" * 5000, "y" * 5000], {"heldout": {"fraction": 1e-9}}, r"data\.heldout is 'no document'"),
        (["x" * 500], {"mixture": [{"source": "a.jsonl", "weight": 1e-9}, {"source": "generate:mqar"}],
                       "heldout": {"source": "other.jsonl"}}, "data.mixture weights"),
    ],
)  # fmt: skip
def test_refusals_leave_nothing(
    texts_given: list[str], data: dict, message: str, tmp_path: Path, prepare_data: PrepareData
) -> None:
    write_jsonl(tmp_path / "a.jsonl", texts_given)
    write_jsonl(tmp_path / "other.jsonl", ["held out"])
    (tmp_path / "bad.jsonl").write_text("nothing\n")
    with pytest.raises(BadSetting, match=message):
        prepare_data({"mixture": ["a.jsonl"], **data})
    left = list((tmp_path / "prepared").rglob("*"))
    assert left == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"mixtur": []}, r"data\.mixtur; .*Did you mean mixture"),
        ({"mixture": []}, r"data\.mixture is \[\]"),
        ({"mixture": [{"source": "embedded:python", "weight": 0}]}, r"data\.mixture\[0\]\.weight is 0"),
        ({"mixture": [{"source": "embedded:python", "weight": float("inf")}]}, "weight is inf"),
        ({"mixture": [{"source": "embedded:python", "min_tokens": 1.5}]}, "min_tokens is 1.5"),
        ({"mixture": [{"source": "embedded:python", "wait": 1}]}, "Did you mean weight"),
        ({"heldout": {"fraction": 1.0}}, r"data\.heldout\.fraction is 1\.0"),
        ({"heldout": {"fraction": 0.1, "source": "embedded:python"}}, "either source or fraction"),
        ({"heldout": {"documents": 0}}, r"data\.heldout\.documents is 0"),
        ({"document_mask": "yes"}, r"data\.document_mask is 'yes'"),
        ({"max_epochs": 0}, r"data\.max_epochs is 0"),
    ],
)
def test_wrong_declarations_get_one_clear_message(data: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=message):
        declare(data, base_folder=tmp_path, context=128)


@pytest.mark.parametrize("context", [0, -1, True, 1.5, "512"])
def test_wrong_contexts(context: object, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"data\.context is"):
        declare({}, base_folder=tmp_path, context=context)  # type: ignore[arg-type]


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    """open_lm PR #77."""
    from gridlaw.modules.data.tokenizers import BytesTokenizer

    class Broken(BytesTokenizer):
        vocab_size = 100

    with pytest.raises(BadSetting, match=r"token id is .*allowed: 0 to 99"):
        build_module.tokenise_chunk(python_library_texts()[:1], Broken())
