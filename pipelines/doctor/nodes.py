"""Ask every node of a cluster something, each by a task of its own, and whether all of them see one store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gridlaw.pipelines.doctor.probe import VERSION, store_probe
from gridlaw.pipelines.submit import credentials
from gridlaw.platform.cluster import Node
from gridlaw.platform.errors import BadInput, GridlawError
from gridlaw.platform.store.base import Store

Task = dict[str, Any]
PREFLIGHT_SECONDS = 300.0


def ask_nodes(
    nodes: list[Node], ask: Callable[[Task], Task], task: Task, *, limit_seconds: float
) -> Iterator[tuple[Node, Task | str]]:
    """``ask(task)`` on every node of the connected Ray, at the same time: its answer, or why there is none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(max_retries=0, num_cpus=0)(_with_credentials)
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        name = f"{ask.__name__} of {node_name(node)}"
        asked[remote.options(name=name, scheduling_strategy=there).remote(ask, task)] = node
    deadline, waiting = time.monotonic() + limit_seconds, list(asked)
    while waiting and time.monotonic() < deadline:
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=1.0)
        for reference in ready:
            try:
                yield asked[reference], ray.get(reference)
            except ray.exceptions.RayError as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                yield asked[reference], lines[-1 if len(lines) > 1 and lines[-1].strip() else 0].strip()[:300]
    for reference in waiting:
        ray.cancel(reference, force=True)
        yield asked[reference], f"no answer within {limit_seconds:.0f} s"


def _with_credentials(ask: Callable[[Task], Task], task: Task) -> Task:
    credentials.load()
    return ask(task)


def clock(task: Task) -> Task:
    """A node's clock, in seconds since the epoch."""
    return {"now": time.time()}


def node_name(node: Node) -> str:
    """Host and the start of the id: nodes of one machine share a host."""
    return f"{node.host} {node.node_id[:6]}"


@contextmanager
def token(store: Store) -> Iterator[Task]:
    """A word in the store that other nodes are asked for, as a probe's task; gone afterwards."""
    name, word = f"doctor-{secrets.token_hex(8)}.txt", secrets.token_hex(16)
    store.write_bytes(name, word.encode())
    try:
        yield {"store": store.address, "name": name, "token": word}
    finally:
        with suppress(GridlawError, OSError):
            store.delete(name)


def refuse_unfit_nodes(nodes: list[Node], store: Store) -> None:
    """``BadInput`` unless every node reads and writes this store and has this version of gridlaw.

    Asked before a grid starts on several nodes: a task elsewhere would fail hours later.
    """
    with token(store) as task:
        for node, answer in ask_nodes(nodes, store_probe, task, limit_seconds=PREFLIGHT_SECONDS):
            problem = answer if isinstance(answer, str) else answer["error"]
            if problem:
                raise BadInput(
                    "run.store",
                    seen=store.address,
                    allowed="a store that every node can read and write",
                    hint=f"Not so on {node_name(node)}: {problem}. gridlaw doctor looks at every node",
                )
            if not isinstance(answer, str) and answer["version"] != VERSION:
                raise BadInput(
                    f"gridlaw on {node_name(node)}",
                    seen=answer["version"],
                    allowed=f"{VERSION}, as where the driver runs",
                    hint="Install the same version on every node",
                )
