"""What tasks ask of nodes: refused where it fits none, told apart where nodes may still come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gridlaw.pipelines.grid.driver import Driver
from gridlaw.pipelines.grid.graph import Graph
from gridlaw.pipelines.grid.graph import Node as Work
from gridlaw.pipelines.grid.records import Records
from gridlaw.pipelines.grid.requests import check_machine, requests_of, task_request, waiting
from gridlaw.pipelines.grid.source import Capacity
from gridlaw.pipelines.grid.submission import _capacity, _with_news
from gridlaw.pipelines.plan import GridPlan, make_plan
from gridlaw.platform.cluster import Cluster, Node
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.load import grid_from_mapping


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., GridPlan]:
    def plan(**run: Any) -> GridPlan:
        whole = {
            "name": "asked", "architectures": ["full"], "scales": ["n1", "n2"], "budgets": ["2N"],
            "data": {"context": 64}, "training": {"batch_tokens": 512, "precision": "fp32"}, "evaluate": ["loss"],
            "run": run,
        }  # fmt: skip
        return make_plan(grid_from_mapping(whole, source="test", base_folder=tmp_path))

    return plan


def node(**resources: float) -> Node:
    return Node(node_id="x", host="host", resources=resources)


def test_fractions_of_gpus_are_asked_for_by_scale(planned: Callable[..., GridPlan]) -> None:
    plan = planned(accelerator="gpu", devices={"n1": 0.5, "n2": 1})
    asked = {each.name: (each.num_gpus, each.num_cpus) for each in requests_of(plan, "gpu")}
    assert asked["training at n1"] == (0.5, 0)
    assert asked["training at n2"] == (1, 0)
    assert task_request("x", 0, "gpu").num_gpus == 0


def test_what_fits_no_node_is_refused_or_waits_for_one(planned: Callable[..., GridPlan]) -> None:
    plan = planned(accelerator="gpu", evaluations={"loss": {"memory": "64GiB"}})
    small = node(CPU=4, GPU=1, memory=2.0**34)
    with pytest.raises(BadInput, match=r"the resources of evaluation loss.*memory 64\.0 GiB"):
        check_machine(plan, [small])
    assert check_machine(plan, [small], autoscaling=True) == "gpu"
    (told,) = waiting(plan, "gpu", [small])
    assert told.startswith("evaluation loss waits for a node with") and "memory 64.0 GiB" in told
    assert waiting(plan, "gpu", [small, node(CPU=4, GPU=1, memory=2.0**37)]) == []


def test_nodes_that_come_are_used_and_a_cluster_that_grows_gets_every_task(planned: Callable[..., GridPlan]) -> None:
    nodes = [node(CPU=2)]
    cluster = cast(Cluster, SimpleNamespace(nodes=lambda: nodes))
    plan = planned()
    records = cast(Records, SimpleNamespace(ledger=SimpleNamespace(describe=lambda *_: True), parent_id="x"))
    driver = cast(Driver, SimpleNamespace(capacity=None, graph=SimpleNamespace(running=list)))
    tick = _with_news(
        records, lambda _: "", lambda _: None, lambda: _capacity(plan, cluster, "cpu", autoscaling=False)
    )  # fmt: skip
    nodes.append(node(CPU=3))
    tick(driver)
    assert driver.capacity == Capacity(num_devices=5, unit="CPU", max_parallel=None)
    assert _capacity(plan, cluster, "cpu", autoscaling=True).num_devices == float("inf")


def started_at_once(trials: dict[str, float], *, devices: float, max_parallel: int | None = None) -> list[str]:
    """Names of the trials (with what they ask for, in their order) that a driver starts with nothing running yet."""
    graph, in_use = Graph(), cast(dict[Any, float], {})
    for number, name in enumerate(trials):
        graph.add(Work(key=("decay", name), priority=-number))

    def start(work: Work, asked: float) -> None:
        graph.start(work.key)
        in_use[work.key] = asked

    driver = SimpleNamespace(
        graph=graph, capacity=Capacity(num_devices=devices, unit="GPU", max_parallel=max_parallel), _in_use=in_use,
        _devices=lambda work: trials[str(work.key[1])], _start=start,
    )  # fmt: skip
    Driver._submit_ready(cast(Driver, driver))
    return [str(key[1]) for key in in_use]


def test_trials_start_in_their_order_as_far_as_devices_and_max_parallel_go() -> None:
    assert started_at_once({"a": 1, "b": 1, "c": 1}, devices=2) == ["a", "b"]
    assert started_at_once({"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5, "e": 0.5}, devices=2) == ["a", "b", "c", "d"]
    assert started_at_once({"a": 1, "b": 1, "c": 1}, devices=8, max_parallel=2) == ["a", "b"]
    assert started_at_once({"a": 0.1, "b": 0.1, "c": 0.1}, devices=1) == ["a", "b", "c"]  # sums of fractions
    assert started_at_once({"small": 0.5, "large": 2, "other": 0.5}, devices=2) == ["small"]  # large is not starved
