"""Ray, embedded or elsewhere: start, what it has, whether a request can ever be placed, and a clean end.

Not here: tasks. The driver submits its own (``pipelines/grid``); nothing of ours wraps ``ray.remote``.

An embedded Ray belongs to its driver: it listens on loopback, keeps Ray's token authentication, sends no usage
statistics, and ends with the driver even when that is killed (Ray's two agents within about a minute).

Concurrency. ``begin_cluster`` starts Ray in a thread, because most of its seconds are waiting for Ray's processes, and
the driver has its ledger to open meanwhile. That thread lives until ``shutdown``: the kernel ends Ray's processes when
the thread that started them ends, not only when the driver does.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from gridlaw.platform.errors import BadInput, Surroundings

NAMESPACE = "gridlaw"
# Tasks hand over paths and small records, never tensors, so the object store can be small.
_OBJECT_STORE_BYTES = 80 * 2**20
_STARTS = 3
_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # glibc gives large blocks back and faults them in again each step; keeping them saves 10–20 ms a step.
    "MALLOC_TOP_PAD_": str(2**28),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one task asks for. name: the task, for messages. memory_bytes: 0 for no claim. custom: Ray's own
    resources."""

    name: str
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)

    def as_resources(self) -> dict[str, float]:
        """In Ray's names."""
        asked = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory_bytes), **self.custom}
        return {name: amount for name, amount in asked.items() if amount > 0}

    def as_options(self) -> dict[str, Any]:
        """For ``remote_function.options(**…)``."""
        options: dict[str, Any] = {"name": self.name, "num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        if self.memory_bytes:
            options["memory"] = self.memory_bytes
        if self.custom:
            options["resources"] = dict(self.custom)
        return options


@dataclass(frozen=True, kw_only=True)
class Node:
    """One living machine of a cluster. resources: in Ray's names, in total, not what is free now."""

    node_id: str
    host: str
    resources: Mapping[str, float]

    @property
    def num_cpus(self) -> float:
        return self.resources.get("CPU", 0.0)

    @property
    def num_gpus(self) -> float:
        return self.resources.get("GPU", 0.0)

    def fits(self, request: Request) -> bool:
        """Whether an empty node of this kind could run the task."""
        return all(self.resources.get(name, 0.0) >= amount for name, amount in request.as_resources().items())

    def __str__(self) -> str:
        parts = [f"{self.num_cpus:g} cores", f"{self.num_gpus:g} GPUs"]
        if "memory" in self.resources:
            parts.append(f"{self.resources['memory'] / 2**30:.1f} GiB")
        parts += [f"{name} {amount:g}" for name, amount in sorted(self.resources.items()) if _is_custom(name)]
        return f"{self.host}: " + ", ".join(parts)


class Cluster:
    """A running Ray that this process is connected to. Made by ``start_cluster``; ``shutdown`` ends it or leaves it."""

    def __init__(self, *, embedded: bool, address: str) -> None:
        self.embedded, self.address = embedded, address

    def nodes(self) -> list[Node]:
        """The nodes alive now; they come and go on a cluster that scales."""
        import ray

        return [
            Node(node_id=node["NodeID"], host=node["NodeManagerHostname"], resources=dict(node["Resources"]))
            for node in ray.nodes()
            if node["Alive"]
        ]

    def check(self, requests: Iterable[Request]) -> None:
        """``BadInput`` for the first task that no node could ever run: it would wait for ever, without a word from
        Ray."""
        check_requests(self.nodes(), requests)

    def shutdown(self) -> None:
        """Disconnect; an embedded Ray ends with all its processes. May be called twice."""
        import ray

        with suppress(Exception):  # ending a Ray that has already died must not hide why
            ray.shutdown()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def start_cluster(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    dashboard: bool = False,
    worker_environment: Mapping[str, str] | None = None,
) -> Cluster:
    """Start an embedded Ray on this machine, or connect to one that runs.

    address: None for an embedded one; HOST:PORT of a cluster's head; "auto" inside a Ray Job. num_cpus, num_gpus: of an
    embedded one; by default what this process may use. worker_environment: further variables of the workers' processes.
    ``BadInput`` for an address that is none, ``Surroundings`` for one that does not answer or a Ray that does not
    start.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    environment = _WORKER_ENVIRONMENT | dict(worker_environment or {})
    if address is None:
        return _start_embedded(num_cpus, num_gpus, dashboard=dashboard, environment=environment)
    _check_address(address)
    import ray

    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": environment},
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise Surroundings(f"cannot connect to the Ray cluster at {address}: {_first_line(error)}") from error
    return Cluster(embedded=False, address=address)


class TooSlow(Surroundings):
    """Ray's own processes did not come up in the time that Ray gives them, as on a machine that is busy otherwise."""


class StartingCluster:
    """A cluster that starts in the background. Made by ``begin_cluster``."""

    def __init__(self, start: Callable[[], Cluster]) -> None:
        self._future: Future[Cluster] = Future()
        self._over = threading.Event()
        self._begin(start, _STARTS)

    def result(self) -> Cluster:
        """Wait for the cluster; raises what ``start_cluster`` raises."""
        return self._future.result()

    def shutdown(self) -> None:
        """End the cluster, started or still starting. May be called twice."""
        with suppress(Exception):
            self._future.result().shutdown()
        self._over.set()
        self._thread.join(timeout=10)

    def _begin(self, start: Callable[[], Cluster], tries: int) -> None:
        self._thread = threading.Thread(target=self._run, args=(start, tries), name="gridlaw-ray", daemon=True)
        self._thread.start()

    def _run(self, start: Callable[[], Cluster], tries: int) -> None:
        try:
            cluster = start()
        except TooSlow as error:
            if tries > 1:
                self._begin(start, tries - 1)  # in a thread of its own: what this one started ends with this one
            else:
                self._future.set_exception(error)
            return
        except BaseException as error:
            self._future.set_exception(error)
            return
        self._future.set_result(cluster)
        self._over.wait()


def begin_cluster(address: str | None = None, **settings: Any) -> StartingCluster:
    """``start_cluster`` in the background, with the same arguments; call ``shutdown`` on what this returns."""
    return StartingCluster(lambda: start_cluster(address, **settings))


def _start_embedded(
    num_cpus: int | None, num_gpus: int | None, *, dashboard: bool, environment: Mapping[str, str]
) -> Cluster:
    import ray

    try:
        # Ray's worker processes inherit this environment; a runtime_env would cost each new worker a round trip.
        with _environment(environment), _loopback():
            ray.init(
                address="local",
                num_cpus=num_local_cpus() if num_cpus is None else num_cpus,
                num_gpus=num_local_gpus() if num_gpus is None else num_gpus,
                include_dashboard=dashboard,
                dashboard_host="127.0.0.1",
                object_store_memory=_OBJECT_STORE_BYTES,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except Exception as error:
        slow = type(error) is Exception  # so Ray tells that its processes were not there after some seconds
        raise (TooSlow if slow else Surroundings)(
            f"Ray did not start on this machine: {_first_line(error)}. Its logs are in /tmp/ray/session_latest/logs; "
            "often /tmp or /dev/shm is full, or the machine is overloaded"
        ) from error
    return Cluster(embedded=True, address=ray.get_runtime_context().gcs_address)


def check_requests(nodes: list[Node], requests: Iterable[Request]) -> None:
    """``BadInput`` for the first request that fits none of the nodes; names what it asks and what the largest nodes
    have."""
    for request in requests:
        if any(node.fits(request) for node in nodes):
            continue
        asked = request.as_resources()
        if asked.get("GPU") and not any(node.num_gpus for node in nodes):
            raise BadInput("run.accelerator", seen="gpu", allowed="cpu or auto: no node has a GPU", hint=_have(nodes))
        raise BadInput(
            f"the resources of {request.name}",
            seen=amounts_text(request),
            allowed="what one node can give",
            hint=f"{_have(nodes)}. Ask for less under run:, or add a node",
        )


def amounts_text(request: Request) -> str:
    """``CPU 1, memory 16.0 GiB``."""
    return ", ".join(f"{name} {_amount(name, amount)}" for name, amount in request.as_resources().items())


def local_node() -> Node:
    """This machine as an embedded Ray would have it; for plans, without starting Ray."""
    return Node(
        node_id="",
        host=socket.gethostname(),
        resources={"CPU": float(num_local_cpus()), "GPU": float(num_local_gpus()), "memory": float(local_memory())},
    )


def num_local_cpus() -> int:
    """Cores that this process may use: its affinity, and the container's quota rounded down to whole cores."""
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            num_cpus = min(num_cpus, max(1, math.floor(int(quota) / int(period))))
    return num_cpus


def local_memory() -> int:
    """Bytes of this machine, or of its container if that has less. Ray gives out what is free of them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # "max" is no number
    return memory


def num_local_gpus() -> int:
    """NVIDIA GPUs that this process may use, by the driver's own list; reads no CUDA, so a plan stays cheap."""
    try:
        num_gpus = len(list(Path("/proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_gpus
    named = [name for name in visible.split(",") if name.strip() and name.strip() not in {"-1", "NoDevFiles"}]
    return min(num_gpus, len(named))


def _check_address(address: str) -> None:
    if address == "auto":
        return
    scheme = address.partition("://")[0] if "://" in address else ""
    hint = {
        "ray": "the Ray Client is not used; give the head's HOST:PORT",
        "http": "that is the address for `gridlaw submit --address`",
        "https": "that is the address for `gridlaw submit --address`",
    }.get(scheme, "")
    matched = re.fullmatch(r"(?P<host>[^:/\s]+):(?P<port>\d+)", address)
    if scheme or matched is None:
        raise BadInput("--address", seen=address, allowed="HOST:PORT of a Ray head (6379 by default)", hint=hint)
    try:  # Ray itself would try for minutes
        socket.create_connection((matched["host"], int(matched["port"])), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise Surroundings(
            f"no Ray cluster answers at {address} ({error}). Is the address right, and the head up?"
        ) from error


def _have(nodes: list[Node]) -> str:
    if not nodes:
        return "The cluster has no node"
    largest = sorted({str(node) for node in nodes})[:3]
    return "Nodes have: " + "; ".join(largest) + ("; …" if len({str(node) for node in nodes}) > 3 else "")


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name == "memory" else f"{amount:g}"


def _is_custom(name: str) -> bool:
    return name not in {"CPU", "GPU", "memory", "object_store_memory"} and not name.startswith("node:")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


@contextmanager
def _loopback() -> Iterator[None]:
    """Make an embedded Ray bind and advertise 127.0.0.1 only.

    Ray does so by itself on systems where it runs no clusters, and has no public switch for it: a loopback address
    given as ``_node_ip_address`` is turned back into the host's. A test looks at the sockets.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for child processes that start inside, then put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
