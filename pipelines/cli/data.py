"""``gridlaw data``: prepare sources, train a tokenizer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click


@click.group()
def data() -> None:
    """Prepare data and train tokenizers. A grid prepares what it needs by itself."""


@data.command("prepare")
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder; the data get one below it by content."
)
@click.option("--context", required=True, type=click.IntRange(min=1), help="Tokens of a training window.")
@click.option("--tokenizer", default="bytes", show_default=True, help="bytes, a tokenizers JSON file or a folder.")
@click.option("--weight", "weights", multiple=True, type=float, help="Share of each source; 1 each.")
@click.option("--min-tokens", default=0, show_default=True, help="Leave shorter documents out.")
@click.option("--heldout", default=None, help="A source of held-out text; a twentieth of the documents when left out.")
@click.option("--heldout-fraction", default=None, type=float, help="Share of documents held out, by content.")
@click.option("--heldout-documents", default=None, type=int, help="At most so many held-out documents.")
@click.option("--text-column", default=None, help="Column of JSONL and Parquet files; text.")
@click.option("--revision", default=None, help="Revision of hf: sources.")
@click.option("--workers", "num_workers", default=None, type=click.IntRange(min=0), help="Processes; one per core.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prepare_command(
    sources: tuple[str, ...], out: Path, as_json: bool, weights: tuple[float, ...], **options: Any
) -> None:
    """Tokenise SOURCES into windows of context + 1 tokens; killed and run again it goes on."""
    from gridlaw.pipelines.data_commands import describe_prepared, prepare_sources
    from gridlaw.pipelines.terminal import progress_bar

    with progress_bar("preparing") as progress:
        prepared = prepare_sources(sources, out, weights=weights or None, progress=progress, **options)
    rows = describe_prepared(prepared)
    if as_json:
        click.echo(json.dumps({"folder": str(prepared.folder), "splits": rows}))
        return
    from rich.table import Table

    from gridlaw.pipelines.terminal import results_console

    table = Table()
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "split" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    results_console().print(table)
    click.echo(f"folder: {prepared.folder}")


@data.command("tokenizer")
@click.argument("sources", nargs=-1, required=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The tokenizer's JSON file.")
@click.option("--vocab-size", required=True, type=int, help="Words in all, 256 bytes and the end token included.")
@click.option("--text-column", default=None, help="Column of JSONL and Parquet files; text.")
@click.option("--revision", default=None, help="Revision of hf: sources.")
def tokenizer_command(sources: tuple[str, ...], out: Path, vocab_size: int, **options: Any) -> None:
    """Train a byte-level BPE on SOURCES."""
    from gridlaw.pipelines.data_commands import train_tokenizer

    made = train_tokenizer(sources, out, vocab_size=vocab_size, show_progress=sys.stderr.isatty(), **options)
    click.echo(f"{made['path']}: {made['vocab_size']:,} words from {made['documents']:,} documents")
