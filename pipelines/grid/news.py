"""How what workers write reaches the driver: read in the store where that is a folder, brought here where it is not."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from gridlaw.platform.ledger.segments import JournalFeed, ProgressFeed
from gridlaw.platform.store.base import Store

_ATTEMPTS = "attempts"


@dataclass(frozen=True, kw_only=True)
class News:
    """attempts: a folder with a sub-folder for each run, where its journal and progress are read."""

    attempts: Path
    feed: JournalFeed | None = None
    progress: ProgressFeed | None = None
    _temporary: tempfile.TemporaryDirectory[str] | None = None

    @staticmethod
    def of(store: Store) -> News:
        """For one submission; call ``close`` in the end."""
        attempts = store.folder(_ATTEMPTS)
        if attempts is not None:
            return News(attempts=attempts)
        temporary = tempfile.TemporaryDirectory(prefix="gridlaw-news-")
        folder = Path(temporary.name)
        return News(
            attempts=folder,
            feed=JournalFeed(store, folder),
            progress=ProgressFeed(store, folder),
            _temporary=temporary,
        )

    def close(self) -> None:
        """Nothing is lost: what was not sent is still in the store."""
        if self.progress is not None:
            self.progress.close()
        if self._temporary is not None:
            self._temporary.cleanup()
