"""From the driver to the live table: one row per trunk segment, branch, evaluation and refit, with its progress."""

from __future__ import annotations

from dataclasses import replace

from gridlaw.pipelines.grid.driver import Driver
from gridlaw.pipelines.grid.graph import Node, NodeKey
from gridlaw.pipelines.live import LiveRow, LiveTable
from gridlaw.platform.progress import ProgressReader

_KINDS = {
    "segment": "trunk",
    "decay": "point",
    "examples": "examples",
    "evaluate": "evaluation",
    "refit": "law",
    "prepare": "data",
}


class Watch:
    """Feeds a ``LiveTable`` from a driver's graph and its workers' progress files."""

    def __init__(self, table: LiveTable) -> None:
        self._table, self._reader = table, ProgressReader()
        self._shown: dict[NodeKey, tuple[str, str]] = {}
        """State and reason of each node when its row was last made."""

    def tick(self, driver: Driver) -> None:
        self._table.update([self._row(driver, node) for node in driver.graph.nodes.values() if self._changed(node)])

    def _changed(self, node: Node) -> bool:
        now = (node.state, node.reason)
        changed = node.state == "running" or self._shown.get(node.key) != now
        self._shown[node.key] = now
        return changed

    def _row(self, driver: Driver, node: Node) -> LiveRow:
        name, state = _name(driver, node), _state(driver, node)
        row = LiveRow(key=node.key, name=name, kind=_KINDS[node.kind], state=state, reason=node.reason)
        if node.kind not in ("segment", "decay", "examples", "evaluate"):
            return row
        run_id = driver.records.run_ids.get(driver.run_name(node))
        if node.state != "running" or run_id is None:
            return replace(row, total_steps=int(node.key[2]) if node.kind == "segment" else 0)
        progress = self._reader.read(driver.records.attempts / run_id)
        if progress is None:
            return row
        return replace(
            row,
            step=progress.step,
            total_steps=progress.until_step,
            tokens_per_second=progress.tokens_per_second or None,
            loss=progress.loss,
            seconds_left=progress.seconds_left,
            node=f"{progress.host} {progress.device}".strip(),
        )


def _name(driver: Driver, node: Node) -> str:
    if node.kind == "segment":
        return f"{node.key[1]} to step {node.key[2]}"
    if node.kind == "evaluate":
        return driver.run_name(node)
    if node.kind == "examples":
        return driver.examples.of(node).label
    if node.kind == "refit":
        law = driver.plan.laws[int(node.key[1])]
        return f"{law.name} {law.form} {node.key[2]}, {node.key[3]} points"
    return str(node.key[1])


def _state(driver: Driver, node: Node) -> str:
    diverged = any(problem.status == "diverged" and problem.name == str(node.key[1]) for problem in driver.problems)
    return "diverged" if node.state == "failed" and diverged else node.state
