"""A trunk in the DAG: the segments that its branches still need, and the branches."""

from __future__ import annotations

from collections.abc import Collection

from gridlaw.pipelines.grid.attempts import whole_steps
from gridlaw.pipelines.grid.graph import Graph, Node, NodeKey
from gridlaw.pipelines.grid.state import GridState, Standing
from gridlaw.pipelines.plan import TrunkPlan
from gridlaw.platform.store.base import Store

SHORT = 1e30
"""Priority of branches and evaluations: short against trunks, and laws are refitted as soon as they are done."""


def add_trunk(graph: Graph, store: Store, trunk: TrunkPlan, state: GridState) -> None:
    """Segments up to each branch point that has no checkpoint yet, and the branches of points that are not done."""
    standing = state.trunks[trunk.name]
    undone = [point for point in trunk.points if state.points[point.name].status != "done"]
    begin: tuple[NodeKey, ...] = (("prepare", trunk.data.folder),)
    parent = trunk.base.point if trunk.base is not None else None
    if parent is not None and ("decay", parent.name) in graph.nodes:
        begin += (("decay", parent.name),)
    last: tuple[NodeKey, ...] = begin
    steps = sorted({point.trunk_steps for point in undone if point.trunk_steps > 0})
    there = _whole(store, standing, steps)
    if standing.interrupted and trunk.branch_steps:
        # A driver died before it marked the trunk's run: its stored result is read again, nothing is trained.
        steps = sorted({*steps, trunk.branch_steps[-1]})
        there.discard(trunk.branch_steps[-1])
    rest = {step: sum(p.total_steps - p.trunk_steps for p in undone if p.trunk_steps >= step) for step in steps}
    for step in steps:
        if step not in there:
            key: NodeKey = ("segment", trunk.name, step)
            hanging = (steps[-1] - step + rest[step]) * trunk.batch_tokens * trunk.flops_per_token
            graph.add(Node(key=key, depends_on=last, priority=hanging))
            last = (key,)
    for point in undone:
        segment = ("segment", trunk.name, point.trunk_steps)
        depends = (segment,) if segment in graph.nodes else begin
        priority = SHORT if point.trunk_steps or not point.is_trained else point.train_flops
        graph.add(Node(key=("decay", point.name), depends_on=depends, priority=priority))


def _whole(store: Store, standing: Standing, steps: Collection[int]) -> set[int]:
    """Those of ``steps`` whose checkpoints are there and whole; no other is read."""
    if standing.run is None or not steps:
        return set()
    return whole_steps(store, standing.run.run_id, steps)
