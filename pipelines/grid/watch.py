"""From the driver to the live table: one row per trunk segment, branch, evaluation and refit, with its progress."""

from __future__ import annotations

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
        name = _name(driver, node)
        row = LiveRow(name=name, kind=_KINDS[node.kind], state=_state(driver, node), reason=node.reason)
        if node.kind not in ("segment", "decay", "examples", "evaluate"):
            return row
        total = int(node.key[2]) if node.kind == "segment" else 0
        run_name = driver.run_name(node)
        run_id = driver.records.run_ids.get(run_name)
        if node.state != "running" or run_id is None:
            return LiveRow(name=name, kind=row.kind, state=row.state, total_steps=total, reason=row.reason)
        progress = self._reader.read(driver.records.attempts / run_id)
        if progress is None:
            return row
        return LiveRow(
            name=name,
            kind=row.kind,
            state=row.state,
            step=progress.step,
            total_steps=progress.until_step,
            tokens_per_second=progress.tokens_per_second or None,
            loss=progress.loss,
            seconds_left=progress.seconds_left,
            node=f"{progress.host} {progress.device}".strip(),
            reason=row.reason,
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
