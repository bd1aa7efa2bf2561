"""Tokenizers that turn a document's text into token ids. Free of torch.

A tokenizer never adds special tokens by itself: the end-of-document token is placed by packing alone, so that a
document's tokens are the same in training, in held-out text and in evaluations.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gridlaw.modules.catalog import PAPER_VOCAB_SIZE
from gridlaw.modules.data.absent import note_absent
from gridlaw.modules.errors import BadSetting

TokenArray = npt.NDArray[np.integer[Any]]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest unsigned integer that holds every id of a vocabulary of ``vocab_size`` words."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if vocab_size - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    raise BadSetting("vocabulary", seen=vocab_size, allowed=f"at most {2**32} words, what 32-bit ids hold")


class Tokenizer(ABC):
    """Text to ids and back. ``vocab_size`` includes the end-of-document token ``end_token_id``."""

    vocab_size: int
    end_token_id: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """What ids are stored as."""
        return token_dtype(self.vocab_size)

    @abstractmethod
    def encode(self, text: str) -> TokenArray:
        """The ids of one document, without any special token: [num_tokens] of ``dtype``."""

    def encode_many(self, texts: list[str]) -> list[TokenArray]:
        """``encode`` of each text, for tokenizers that are quicker on many at once."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[TokenArray, npt.NDArray[np.int64]]:
        """The ids and, for each, its [start, end) in characters of ``text``: [num_tokens] and [num_tokens, 2]."""

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Text of ids; end-of-document tokens are left out, broken byte sequences become U+FFFD."""


@dataclass(frozen=True)
class BytesTokenizer(Tokenizer):
    """One token per UTF-8 byte, and id 256 for the end of a document."""

    vocab_size = 257
    end_token_id = 256

    def encode(self, text: str) -> TokenArray:
        """UTF-8 bytes as ids."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(self.dtype)

    def encode_with_offsets(self, text: str) -> tuple[TokenArray, npt.NDArray[np.int64]]:
        """Every byte of a character has that character's offsets."""
        tokens = self.encode(text)
        # A byte that is no UTF-8 continuation (10xxxxxx) starts a character.
        characters = np.cumsum((tokens & 0xC0) != 0x80).astype(np.int64) - 1
        return tokens, np.stack([characters, characters + 1], axis=1)

    def decode(self, tokens: Iterable[int]) -> str:
        """Bytes back to text."""
        return bytes(token for token in map(int, tokens) if token < 256).decode("utf-8", errors="replace")


class JsonTokenizer(Tokenizer):
    """A tokenizer of the ``tokenizers`` package. Special tokens written out in a text are read as plain text."""

    def __init__(self, text: str, *, vocab_size: int, end_token_id: int) -> None:
        from tokenizers import Tokenizer as Backend

        self._backend = Backend.from_str(text)
        self._backend.no_truncation()
        self._backend.no_padding()
        # Else "</s>" inside a document would end it.
        self._backend.encode_special_tokens = True
        self.vocab_size, self.end_token_id = vocab_size, end_token_id

    def encode(self, text: str) -> TokenArray:
        """Ids without special tokens."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: list[str]) -> list[TokenArray]:
        """In parallel by the package's own threads, unless TOKENIZERS_PARALLELISM is false."""
        encoded = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(item.ids, dtype=np.int64) for item in encoded]

    def encode_with_offsets(self, text: str) -> tuple[TokenArray, npt.NDArray[np.int64]]:
        """Offsets as the package gives them."""
        encoded = self._backend.encode(text, add_special_tokens=False)
        offsets = np.array(encoded.offsets, dtype=np.int64).reshape(-1, 2)
        return np.array(encoded.ids, dtype=np.int64), offsets

    def decode(self, tokens: Iterable[int]) -> str:
        """Text without special tokens; an end token that the file does not know is left out."""
        ids = [token for token in map(int, tokens) if token != self.end_token_id]
        return str(self._backend.decode(ids, skip_special_tokens=True))


