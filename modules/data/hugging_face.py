"""Rows of Hugging Face datasets, local folders and remote ones through the same code. Imports ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gridlaw.modules.data.files import check_document
from gridlaw.modules.errors import BadSetting


def read_rows(identity: dict[str, Any], location: dict[str, Any]) -> Iterator[str]:
    """The text column of the declared split, row by row. No code of a dataset is ever run."""
    name = location.get("folder") or identity.get("name")
    if name is None:
        raise BadSetting("hf: source", allowed="the folder that was declared", hint="Prepare where the folder is")
    rows = _load(str(name), identity)
    column = identity["text_column"]
    if column not in rows.column_names:
        raise BadSetting(
            f"columns of hf:{name}",
            seen=rows.column_names,
            allowed=f"a column {column!r}",
            hint="Set text_column to the column that holds the text",
        )
    for number, row in enumerate(rows.select_columns([column]), start=1):
        yield check_document(row[column], f"hf:{name} row {number}")


def _load(name: str, identity: dict[str, Any]) -> Any:
    import datasets

    split = identity["split"]
    try:
        if (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists():
            saved = datasets.load_from_disk(name)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        return datasets.load_dataset(name, identity.get("subset"), revision=identity.get("revision"), split=split)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadSetting(
            f"hf:{name}", allowed=f"a dataset that can be read, with a split {split!r}", hint=str(error)
        ) from error
