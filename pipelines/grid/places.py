"""Where a run is under way, for the ledger: host and process of its worker, as tags.

Ray decides where a task goes and the worker says so in its progress file. Only what has been running for a while is
told: it costs a call to the ledger, and of what is over in seconds nobody asks where it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridlaw.platform.progress import ProgressReader

if TYPE_CHECKING:
    from gridlaw.pipelines.grid.driver import Driver
    from gridlaw.pipelines.grid.graph import NodeKey

TELL_AFTER_SECONDS = 3.0


@dataclass
class Places:
    """Call ``tick`` now and then; each attempt of a node is told once."""

    _reader: ProgressReader = field(default_factory=ProgressReader)
    _since: dict[tuple[NodeKey, int], tuple[float, float]] = field(default_factory=dict)
    """When an attempt was first seen, and the time in the progress file then: that may be an earlier attempt's."""
    _told: set[tuple[NodeKey, int]] = field(default_factory=set)

    def tick(self, driver: Driver) -> None:
        """Tell where newly running tasks are. An outage of the ledger is no matter."""
        for node in driver.graph.running():
            attempt = (node.key, node.attempts)
            run_id = driver.records.run_ids.get(driver.run_name(node))
            if attempt in self._told or run_id is None:
                continue
            progress = self._reader.read(driver.records.attempts / run_id)
            written = progress.seconds if progress is not None else 0.0
            since, before = self._since.setdefault(attempt, (time.monotonic(), written))
            if progress is None or written == before or time.monotonic() - since < TELL_AFTER_SECONDS:
                continue
            self._told.add(attempt)
            tags = {"host": progress.host, "pid": progress.pid, "device": progress.device or None}
            driver.records.ledger.note_tags(run_id, tags)