END_TOKEN_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""Looked for in a tokenizer file, in this order; where none is found, a new last id ends documents."""


def resolve_tokenizer(entry: Any, *, base_folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(identity, location) of a grid file's ``tokenizer:``: bytes, a ``tokenizers`` JSON file or a HF folder."""
    if entry == "bytes":
        plain = BytesTokenizer()
        return {"name": "bytes", "vocab_size": plain.vocab_size, "end_token_id": plain.end_token_id}, {}
    if isinstance(entry, str) and not (base_folder / entry).exists() and note_absent("data.tokenizer", entry):
        size = PAPER_VOCAB_SIZE
        return {"name": "tokenizers", "absent": entry, "vocab_size": size, "end_token_id": size - 1}, {}
    if not isinstance(entry, str) or not (base_folder / entry).exists():
        raise BadSetting(
            "data.tokenizer",
            seen=entry,
            allowed="bytes, an existing tokenizer.json or an existing Hugging Face tokenizer folder",
            hint="Train one with gridlaw data tokenizer",
        )
    path = base_folder / entry
    text, end_token = _read_folder(path) if path.is_dir() else (_read_text(path), None)
    ids = _vocabulary(text, path)
    if end_token is not None and end_token not in ids:
        raise BadSetting(f"end token of {path}", seen=end_token, allowed="a token of the vocabulary")
    size = max(ids.values()) + 1
    names = [end_token] if end_token else [name for name in END_TOKEN_NAMES if name in ids]
    end_token_id = ids[names[0]] if names else size
    vocab_size = max(size, end_token_id + 1)
    token_dtype(vocab_size)
    identity = {
        "name": "tokenizers",
        "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
        "vocab_size": vocab_size,
        "end_token_id": end_token_id,
    }
    return identity, {"text": text}


def load_tokenizer(identity: dict[str, Any], locations: dict[str, Any]) -> Tokenizer:
    """The tokenizer that an identity names; ``locations`` as ``locate`` gives them."""
    if identity["name"] == "bytes":
        return BytesTokenizer()
    location = locations.get(identity["sha256"])
    if location is None or hashlib.sha256(location["text"].encode("utf-8")).hexdigest() != identity["sha256"]:
        raise BadSetting(
            "tokenizer", seen="another or none", allowed=f"the tokenizer with hash {identity['sha256'][:12]}…"
        )
    return JsonTokenizer(location["text"], vocab_size=identity["vocab_size"], end_token_id=identity["end_token_id"])


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting("data.tokenizer", seen=str(path), allowed="a readable UTF-8 file", hint=str(error)) from None


def _read_folder(folder: Path) -> tuple[str, str | None]:
    """(tokenizer.json's text, name of the end token) of a Hugging Face folder."""
    end_token = None
    with contextlib.suppress(OSError, ValueError):
        end_token = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("eos_token")
    if isinstance(end_token, dict):
        end_token = end_token.get("content")
    if (folder / "tokenizer.json").is_file():
        return _read_text(folder / "tokenizer.json"), end_token
    try:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        return loaded.backend_tokenizer.to_str(), loaded.eos_token
    except Exception as error:  # what a foreign folder raises is open
        raise BadSetting(
            "data.tokenizer",
            seen=str(folder),
            allowed="a folder with tokenizer.json, or one that transformers can turn into it",
            hint=str(error).splitlines()[0] if str(error) else type(error).__name__,
        ) from error


def _vocabulary(text: str, path: Path) -> dict[str, int]:
    from tokenizers import Tokenizer as Backend

    try:
        ids: dict[str, int] = Backend.from_str(text).get_vocab(with_added_tokens=True)
    except Exception as error:  # the package raises bare Exception
        raise BadSetting(
            "data.tokenizer", seen=str(path), allowed="a JSON file of the tokenizers package", hint=str(error)
        ) from None
    if not ids:
        raise BadSetting("data.tokenizer", seen=str(path), allowed="a tokenizer with a vocabulary")
    return ids
