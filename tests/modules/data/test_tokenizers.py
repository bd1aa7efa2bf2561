"""Tokenizers: round trips, offsets, end tokens, identities."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridlaw.modules.data.tokenizers import (
    BytesTokenizer,
    Tokenizer,
    load_tokenizer,
    resolve_tokenizer,
    token_dtype,
)
from gridlaw.modules.errors import BadSetting


def load(path: Path) -> Tokenizer:
    identity, location = resolve_tokenizer(path.name, base_folder=path.parent)
    json.dumps(identity)
    return load_tokenizer(identity, {identity["sha256"]: location})


@pytest.fixture
def bpe(bpe_text: str, tmp_path: Path) -> Tokenizer:
    (tmp_path / "tokenizer.json").write_text(bpe_text, encoding="utf-8")
    return load(tmp_path / "tokenizer.json")


@given(text=st.text())
def test_bytes_round_trip_with_offsets(text: str) -> None:
    tokenizer = BytesTokenizer()
    tokens, offsets = tokenizer.encode_with_offsets(text)
    assert tokenizer.decode(tokens) == text
    assert bytes(tokens.tolist()) == text.encode()
    for character in range(len(text)):
        own = tokens[(offsets[:, 0] <= character) & (offsets[:, 1] > character)]
        assert bytes(own.tolist()).decode() == text[character]


def test_bpe_round_trip_with_offsets(bpe: Tokenizer, texts: list[str]) -> None:
    for text in texts[:10]:
        tokens, offsets = bpe.encode_with_offsets(text)
        assert bpe.decode(tokens) == text
        assert np.array_equal(tokens, bpe.encode(text))
        assert offsets[0, 0] == 0
        assert offsets[-1, 1] == len(text)
    assert bpe.dtype == np.uint16


def test_special_tokens_in_a_text_are_text(bpe: Tokenizer) -> None:
    """A document that mentions the end token must not end there."""
    tokens = bpe.encode("before <|endoftext|> after")
    assert bpe.end_token_id not in tokens
    assert bpe.decode(tokens) == "before <|endoftext|> after"


def test_end_token_is_found_or_added(bpe_text: str, tmp_path: Path) -> None:
    (tmp_path / "named.json").write_text(bpe_text, encoding="utf-8")
    named = resolve_tokenizer("named.json", base_folder=tmp_path)[0]
    assert (named["vocab_size"], named["end_token_id"]) == (600, 0)
    without = json.loads(bpe_text)
    without["added_tokens"][0]["content"] = "<pad>"
    without["model"]["vocab"] = {
        ("<pad>" if word == "<|endoftext|>" else word): number for word, number in without["model"]["vocab"].items()
    }
    (tmp_path / "added.json").write_text(json.dumps(without), encoding="utf-8")
    added = resolve_tokenizer("added.json", base_folder=tmp_path)[0]
    assert (added["vocab_size"], added["end_token_id"]) == (601, 600)
    assert added["sha256"] != named["sha256"]


def test_hugging_face_folder_says_its_end_token(bpe_text: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(bpe_text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "a"}}', encoding="utf-8")
    identity, _ = resolve_tokenizer("folder", base_folder=tmp_path)
    assert identity["end_token_id"] == json.loads(bpe_text)["model"]["vocab"]["a"]
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<none>"}', encoding="utf-8")
    with pytest.raises(BadSetting, match=r"end token of .* is '<none>'"):
        resolve_tokenizer("folder", base_folder=tmp_path)


def test_widths_follow_the_vocabulary() -> None:
    """open_lm PR #77: token ids wrap in uint16."""
    assert [token_dtype(size).itemsize for size in (1, 256, 257, 65_536, 65_537, 2**32)] == [1, 1, 2, 2, 4, 4]
    with pytest.raises(BadSetting, match="what 32-bit ids hold"):
        token_dtype(2**32 + 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.json", None, r"data\.tokenizer is 'missing\.json'; allowed: bytes, an existing tokenizer\.json"),
        ("broken.json", "{", "a JSON file of the tokenizers package"),
        ("other.json", '{"model": 1}', "a JSON file of the tokenizers package"),
    ],
)
def test_wrong_tokenizers_get_one_clear_message(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadSetting, match=message):
        resolve_tokenizer(name, base_folder=tmp_path)


def test_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadSetting, match=r"a folder with tokenizer\.json"):
        resolve_tokenizer("empty", base_folder=tmp_path)
