"""The DAG of one submission: what waits for what, what may start, what a failure blocks.

Pure bookkeeping, no Ray and no MLflow: the driver asks for ready nodes, starts them, and says how each ended. It asks
twice a second, so what is ready and what runs is kept, and not looked for among thousands of nodes.
A node is identified by its key, for example ``("segment", "full/n1/seed0", 58)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

NodeKey = tuple[str | int, ...]
NodeState = Literal["waiting", "running", "done", "failed", "blocked"]


@dataclass(kw_only=True)
class Node:
    """One stage call. ``priority``: higher starts first; the FLOPs that hang on it, so long chains start early."""

    key: NodeKey
    depends_on: tuple[NodeKey, ...] = ()
    after: tuple[NodeKey, ...] = ()
    """What has to have ended before, however it did."""
    priority: float = 0.0
    state: NodeState = "waiting"
    attempts: int = 0
    reason: str = ""
    place: int = 0
    """In the order of addition."""

    @property
    def kind(self) -> str:
        return str(self.key[0])

    @property
    def label(self) -> str:
        """For messages."""
        return " ".join(map(str, self.key))


@dataclass
class Graph:
    """Nodes by key. A node is added after what it depends on; nodes may be added while others run (refits are)."""

    nodes: dict[NodeKey, Node] = field(default_factory=dict)
    _ready: dict[NodeKey, Node] = field(default_factory=dict)
    _running: dict[NodeKey, Node] = field(default_factory=dict)
    _behind: dict[NodeKey, list[Node]] = field(default_factory=dict)
    """By node: those that depend on it."""

    def add(self, node: Node) -> Node:
        assert node.key not in self.nodes, f"node {node.key} added twice"
        for key in (*node.depends_on, *node.after):
            assert key in self.nodes, f"node {node.key} depends on {key}, which is not in the graph"
            self._behind.setdefault(key, []).append(node)
        node.place = len(self.nodes)
        self.nodes[node.key] = node
        self._block_if_hopeless(node)
        self._note_if_ready(node)
        return node

    def ready(self) -> list[Node]:
        """Waiting nodes with every dependency done, highest priority first; ties in the order of addition."""
        return sorted(self._ready.values(), key=lambda n: (-n.priority, n.place))

    def running(self) -> list[Node]:
        return list(self._running.values())

    def finished(self) -> bool:
        """Nothing runs, and nothing can start: what still waited would wait for something that is ready or runs."""
        return not self._ready and not self._running

    def start(self, key: NodeKey) -> Node:
        assert key in self._ready, f"node {key} is {self.nodes[key].state}, not ready"
        node = self._running[key] = self._ready.pop(key)
        node.state, node.attempts = "running", node.attempts + 1
        return node

    def done(self, key: NodeKey) -> Node:
        node = self._ended(key, "done")
        for other in self._behind.get(key, ()):
            self._note_if_ready(other)
        return node

    def again(self, key: NodeKey, reason: str) -> Node:
        """Back to waiting, to be tried again; ``reason`` says why the last attempt ended."""
        node = self._ended(key, "waiting")
        node.reason = reason
        self._note_if_ready(node)
        return node

    def fail(self, key: NodeKey, reason: str) -> list[Node]:
        """The node failed for good. Returns the nodes newly blocked, directly or not."""
        self._ended(key, "failed").reason = reason
        blocked = []
        for other in self.nodes.values():  # insertion order is topological: one sweep reaches everything
            if self._block_if_hopeless(other):
                blocked.append(other)
        for each in (self.nodes[key], *blocked):
            for other in self._behind.get(each.key, ()):
                self._note_if_ready(other)
        return blocked

    def of_kind(self, kind: str) -> Iterable[Node]:
        return (n for n in self.nodes.values() if n.kind == kind)

    def pending(self, beginning: NodeKey) -> list[Node]:
        """What waits or runs under keys that begin so, in the order of addition."""
        return [
            node
            for key, node in self.nodes.items()
            if key[: len(beginning)] == beginning and node.state in ("waiting", "running")
        ]

    def is_lost(self, key: NodeKey) -> bool:
        """Whether a node failed or is blocked; False for one that is not there."""
        return key in self.nodes and self.nodes[key].state in ("failed", "blocked")

    def _ended(self, key: NodeKey, state: NodeState) -> Node:
        node = self.nodes[key]
        node.state = state
        self._running.pop(key, None)
        self._ready.pop(key, None)
        return node

    def _note_if_ready(self, node: Node) -> None:
        free = all(self.nodes[key].state not in ("waiting", "running") for key in node.after)
        if free and node.state == "waiting" and all(self.nodes[key].state == "done" for key in node.depends_on):
            self._ready[node.key] = node

    def _block_if_hopeless(self, node: Node) -> bool:
        lost = [key for key in node.depends_on if self.is_lost(key)]
        if node.state != "waiting" or not lost:
            return False
        cause = self.nodes[lost[0]]
        node.state = "blocked"
        node.reason = cause.reason if cause.state == "blocked" else f"{cause.label} failed: {cause.reason}"
        return True
