"""What is behind ``gridlaw data prepare`` and ``gridlaw data tokenizer``: plain functions with typed arguments.

Both work in the folder that they are called from; results are returned, progress goes to the given callback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gridlaw.modules.data.declaration import declare, locate, prepared_name
from gridlaw.modules.data.prepare import PreparedData, Progress, prepare
from gridlaw.modules.data.sources import read_documents, resolve_source
from gridlaw.modules.errors import BadSetting
from gridlaw.platform.errors import BadInput

END_TOKEN = "<|endoftext|>"
NUM_BYTES = 256


def prepare_sources(
    sources: Sequence[str],
    out: Path,
    *,
    context: int,
    tokenizer: str = "bytes",
    weights: Sequence[float] | None = None,
    min_tokens: int = 0,
    heldout: str | None = None,
    heldout_fraction: float | None = None,
    heldout_documents: int | None = None,
    text_column: str | None = None,
    revision: str | None = None,
    num_workers: int | None = None,
    base_folder: Path | None = None,
    progress: Progress | None = None,
) -> PreparedData:
    """Prepare sources into ``out``/NAME, NAME by content, and return the opened data; at once if it is there.

    weights: one per source, 1 each when left out. num_workers: processes that tokenise; one per core when left out,
    none for bytes, which are read as fast as they are written. text_column and revision go to every source that
    takes them. Raises BadInput; nothing half-made is left.
    """
    if weights is not None and len(weights) != len(sources):
        raise BadInput("weights", seen=list(weights), allowed=f"{len(sources)} numbers, one per source")
    base = Path.cwd() if base_folder is None else base_folder
    entries = [
        {**_entry(source, text_column, revision), "weight": 1 if weights is None else weights[at]}
        for at, source in enumerate(sources)
    ]
    if min_tokens:
        entries = [{**entry, "min_tokens": min_tokens} for entry in entries]
    held: dict[str, Any] = {} if heldout is None else _entry(heldout, text_column, revision)
    held |= {"fraction": heldout_fraction, "documents": heldout_documents}
    data: dict[str, Any] = {"tokenizer": tokenizer, "mixture": entries, "heldout": held}
    if num_workers is None:
        num_workers = 0 if tokenizer == "bytes" else os.cpu_count() or 1
    try:
        declaration = declare(data, base_folder=base, context=context)
        return prepare(
            declaration,
            out / prepared_name(declaration),
            locations=locate(data, base_folder=base),
            num_workers=num_workers,
            progress=progress,
        )
    except BadSetting as error:
        raise BadInput(error.field, seen=error.seen, allowed=error.allowed, hint=error.hint) from error


def describe_prepared(prepared: PreparedData) -> list[dict[str, Any]]:
    """Rows of the table that ``gridlaw data prepare`` prints: one per split."""
    rows = []
    for split in ("train", "heldout"):
        counts = prepared.counts[split]
        parts = counts.get("parts", [counts])
        for index, part in enumerate(parts):
            percentiles = part["length_percentiles"]
            rows.append(
                {
                    "split": split if len(parts) == 1 else f"{split} {index + 1}",
                    "documents": part["documents"],
                    "tokens": part["tokens"],
                    "windows": part.get("windows_used", 0),
                    **{f"p{name}": round(value) for name, value in percentiles.items()},
                    "longest": part.get("length_max", 0),
                }
            )
    return rows


def train_tokenizer(
    sources: Sequence[str],
    out: Path,
    *,
    vocab_size: int,
    text_column: str | None = None,
    revision: str | None = None,
    base_folder: Path | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Train a byte-level BPE on sources and write it to ``out`` (a JSON file of the ``tokenizers`` package).

    vocab_size: words in all, 256 bytes and the end token included. Returns {path, vocab_size, documents}. Any text
    round-trips: there is no unknown token and no normalisation.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size <= NUM_BYTES + 1:
        raise BadInput("vocab size", seen=vocab_size, allowed=f"a whole number above {NUM_BYTES + 1}")
    if out.suffix != ".json":
        raise BadInput("tokenizer file", seen=str(out), allowed="a name that ends in .json")
    if not sources:
        raise BadInput("sources", seen=[], allowed="one or more sources to learn words from")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    base = Path.cwd() if base_folder is None else base_folder
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    counted = [0]
    try:
        tokenizer.train_from_iterator(
            _documents([_entry(source, text_column, revision) for source in sources], base, counted), trainer
        )
    except BadSetting as error:
        raise BadInput(error.field, seen=error.seen, allowed=error.allowed, hint=error.hint) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(out.name + ".tmp")
    aside.write_text(tokenizer.to_str(), encoding="utf-8")
    os.replace(aside, out)
    return {"path": str(out), "vocab_size": tokenizer.get_vocab_size(), "documents": counted[0]}


def _entry(source: str, text_column: str | None, revision: str | None) -> dict[str, Any]:
    """A source's mapping with the options that its kind takes."""
    kind = source.partition(":")[0]
    entry: dict[str, Any] = {"source": source}
    if kind == "hf":
        entry["revision"] = revision
    if kind not in ("embedded", "generate"):
        entry["text_column"] = text_column
    return entry


def _documents(entries: list[dict[str, Any]], base: Path, counted: list[int]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        identity, location = resolve_source(entry, base_folder=base, field=f"source {index + 1}")
        for text in read_documents(identity, location):
            counted[0] += 1
            yield text
