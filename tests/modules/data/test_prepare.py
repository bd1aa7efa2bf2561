"""Preparation: exact windows, separate splits, whole folders only."""

import json
import multiprocessing
from pathlib import Path

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridlaw.modules.data import build as build_module
from gridlaw.modules.data.arrow import WindowTable, WindowWriter
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.embedded import python_library_files, python_library_texts
from gridlaw.modules.data.prepare import PreparedData, open_prepared, prepare
from gridlaw.modules.data.shares import held_out_by_hash, share_windows
from gridlaw.modules.errors import BadSetting


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    declaration = declare({}, base_folder=Path("."), context=512)
    return prepare(declaration, tmp_path_factory.mktemp("data") / prepared_name(declaration))


def test_embedded_corpus_is_real_text_without_tests() -> None:
    names = [path.as_posix() for path in python_library_files()]
    assert not [name for name in names if "/test/" in name or "/tests/" in name or "idlelib" in name]
    assert not [name for name in names if "site-packages" in name or "_sysconfigdata" in name]
    assert any(name.endswith("/argparse.py") for name in names)
    assert 5e6 < sum(len(text) for text in python_library_texts()) < 3e7


def test_windows_overlap_by_one_token_and_lose_only_the_tail(prepared: PreparedData) -> None:
    windows = prepared.train_windows(np.arange(prepared.num_train_windows))
    assert windows.shape == (prepared.num_train_windows, 513)
    assert windows.dtype == np.uint16
    assert np.array_equal(windows[1:, 0], windows[:-1, -1])
    stream = np.concatenate([windows[:1, 0], windows[:, 1:].reshape(-1)])
    expected: list[int] = [256]
    kept = [text for text in python_library_texts() if text.encode() not in heldout_bytes(prepared)]
    for text in kept:
        expected += text.encode()
        expected.append(256)
    assert np.array_equal(stream, np.array(expected[: len(stream)]))
    assert 0 <= len(expected) - len(stream) < 512
    assert prepared.num_train_tokens == len(stream) - 1


def heldout_bytes(prepared: PreparedData) -> set[bytes]:
    return {document.text.encode() for document in prepared.heldout_documents}


def test_heldout_documents_are_whole_and_separate(prepared: PreparedData) -> None:
    documents = prepared.heldout_documents
    assert len(documents) == prepared.counts["heldout"]["documents"] > 10
    for document in documents:
        assert bytes(document.tokens.tolist()).decode() == document.text
        assert document.num_bytes == len(document.tokens)
    num_all = len(set(python_library_texts()))
    num_train = len(set(python_library_texts()) - {document.text for document in documents})
    assert num_train + len(documents) == num_all


@given(documents=st.lists(st.integers(0, 40), max_size=30), context=st.integers(1, 17), streams=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_packing_any_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: list[int], context: int, streams: int
) -> None:
    folder = tmp_path_factory.mktemp("windows")
    writer = WindowWriter(folder, context=context, dtype=np.dtype(np.uint16))
    expected = []
    for number in range(streams):
        stream = np.arange(sum(documents), dtype=np.uint16) + number
        for part in np.split(stream, np.cumsum(documents)[:-1] if documents else []):
            writer.add(part)
        writer.end_stream()
        count = max(0, (len(stream) - 1) // context)
        expected += [stream[w * context : w * context + context + 1] for w in range(count)]
    writer.close()
    table = WindowTable(folder)
    assert len(table) == len(expected) == writer.num_windows
    if expected:
        assert np.array_equal(table.rows(np.arange(len(table))), np.stack(expected))


def test_many_files_read_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridlaw.modules.data.arrow.WINDOWS_PER_FILE_TOKENS", 40)
    monkeypatch.setattr("gridlaw.modules.data.arrow.BATCH_TOKENS", 16)
    writer = WindowWriter(tmp_path, context=4, dtype=np.dtype(np.uint16))
    for start in range(0, 400, 10):
        writer.add(np.arange(start, start + 10))
    writer.close()
    assert len(writer.output.names) > 3
    order = np.random.default_rng(0).permutation(writer.num_windows)
    assert np.array_equal(WindowTable(tmp_path).rows(order), order[:, None] * 4 + np.arange(5))
    assert len(datasets.load_from_disk(str(tmp_path))) == writer.num_windows


def test_datasets_opens_the_folders(prepared: PreparedData) -> None:
    train = datasets.load_from_disk(str(prepared.folder / "train"))
    assert len(train) == prepared.num_train_windows
    assert train[5]["tokens"] == prepared.train_windows(np.array([5]))[0].tolist()
    heldout = datasets.load_from_disk(str(prepared.folder / "heldout"))
    assert heldout[0]["text"] == prepared.heldout_documents[0].text


def test_second_time_does_no_work(prepared: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "build", lambda *a, **k: pytest.fail("tokenised again"))
    again = prepare(prepared.declaration, prepared.folder)
    assert again.counts == prepared.counts


def test_truncated_file_is_noticed(prepared: PreparedData, tmp_path: Path) -> None:
    folder = tmp_path / prepared.fingerprint
    prepare(prepared.declaration, folder)
    file = next((folder / "train").glob("*.arrow"))
    with open(file, "r+b") as handle:
        handle.truncate(file.stat().st_size - 100)
    with pytest.raises(BadSetting, match="as written"):
        open_prepared(folder)


def test_folder_with_other_things_is_left_alone(prepared: PreparedData, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(BadSetting, match="new, empty or already prepared"):
        prepare(prepared.declaration, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"
    other = declare({}, base_folder=Path("."), context=128)
    with pytest.raises(BadSetting, match="same declaration"):
        prepare(other, prepared.folder)


def test_two_processes_make_one_folder(tmp_path: Path) -> None:
    declaration = declare({}, base_folder=Path("."), context=512)
    folder = tmp_path / prepared_name(declaration)
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=prepare, args=(declaration, folder)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert open_prepared(folder).num_train_windows > 1000
    assert not folder.with_name(folder.name + ".partial").exists()


def test_declaration_is_identity_without_paths(tmp_path: Path) -> None:
    here = declare({}, base_folder=Path("."), context=512)
    there = declare({"tokenizer": "bytes", "max_epochs": 4}, base_folder=tmp_path, context=512)
    assert here == there
    assert "/" not in json.dumps(here)
    masked = declare({"document_mask": True}, base_folder=tmp_path, context=512)
    assert masked != here
    assert prepared_name(masked) == prepared_name(here)
    assert prepared_name(declare({}, base_folder=Path("."), context=256)) != prepared_name(here)


def test_heldout_share_is_about_the_fraction() -> None:
    digests = [np.random.default_rng(i).bytes(16) for i in range(4000)]
    share = np.mean([held_out_by_hash(digest, 0.05) for digest in digests])
    assert abs(share - 0.05) < 0.015


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    available=st.lists(st.integers(200, 100_000), min_size=4, max_size=4),
)
def test_shares_follow_the_weights(weights: list[float], available: list[int]) -> None:
    available = available[: len(weights)]
    shares = share_windows(weights, available)
    assert all(share <= count for share, count in zip(shares, available, strict=True))
    assert any(share == count for share, count in zip(shares, available, strict=True))
    scale = sum(shares) / sum(weights)
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - scale * weight) <= 1 + len(weights)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadSetting, match="at least one window"):
        share_windows([1000.0, 1.0], [10, 10])
