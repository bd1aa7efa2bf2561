"""The work behind ``prepare``: documents → tokenised shards → windows and held-out documents.

Tokenising: documents are read in order by this process, tokenised in chunks (by a pool of processes when asked), and
kept in shards that are written whole; a shard's number and its document count tell where to go on. Packing reads the
shards in order; it is quick and starts over when killed.

Held-out text never meets training text: with a fraction, a document's own content hash decides its side, so copies of
it share that side; with a source of its own, training drops every document whose content hash is held out.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gridlaw.modules.data.arrow import (
    DatasetFolder,
    WindowTable,
    WindowWriter,
    document_features,
    list_rows,
    map_table,
    token_lists,
    write_table,
)
from gridlaw.modules.data.declaration import source_key
from gridlaw.modules.data.shares import held_out_by_hash, share_windows
from gridlaw.modules.data.sources import read_documents
from gridlaw.modules.data.tokenizers import Tokenizer, load_tokenizer
from gridlaw.modules.errors import BadSetting

CHUNK_CHARACTERS = 1024 * 1024
CHUNK_DOCUMENTS = 4096
CHUNKS_PER_SHARD = 16
PERCENTILES = (10, 50, 90, 99)
HASH_BYTES = 16
TOKENIZER_FILE = "tokenizer.json"

Progress = Callable[[str, int, int], None]

_worker_tokenizer: Tokenizer | None = None


def build(
    declaration: dict[str, Any],
    folder: Path,
    *,
    locations: dict[str, Any],
    num_workers: int,
    progress: Progress | None,
) -> dict[str, Any]:
    """Fill ``folder`` with train/ and heldout/; returns counts per split. Raises BadSetting for unusable data."""
    tokenizer = load_tokenizer(declaration["tokenizer"], locations)
    sources = [part["source"] for part in declaration["mixture"]]
    heldout_source = declaration["heldout"].get("source")
    if heldout_source is not None:
        sources.append(heldout_source)
    for identity in {source_key(identity): identity for identity in sources}.values():
        tokenise(
            identity,
            declaration["tokenizer"],
            folder / "shards" / source_key(identity),
            locations=locations,
            num_workers=num_workers,
            progress=progress,
        )
    for name in ("train", "heldout"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if declaration["tokenizer"]["name"] != "bytes":
        text = locations[declaration["tokenizer"]["sha256"]]["text"]
        (folder / TOKENIZER_FILE).write_text(text, encoding="utf-8")
    heldout, counts_heldout = write_heldout(declaration, folder, tokenizer)
    counts_train = write_train(declaration, folder, tokenizer, heldout=heldout, progress=progress)
    shutil.rmtree(folder / "shards")
    return {"train": counts_train, "heldout": counts_heldout}


# Tokenising


def tokenise(
    identity: dict[str, Any],
    tokenizer: dict[str, Any],
    folder: Path,
    *,
    locations: dict[str, Any],
    num_workers: int,
    progress: Progress | None,
) -> None:
    """Write shards of {tokens, num_bytes, text, sha256} of one source, going on after the last whole shard."""
    folder.parent.mkdir(exist_ok=True)  # no further up: a store that vanished is not made again
    folder.mkdir(exist_ok=True)
    if (folder / "done").exists():
        return
    shards = sorted(folder.glob("shard-*.arrow"))
    num_done = sum(len(map_table(path)) for path in shards)
    texts = read_documents(identity, locations.get(source_key(identity), {}))
    chunks = chunked(islice(texts, num_done, None))
    number, held, seen = len(shards), [], num_done
    for table in _tokenise_chunks(chunks, tokenizer, locations, num_workers):
        held.append(table)
        seen += len(table)
        if progress:
            progress("tokenise documents", seen, 0)
        if len(held) == CHUNKS_PER_SHARD:
            write_table(folder / f"shard-{number:05d}.arrow", pa.concat_tables(held))
            number, held = number + 1, []
    if held:
        write_table(folder / f"shard-{number:05d}.arrow", pa.concat_tables(held))
    (folder / "done").touch()


def chunked(texts: Iterable[str]) -> Iterator[list[str]]:
    """Runs of documents, about CHUNK_CHARACTERS each."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= CHUNK_CHARACTERS or len(chunk) >= CHUNK_DOCUMENTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _tokenise_chunks(
    chunks: Iterator[list[str]], tokenizer: dict[str, Any], locations: dict[str, Any], num_workers: int
) -> Iterator[pa.Table]:
    if num_workers < 1:
        loaded = load_tokenizer(tokenizer, locations)
        for chunk in chunks:
            yield tokenise_chunk(chunk, loaded)
        return
    # spawn: a fork of a process with live threads (torch, Arrow) may hang.
    context = multiprocessing.get_context("spawn")
    with context.Pool(num_workers, initializer=_start_worker, initargs=(tokenizer, locations)) as pool:
        yield from _ordered(pool, chunks, num_workers)


