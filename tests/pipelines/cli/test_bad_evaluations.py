"""Evaluations that cannot be: one clear message each, in a file before anything starts, and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import gridlaw, refused
from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import declare, locate, prepared_name
from gridlaw.modules.data.prepare import prepare
from gridlaw.modules.models import checkpoint
from gridlaw.modules.models.decoder import DecoderLM

LONGPPL = {"evaluator": "full/n1/2N", "context": 16, "slide": 8}
GRID: dict[str, Any] = {
    "name": "asked",
    "architectures": ["full"],
    "scales": ["n1"],
    "budgets": ["2N"],
    "data": {"context": 64},
    "training": {"batch_tokens": 512},
}
ENTRIES: dict[str, tuple[Any, list[str]]] = {
    "a context beyond the model's": ({"loss": {"context": 65}}, ["evaluate.loss.context is 65", "at most 64"]),
    "needles beyond the model": ({"niah": {"lengths": [60, 100]}}, ["evaluate.niah.lengths is 100", "at most 64"]),
    "texts beyond the model": ({"longppl": {**LONGPPL, "max_length": 80}}, ["max_length is 80", "at most 64"]),
    "a short context that is none": ({"longppl": {**LONGPPL, "context": 64}}, ["context is 64", "below"]),
    "short contexts beyond the evaluator's": ({"longppl": {**LONGPPL, "slide": 60}}, ["16 + 60 (slide)", "at most 64"]),
    "an unknown evaluation": ("longpl", ["evaluate is 'longpl'", "Did you mean longppl?"]),
    "an unknown setting": ({"niah": {"depth": 3}}, ["evaluate.niah.depth", "Did you mean depths?"]),
    "an evaluator that is no point": ({"longppl": {**LONGPPL, "evaluator": "full/n2/2N"}}, ["full/n2/2N", "n1"]),
    "a corpus without the column": ({"longppl": {**LONGPPL, "corpus": "a.jsonl"}}, ["a.jsonl line 1", "text_column"]),
    "a corpus that is not there": ({"longppl": {**LONGPPL, "corpus": "no/*.jsonl"}}, ["no/*.jsonl"]),
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_in_a_file(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry, words = ENTRIES[kind]
    (folder / "a.jsonl").write_text('{"body": "some text"}\n')
    (folder / "grid.yaml").write_text(yaml.safe_dump(GRID | {"evaluate": [entry]}))
    told = refused(folder, capsys, "run", "grid.yaml")
    for word in words:
        assert word in told


def test_a_checkpoint_of_another_vocabulary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "texts").mkdir()
    for name in ("a", "b"):
        (folder / "texts" / f"{name}.txt").write_text(f"some words of {name} " * 60)
    data = {"mixture": [{"source": "texts/a.txt"}], "heldout": {"source": "texts/b.txt"}}
    declaration = declare(data, base_folder=folder, context=64)
    locations = locate(data, base_folder=folder)
    prepared = prepare(declaration, folder / prepared_name(declaration), locations=locations)
    config = model_config(resolve_architecture("full"), resolve_scale("n1"), vocab_size=300, context=64)
    model = checkpoint.save_model(DecoderLM(config).initialise(0), folder / "model")
    assert gridlaw("evaluate", str(model), "loss", "--data", str(prepared.folder)) == 2
    told = capsys.readouterr().err
    assert told.count("gridlaw: ") == 1
    assert "is 300; allowed: 257" in told
