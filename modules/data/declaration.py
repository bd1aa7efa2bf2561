"""What a run's data are, as a small JSON-able dict that goes into fingerprints. Free of torch; never tokenises.

Sources enter by content, the tokenizer by content, and everything that changes a window or a held-out document stands
in the declaration. Paths, the number of epochs allowed and how preparation runs do not. Where a source's files lie on
this machine is told apart, by ``locate``.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from pathlib import Path
from typing import Any

from gridlaw.modules.data.sources import SOURCE_KEYS, resolve_source
from gridlaw.modules.data.tokenizers import resolve_tokenizer
from gridlaw.modules.errors import BadSetting

DECLARATION_VERSION = 1
"""Raised when packing, splitting or tokenising changes what the same sources give."""

DEFAULT_HELDOUT_FRACTION = 0.05
DEFAULT_MIXTURE = [{"source": "embedded:python"}]

DATA_KEYS = ("tokenizer", "context", "mixture", "heldout", "document_mask", "max_epochs")
MIXTURE_KEYS = (*SOURCE_KEYS, "weight", "min_tokens")
HELDOUT_KEYS = (*SOURCE_KEYS, "documents", "fraction")


def declare(data: dict[str, Any], *, base_folder: Path, context: int) -> dict[str, Any]:
    """The identity of the data that a grid file's ``data:`` asks for.

    data: the keys of DATA_KEYS. base_folder: where relative paths start. context: tokens of a window's inputs.
    Raises BadSetting for what cannot be data.
    """
    check_keys("data", data, DATA_KEYS)
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise BadSetting("data.context", seen=context, allowed="a whole number of tokens, 1 or more")
    mask = False if data.get("document_mask") is None else data["document_mask"]
    if not isinstance(mask, bool):
        raise BadSetting("data.document_mask", seen=mask, allowed="true or false")
    check_max_epochs(data.get("max_epochs"))
    tokenizer, _ = resolve_tokenizer(_tokenizer(data), base_folder=base_folder)
    mixture = [
        _declare_part(entry, base_folder=base_folder, field=f"data.mixture[{index}]")
        for index, entry in enumerate(_mixture(data))
    ]
    return {
        "version": DECLARATION_VERSION,
        "context": context,
        "vocab_size": tokenizer["vocab_size"],
        "tokenizer": tokenizer,
        "mixture": mixture,
        "heldout": _declare_heldout(data.get("heldout"), base_folder=base_folder),
        "document_mask": mask,
    }


def locate(data: dict[str, Any], *, base_folder: Path) -> dict[str, Any]:
    """Where this machine has what ``declare`` declared: content hash → files. Never part of an identity."""
    heldout = data.get("heldout") or {}
    fields = {f"data.mixture[{index}]": entry for index, entry in enumerate(_mixture(data))}
    if heldout.get("source") is not None:
        fields["data.heldout"] = heldout
    found: dict[str, Any] = {}
    for field, entry in fields.items():
        identity, location = resolve_source(entry, base_folder=base_folder, field=field)
        if location:
            found[source_key(identity)] = location
    tokenizer, location = resolve_tokenizer(_tokenizer(data), base_folder=base_folder)
    if location:
        found[tokenizer["sha256"]] = location
    return found


def source_key(identity: dict[str, Any]) -> str:
    """Name of a source in ``locate``'s answer and in a build folder."""
    return content_hash(identity)


def prepared_name(declaration: dict[str, Any]) -> str:
    """Name of the folder that holds this data prepared, and the data fingerprint that sampling is keyed by.

    ``document_mask`` is left out: it changes what attention sees, not a single stored token.
    """
    return content_hash({key: value for key, value in declaration.items() if key != "document_mask"})


def content_hash(value: Any) -> str:
    """24 hex digits over canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:24]


def check_keys(field: str, given: Any, known: tuple[str, ...]) -> None:
    """BadSetting unless ``given`` is a mapping with known keys only; the nearest known key is named."""
    if not isinstance(given, dict):
        raise BadSetting(field, seen=given, allowed=f"a mapping with keys of {', '.join(known)}")
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            raise BadSetting(
                f"{field}.{key}",
                allowed=f"the keys {', '.join(known)}",
                hint=f"Did you mean {near[0]}?" if near else "",
            )


def check_max_epochs(max_epochs: Any) -> None:
    """BadSetting unless it is absent or a positive number."""
    if max_epochs is not None and (
        isinstance(max_epochs, bool) or not isinstance(max_epochs, int | float) or max_epochs <= 0
    ):
        raise BadSetting("data.max_epochs", seen=max_epochs, allowed="a number above 0")


def _tokenizer(data: dict[str, Any]) -> Any:
    return "bytes" if data.get("tokenizer") is None else data["tokenizer"]


def _mixture(data: dict[str, Any]) -> list[dict[str, Any]]:
    mixture = data.get("mixture")
    if mixture is None:
        mixture = DEFAULT_MIXTURE
    if not isinstance(mixture, list | tuple) or not mixture:
        raise BadSetting("data.mixture", seen=mixture, allowed="a list of one or more {source, weight, …}")
    return [{"source": entry} if isinstance(entry, str) else entry for entry in mixture]


def _declare_part(entry: Any, *, base_folder: Path, field: str) -> dict[str, Any]:
    check_keys(field, entry, MIXTURE_KEYS)
    weight = 1 if entry.get("weight") is None else entry["weight"]
    min_tokens = 0 if entry.get("min_tokens") is None else entry["min_tokens"]
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise BadSetting(f"{field}.weight", seen=weight, allowed="a number above 0", hint="Leave a source out instead")
    if isinstance(min_tokens, bool) or not isinstance(min_tokens, int) or min_tokens < 0:
        raise BadSetting(f"{field}.min_tokens", seen=min_tokens, allowed="a whole number of tokens, 0 or more")
    identity, _ = resolve_source(entry, base_folder=base_folder, field=field)
    return {"source": identity, "weight": float(weight), "min_tokens": min_tokens}


def _declare_heldout(heldout: Any, *, base_folder: Path) -> dict[str, Any]:
    """Either a share of the mixture's own documents, chosen by content hash, or a source of its own."""
    if heldout is None:
        return {"fraction": DEFAULT_HELDOUT_FRACTION}
    check_keys("data.heldout", heldout, HELDOUT_KEYS)
    documents = heldout.get("documents")
    if documents is not None and (isinstance(documents, bool) or not isinstance(documents, int) or documents < 1):
        raise BadSetting("data.heldout.documents", seen=documents, allowed="a whole number, 1 or more")
    limit = {} if documents is None else {"documents": documents}
    if heldout.get("source") is not None:
        if heldout.get("fraction") is not None:
            raise BadSetting("data.heldout", seen=heldout, allowed="either source or fraction", hint="Remove one")
        identity, _ = resolve_source(heldout, base_folder=base_folder, field="data.heldout")
        return {"source": identity, **limit}
    fraction = DEFAULT_HELDOUT_FRACTION if heldout.get("fraction") is None else heldout["fraction"]
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise BadSetting("data.heldout.fraction", seen=fraction, allowed="a number between 0 and 1, both excluded")
    return {"fraction": float(fraction), **limit}
