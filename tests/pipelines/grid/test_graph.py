"""The DAG's bookkeeping, without Ray."""

from __future__ import annotations

import pytest

from gridlaw.pipelines.grid.graph import Graph, Node


def chain() -> Graph:
    graph = Graph()
    graph.add(Node(key=("segment", "t", 10), priority=5))
    graph.add(Node(key=("segment", "t", 20), depends_on=(("segment", "t", 10),), priority=4))
    graph.add(Node(key=("decay", "p10"), depends_on=(("segment", "t", 10),)))
    graph.add(Node(key=("decay", "p20"), depends_on=(("segment", "t", 20),)))
    graph.add(Node(key=("evaluate", "p20", "loss"), depends_on=(("decay", "p20"),)))
    return graph


def test_only_nodes_with_finished_dependencies_are_ready_highest_priority_first() -> None:
    graph = chain()
    assert [n.key for n in graph.ready()] == [("segment", "t", 10)]
    graph.start(("segment", "t", 10))
    assert graph.ready() == []
    graph.done(("segment", "t", 10))
    assert [n.key for n in graph.ready()] == [("segment", "t", 20), ("decay", "p10")]


def test_a_failure_blocks_everything_behind_it_and_nothing_else() -> None:
    graph = chain()
    graph.start(("segment", "t", 10))
    graph.done(("segment", "t", 10))
    graph.start(("segment", "t", 20))
    blocked = graph.fail(("segment", "t", 20), "loss is nan at step 15")
    assert [n.key for n in blocked] == [("decay", "p20"), ("evaluate", "p20", "loss")]
    assert all("nan at step 15" in n.reason for n in blocked)
    assert [n.key for n in graph.ready()] == [("decay", "p10")]
    graph.start(("decay", "p10"))
    graph.done(("decay", "p10"))
    assert graph.finished()


def test_a_node_added_behind_a_failure_is_blocked_at_once() -> None:
    graph = chain()
    graph.start(("segment", "t", 10))
    graph.fail(("segment", "t", 10), "out of memory")
    late = graph.add(Node(key=("refit", "loss", "full", 1), depends_on=(("decay", "p10"),)))
    assert late.state == "blocked"
    assert graph.finished()


def test_a_node_tried_again_counts_its_attempts() -> None:
    graph = chain()
    graph.start(("segment", "t", 10))
    graph.again(("segment", "t", 10), "worker lost")
    assert graph.start(("segment", "t", 10)).attempts == 2


def test_starting_a_node_that_is_not_ready_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="not ready"):
        chain().start(("decay", "p10"))


@pytest.mark.parametrize("end", ["done", "fail"])
def test_what_comes_after_another_waits_for_its_end_and_not_for_its_success(end: str) -> None:
    graph = Graph()
    graph.add(Node(key=("refit", 1)))
    graph.add(Node(key=("refit", 2), after=(("refit", 1),)))
    graph.start(("refit", 1))
    assert graph.ready() == []
    if end == "done":
        graph.done(("refit", 1))
    else:
        assert graph.fail(("refit", 1), "out of memory") == []
    assert [node.key for node in graph.ready()] == [("refit", 2)]
