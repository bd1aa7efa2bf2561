"""Examples of evaluations in the DAG: what has still to be made, after what, and for whom.

They are kept by content in the store, so a grid makes only what no grid has made before; key tokens wait for the point
that finds them, if that is one of this grid.
"""

from __future__ import annotations

from collections.abc import Mapping

from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.pipelines.evaluations.sources import ExamplesPlan
from gridlaw.pipelines.grid.graph import Graph, Node, NodeKey
from gridlaw.pipelines.grid.state import GridState, wanted_examples
from gridlaw.pipelines.grid.tasks import EvaluatorFolders
from gridlaw.pipelines.plan import GridPlan, PointPlan, TrunkPlan


class ExamplesBook:
    """The examples that a submission makes; their nodes are ``("examples", evaluation, fingerprint)``."""

    def __init__(self, plan: GridPlan, state: GridState) -> None:
        self._plan = plan
        self._points = {point.name: point for point in plan.points}
        self._wanted = {each.fingerprint: each for each in wanted_examples(plan, state)}

    def of(self, node: Node) -> ExamplesPlan:
        """What a node makes."""
        return self._wanted[str(node.key[2])]

    def data(self) -> set[str]:
        """Prepared data that they are made from, and that evaluators' tokenizers are in."""
        found = {each.data for each in self._wanted.values()}
        return found | {self._data_of(point) for each in self._wanted.values() if (point := self._evaluator(each))}

    def add_to(self, graph: Graph, *, priority: float) -> None:
        """Nodes after their data and after the point that finds key tokens, as far as these are nodes themselves."""
        for examples in self._wanted.values():
            after: list[NodeKey] = [("prepare", examples.data)]
            point = self._evaluator(examples)
            if point is not None:
                after += [("prepare", self._data_of(point)), ("decay", point.name)]
            depends = tuple(key for key in dict.fromkeys(after) if key in graph.nodes)
            if _key(examples) not in graph.nodes:  # there already for points that came before
                graph.add(Node(key=_key(examples), depends_on=depends, priority=priority))

    def before(self, trunk: TrunkPlan, evaluation: Evaluation) -> tuple[NodeKey, ...]:
        """What an evaluation of a trunk's points waits for beside the point."""
        examples = self._plan.examples(trunk, evaluation)
        return (_key(examples),) if examples is not None and examples.fingerprint in self._wanted else ()

    def evaluator_folders(self, examples: ExamplesPlan, run_ids: Mapping[str, str]) -> EvaluatorFolders | None:
        """Where the grid's point that finds key tokens is; None if they are found by no point."""
        point = self._evaluator(examples)
        return None if point is None else EvaluatorFolders(run_id=run_ids[point.name], data=self._data_of(point))

    def _evaluator(self, examples: ExamplesPlan) -> PointPlan | None:
        source = examples.evaluation.evaluator
        return None if source is None or source.point is None else self._points[source.point]

    def _data_of(self, point: PointPlan) -> str:
        return self._plan.trunk_of(point).data.folder


def evaluation_of(node: Node) -> str:
    """Name of the evaluation whose resources a task asks for; nothing for other tasks."""
    place = {"examples": 1, "evaluate": 2}.get(node.kind)
    return "" if place is None else str(node.key[place])


def _key(examples: ExamplesPlan) -> NodeKey:
    return ("examples", examples.evaluation.name, examples.fingerprint)
