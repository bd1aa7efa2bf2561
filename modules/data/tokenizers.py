"""Tokenizers that turn a document's text into token ids. Free of torch.

A tokenizer never adds special tokens by itself: the end-of-document token is placed by packing alone, so that a
document's tokens are the same in training, in held-out text and in evaluations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gridlaw.modules.errors import BadSetting

TokenArray = npt.NDArray[np.integer[Any]]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest unsigned integer that holds every id of a vocabulary of ``vocab_size`` words."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if vocab_size - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    raise ValueError(f"no token dtype holds a vocabulary of {vocab_size}; allowed: up to 2**32 words")


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


def resolve_tokenizer(entry: Any, *, base_folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(identity, location) of a grid file's ``tokenizer:`` value."""
    if entry == "bytes":
        return {"name": "bytes", "vocab_size": 257, "end_token_id": 256}, {}
    raise BadSetting("data.tokenizer", seen=entry, allowed="bytes")


def load_tokenizer(identity: dict[str, Any], locations: dict[str, Any]) -> Tokenizer:
    """The tokenizer that an identity names."""
    return BytesTokenizer()
