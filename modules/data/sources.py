"""Where documents come from: each source has an identity (by content) and, on this machine, a location.

``resolve_source`` reads the form of a source without reading its texts (files are hashed, nothing is tokenised);
``read_documents`` yields the texts in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gridlaw.modules.data import embedded
from gridlaw.modules.errors import BadSetting

SOURCE_KEYS = ("source",)


def resolve_source(entry: dict[str, Any], *, base_folder: Path, field: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(identity, location) of one ``{source: …}`` entry."""
    source = entry.get("source")
    if source == "embedded:python":
        return {"kind": "embedded", "name": "python", "sha256": embedded.python_library_sha256()}, {}
    raise BadSetting(f"{field}.source", seen=source, allowed="embedded:python")


def read_documents(identity: dict[str, Any], location: dict[str, Any]) -> Iterator[str]:
    """The texts of a source in order; BadSetting if they are no longer what the identity says."""
    if identity["sha256"] != embedded.python_library_sha256():
        raise BadSetting("embedded:python", seen="another standard library", allowed="the one that was declared")
    yield from embedded.python_library_texts()