def _ordered(pool: Any, chunks: Iterator[list[str]], num_workers: int) -> Iterator[pa.Table]:
    """Results in order with a bounded number of chunks under way: ``imap`` would read the whole source ahead."""
    waiting: list[Any] = []
    for chunk in chunks:
        waiting.append(pool.apply_async(_work, (chunk,)))
        if len(waiting) >= 2 * num_workers:
            yield waiting.pop(0).get()
    for result in waiting:
        yield result.get()


def _start_worker(tokenizer: dict[str, Any], locations: dict[str, Any]) -> None:
    global _worker_tokenizer
    # The pool is the parallelism: threads of the tokenizers package inside it would only crowd the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer = load_tokenizer(tokenizer, locations)


def _work(texts: list[str]) -> pa.Table:
    assert _worker_tokenizer is not None, "the pool's initializer runs first"
    return tokenise_chunk(texts, _worker_tokenizer)


def tokenise_chunk(texts: list[str], tokenizer: Tokenizer) -> pa.Table:
    """One table row per text; ids are checked against the vocabulary."""
    tokens = tokenizer.encode_many(texts)
    for row in tokens:
        if len(row) and int(row.max()) >= tokenizer.vocab_size:
            raise BadSetting(
                "token id",
                seen=int(row.max()),
                allowed=f"0 to {tokenizer.vocab_size - 1}, the tokenizer's vocabulary",
                hint="The tokenizer file gives ids beyond the vocabulary that it declares",
            )
    raw = [text.encode("utf-8") for text in texts]
    return pa.table(
        {
            "tokens": token_lists(tokens, tokenizer.dtype),
            "num_bytes": pa.array([len(data) for data in raw], pa.int64()),
            "text": pa.array(texts, pa.large_string()),
            "sha256": pa.array([hashlib.sha256(data).digest()[:HASH_BYTES] for data in raw], pa.binary(HASH_BYTES)),
        }
    )


# Splitting and packing


def shard_tables(folder: Path, identity: dict[str, Any]) -> Iterator[pa.Table]:
    """The tokenised documents of a source, shard by shard."""
    for path in sorted((folder / "shards" / source_key(identity)).glob("shard-*.arrow")):
        yield map_table(path)


def write_heldout(
    declaration: dict[str, Any], folder: Path, tokenizer: Tokenizer
) -> tuple[Callable[[bytes], bool], dict[str, Any]]:
    """Write heldout/; returns (is a document of this content hash held out?, counts)."""
    heldout = declaration["heldout"]
    limit = heldout.get("documents")
    fraction = heldout.get("fraction")
    sources = [heldout["source"]] if "source" in heldout else [part["source"] for part in declaration["mixture"]]
    sources = list({source_key(identity): identity for identity in sources}.values())
    output = DatasetFolder(folder / "heldout", document_features(tokenizer.dtype))
    lengths: list[int] = []
    num_bytes = 0
    seen: set[bytes] = set()
    for table in (table for identity in sources for table in shard_tables(folder, identity)):
        digests = table["sha256"].to_pylist()
        rows = []
        for row, digest in enumerate(digests):
            chosen = fraction is None or held_out_by_hash(digest, fraction)
            # A copy is evaluated once; a document without tokens says nothing.
            if chosen and digest not in seen and (limit is None or len(seen) < limit):
                rows.append(row)
                seen.add(digest)
        if rows:
            taken = table.select(["tokens", "num_bytes", "text"]).take(rows)
            taken = taken.set_column(2, "text", taken["text"].cast(pa.string()))
            output.add(taken.combine_chunks())
            lengths += [len(tokens) for tokens in list_rows(taken["tokens"])]
            num_bytes += sum(taken["num_bytes"].to_pylist())
    if not lengths:
        raise BadSetting(
            "data.heldout",
            seen="no document",
            allowed="a split with at least one document",
            hint="Give more text, a larger fraction or a source of its own",
        )
    output.close()
    counts = {**describe_lengths(lengths), "bytes": num_bytes}
    if fraction is None:
        return seen.__contains__, counts
    return (lambda digest: held_out_by_hash(digest, fraction)), counts


