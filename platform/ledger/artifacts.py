"""Where a run's artifacts lie, and how one is read with one request."""

from __future__ import annotations

import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_folder(uri: str) -> Path | None:
    """The folder behind an artifact address; None for what is no folder of this machine."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(uri) if not parts.scheme else None


def read_text(uri: str, name: str, tracking_uri: str) -> str | None:
    """A text artifact from a server or a bucket; None if there is none of this name. Raises what MLflow raises.

    MLflow's own ``download_artifacts`` lists folders before it reads, which takes ten times as long.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repository = get_artifact_repository(uri, tracking_uri=tracking_uri)
    with tempfile.TemporaryDirectory(prefix="gridlaw-") as scratch:
        path = Path(scratch) / "artifact"
        try:
            repository._download_file(name, str(path))
        except Exception:  # each kind of store says in its own way that there is none
            parent = name.rpartition("/")[0]
            if name not in {entry.path for entry in repository.list_artifacts(parent or None)}:
                return None
            raise
        return path.read_text(encoding="utf-8")
