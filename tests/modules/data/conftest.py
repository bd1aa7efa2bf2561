"""Small corpora in every form, made of the interpreter's own sources."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridlaw.modules.data.declaration import declare, locate, prepared_name
from gridlaw.modules.data.embedded import python_library_texts
from gridlaw.modules.data.prepare import PreparedData, prepare

PrepareData = Callable[..., PreparedData]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Sixty different real documents, none beyond 20,000 characters."""
    return list(dict.fromkeys(text for text in python_library_texts() if len(text) < 20_000))[:60]


@pytest.fixture
def jsonl(texts: list[str], tmp_path: Path) -> Path:
    """Three JSONL files of twenty documents."""
    for number in range(3):
        lines = [json.dumps({"text": text, "id": at}) + "\n" for at, text in enumerate(texts[number::3])]
        (tmp_path / f"part-{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def prepare_data(tmp_path: Path) -> PrepareData:
    """Declare, locate and prepare in one call, under tmp_path/prepared."""

    def run(data: dict[str, Any], *, context: int = 128, **options: Any) -> PreparedData:
        declaration = declare(data, base_folder=tmp_path, context=context)
        folder = tmp_path / "prepared" / prepared_name(declaration)
        return prepare(declaration, folder, locations=locate(data, base_folder=tmp_path), **options)

    return run


@pytest.fixture(scope="session")
def bpe_text() -> str:
    """A byte-level BPE of 600 words as the text of its JSON file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(python_library_texts()[:40], trainer)
    return tokenizer.to_str()