def write_train(
    declaration: dict[str, Any],
    folder: Path,
    tokenizer: Tokenizer,
    *,
    heldout: Callable[[bytes], bool],
    progress: Progress | None,
) -> dict[str, Any]:
    """Write train/: each part of the mixture packed by itself, then as many windows of each as the weights say."""
    context, parts = declaration["context"], declaration["mixture"]
    packed, counted = [], []
    for index, part in enumerate(parts):
        if progress:
            progress("pack windows", index, len(parts))
        target = folder / "train" if len(parts) == 1 else folder / "shards" / f"packed-{index}"
        shutil.rmtree(target, ignore_errors=True)
        writer = WindowWriter(target, context=context, dtype=tokenizer.dtype)
        counted.append(_pack_part(part, folder, tokenizer, writer, heldout=heldout))
        if writer.num_windows == 0:
            raise BadSetting(
                f"data.mixture[{index}]",
                seen=f"{counted[-1]['tokens']} training tokens",
                allowed=f"more than the context of {context} tokens",
                hint="Give more text, a shorter context or a lower min_tokens",
            )
        packed.append(target)
    if len(parts) == 1:
        taken = [counted[0]["windows"]]
    else:
        taken = share_windows([part["weight"] for part in parts], [count["windows"] for count in counted])
        _join(packed, taken, WindowWriter(folder / "train", context=context, dtype=tokenizer.dtype))
    for count, windows in zip(counted, taken, strict=True):
        count["windows_used"] = windows
    return {
        "documents": sum(count["documents"] for count in counted),
        "tokens": sum(count["tokens"] for count in counted),
        "windows": sum(taken),
        "parts": counted,
    }


def _pack_part(
    part: dict[str, Any],
    folder: Path,
    tokenizer: Tokenizer,
    writer: WindowWriter,
    *,
    heldout: Callable[[bytes], bool],
) -> dict[str, Any]:
    end = np.array([tokenizer.end_token_id], dtype=tokenizer.dtype)
    lengths: list[int] = []
    num_heldout = num_short = 0
    writer.add(end)
    for table in shard_tables(folder, part["source"]):
        rows: list[npt.NDArray[Any]] = list_rows(table["tokens"])
        for tokens, digest in zip(rows, table["sha256"].to_pylist(), strict=True):
            if heldout(digest):
                num_heldout += 1
            elif len(tokens) < part["min_tokens"]:
                num_short += 1
            else:
                writer.add(tokens)
                writer.add(end)
                lengths.append(len(tokens))
    writer.close()
    counts = describe_lengths(lengths)
    # What training can see: document tokens and the end token after each.
    counts["tokens"] += len(lengths)
    return {**counts, "windows": writer.num_windows, "left_out_heldout": num_heldout, "left_out_short": num_short}


def _join(folders: list[Path], taken: list[int], writer: WindowWriter) -> None:
    for folder, count in zip(folders, taken, strict=True):
        table = WindowTable(folder)
        for start in range(0, count, 4096):
            writer.add_windows(table.rows(np.arange(start, min(start + 4096, count))))
    writer.close()


def describe_lengths(lengths: list[int]) -> dict[str, Any]:
    """Documents, tokens and percentiles of document length, in tokens."""
    array = np.array(lengths, dtype=np.int64)
    if not len(array):
        return {"documents": 0, "tokens": 0, "length_percentiles": {}}
    values = np.percentile(array, PERCENTILES)
    return {
        "documents": len(array),
        "tokens": int(array.sum()),
        "length_mean": float(array.mean()),
        "length_max": int(array.max()),
        "length_percentiles": {str(p): float(value) for p, value in zip(PERCENTILES, values, strict=True)},
    }
