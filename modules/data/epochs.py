"""How many tokens the data have, before and after preparation, and how often a budget goes through them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gridlaw.modules.data import embedded, generators
from gridlaw.modules.data.declaration import source_key
from gridlaw.modules.data.shares import held_out_by_hash, share_windows
from gridlaw.modules.errors import BadSetting

DEFAULT_MAX_EPOCHS = 4.0
"""Beyond about four epochs repeated text is worth less than new text (Muennighoff et al. 2023, arXiv 2305.16264)."""

BYTES_PER_WORD_TOKEN = 4.0
"""Rough bytes of text per token of a tokenizer with a vocabulary of words; only for estimates before preparation."""


@dataclass(frozen=True, kw_only=True)
class TrainTokens:
    """Target tokens of one epoch. exact: counted as preparation would; else estimated from file sizes."""

    tokens: int
    exact: bool


def count_train_tokens(declaration: dict[str, Any], locations: dict[str, Any]) -> TrainTokens | None:
    """Tokens of one epoch without tokenising: exact for the embedded corpus in bytes, else from file sizes.

    None where nothing is known (a remote dataset). Raises BadSetting where an exact count fills no window.
    """
    context, parts = declaration["context"], declaration["mixture"]
    heldout = declaration["heldout"]
    plain = declaration["tokenizer"]["name"] == "bytes"
    fraction = heldout.get("fraction", 0.0)
    windows, exact = [], plain and "source" not in heldout
    for part in parts:
        identity = part["source"]
        if identity["kind"] in ("embedded", "generate") and plain:
            counted = _count_in_bytes(identity, fraction, part["min_tokens"])
        else:
            exact = False
            num_bytes = _num_bytes(identity, locations.get(source_key(identity), {}))
            if num_bytes is None:
                return None
            counted = int(num_bytes * (1 - fraction) / (1 if plain else BYTES_PER_WORD_TOKEN))
        windows.append(max(0, counted - 1) // context)
    if min(windows) < 1:
        raise BadSetting(
            "data.context",
            seen=context,
            allowed="a context that the training text fills; "
            + ("it has" if exact else "it has about")
            + f" {min(windows) * context or counted} tokens",
            hint="Use a shorter context or more text",
        )
    shares = share_windows([part["weight"] for part in parts], windows)
    return TrainTokens(tokens=sum(shares) * context, exact=exact)


def epochs_of(budget_tokens: int, train_tokens: int) -> float:
    """How often a budget goes through the training text."""
    return budget_tokens / train_tokens


def check_epochs(budget_tokens: int, train_tokens: int, max_epochs: float | None) -> float:
    """The number of epochs; BadSetting if it is beyond ``max_epochs`` (DEFAULT_MAX_EPOCHS when None)."""
    limit = DEFAULT_MAX_EPOCHS if max_epochs is None else max_epochs
    epochs = epochs_of(budget_tokens, train_tokens)
    if epochs > limit:
        raise BadSetting(
            "budget",
            seen=f"{budget_tokens:,} tokens, {epochs:.2f} epochs of {train_tokens:,} training tokens",
            allowed=f"at most {limit:g} epochs",
            hint="Lower the budget, add text, or raise data.max_epochs",
        )
    return epochs


def _count_in_bytes(identity: dict[str, Any], fraction: float, min_tokens: int) -> int:
    """Length of a part's training stream in bytes and end tokens, exactly as packing makes it."""
    if identity["kind"] == "embedded":
        sizes = embedded.python_library_sizes()
    else:
        sizes = _generated_sizes(json.dumps(identity, sort_keys=True))
    return 1 + sum(size + 1 for size, digest in sizes if size >= min_tokens and not held_out_by_hash(digest, fraction))


@cache
def _generated_sizes(identity: str) -> tuple[tuple[int, bytes], ...]:
    """(bytes, SHA-256) of each document of a generator, made once for all stages that read it; its identity as JSON."""
    return tuple(embedded.sized(text) for text in generators.documents(json.loads(identity)))


def _num_bytes(identity: dict[str, Any], location: dict[str, Any]) -> int | None:
    if identity["kind"] == "embedded":
        return sum(size for size, _ in embedded.python_library_sizes())
    if identity["kind"] == "generate":
        return generators.num_characters(identity)
    if "paths" in location:
        return sum(os.path.getsize(path) for path in location["paths"])
    if "folder" in location:
        return sum(path.stat().st_size for path in Path(location["folder"]).rglob("*") if path.is_file())
    return None
