"""What a driver is given and gives: its capacity, its problems, and a source of further points.

A study is such a source: it proposes trials while earlier ones train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gridlaw.pipelines.grid.graph import Graph, Node
from gridlaw.pipelines.grid.outcome import Outcome

if TYPE_CHECKING:
    from gridlaw.pipelines.grid.driver import Driver


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that did not succeed: told at the end, in the report and on its run.

    is_input: because what a person gave cannot be used, which only the work itself could find.
    """

    name: str
    kind: str
    status: str
    reason: str
    attempts: int
    is_input: bool = False


def exit_code(problems: Sequence[Problem], graph: Graph) -> int:
    """0 without problems; 2 if the input was unusable and nothing came of anything else either; else 1."""
    if not problems:
        return 0
    refused = all(each.is_input or each.status == "blocked" for each in problems)
    work = [node for node in graph.nodes.values() if node.kind in ("segment", "decay", "evaluate")]
    return 2 if refused and not any(node.state == "done" for node in work) else 1


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How much may run at a time. unit: CPU or GPU, what a training task asks for."""

    num_devices: float
    unit: str
    max_parallel: int | None


class Source(Protocol):
    """Where further points come from while the driver works, such as a study's trials. Called from its one thread."""

    def more(self) -> bool:
        """Whether there may be more to add, or to write down, with nothing left in the graph."""

    def feed(self, driver: Driver) -> None:
        """Add what there is room for (``Driver.add``). ``Surroundings`` is waited out as an outage of the ledger is."""

    def owns(self, node: Node) -> bool:
        """Whether a node belongs to a point of this source: its end is this source's to judge and to record."""

    def judge(self, node: Node, outcome: Outcome) -> Outcome:
        """The outcome of a node that it owns, or another one in its place; may be called again for the same end."""

    def ended(self, node: Node, outcome: Outcome) -> None:
        """A node that it owns is done, or has failed for good."""
