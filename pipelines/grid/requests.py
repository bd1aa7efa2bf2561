"""What a grid's tasks ask of a node, checked before the first: Ray lets one that fits nowhere wait for ever."""

from __future__ import annotations

from gridlaw.pipelines.plan import GridPlan
from gridlaw.platform.cluster import Node, Request, amounts_text, check_requests, local_node
from gridlaw.platform.errors import BadInput


def check_machine(plan: GridPlan, nodes: list[Node] | None = None, *, autoscaling: bool = False) -> str:
    """The accelerator that training will use; ``BadInput`` for what no node (nothing: this machine) can ever run.

    autoscaling: nodes of other kinds may come, so what fits none of these is no mistake (``waiting``).
    """
    nodes = [local_node()] if nodes is None else nodes
    run = plan.spec.run
    has_gpus = any(node.num_gpus for node in nodes)
    accelerator = run.accelerator if run.accelerator != "auto" else ("gpu" if has_gpus else "cpu")
    for scale in dict.fromkeys(trunk.scale for trunk in plan.trunks):
        if run.devices_for(scale) > 1:
            raise _several_devices(f"run.devices.{scale}", run.devices_for(scale), "at most 1")
    if run.strategy is not None:
        raise _several_devices("run.strategy", run.strategy, "nothing")
    if not autoscaling:
        check_requests(nodes, requests_of(plan, accelerator))
    return accelerator


def waiting(plan: GridPlan, accelerator: str, nodes: list[Node]) -> list[str]:
    """What has to wait until the cluster adds a node that it fits, as sentences."""
    return [
        f"{request.name} waits for a node with {amounts_text(request)}, which the cluster has to add"
        for request in requests_of(plan, accelerator)
        if not any(node.fits(request) for node in nodes)
    ]


def requests_of(plan: GridPlan, accelerator: str) -> list[Request]:
    """What training at each scale asks for, and each evaluation."""
    run = plan.spec.run
    asked = [(f"training at {scale}", run.devices_for(scale), 0) for scale in {trunk.scale: 0 for trunk in plan.trunks}]
    asked += [
        (f"evaluation {each.name}", run.evaluation_devices(each.name), run.evaluation_memory(each.name))
        for each in plan.evaluations
    ]
    return [task_request(name, devices, accelerator, memory_bytes=memory) for name, devices, memory in asked]


def task_request(name: str, devices: float, accelerator: str, *, memory_bytes: int = 0) -> Request:
    """devices: cores, or GPUs under the accelerator gpu."""
    on_gpu = accelerator == "gpu" and devices > 0
    return Request(
        name=name,
        num_cpus=0 if on_gpu else max(devices, 0.01),
        num_gpus=devices if on_gpu else 0,
        memory_bytes=memory_bytes,
    )


def _several_devices(field: str, seen: object, allowed: str) -> BadInput:
    return BadInput(field, seen=seen, allowed=allowed, hint="trials on several devices are not in this version")
