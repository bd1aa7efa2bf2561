from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from gridlaw.platform.cluster import (
    Cluster,
    Node,
    Request,
    StartingCluster,
    TooSlow,
    begin_cluster,
    check_requests,
    local_node,
    num_local_cpus,
    num_local_gpus,
    start_cluster,
)
from gridlaw.platform.errors import BadInput, Surroundings


def node(host: str, **resources: float) -> Node:
    return Node(node_id=host, host=host, resources=resources)


TWO_NODES = [node("a", CPU=2, memory=8 * 2.0**30), node("b", CPU=8, GPU=2, memory=64 * 2.0**30, fast=1)]


def test_trials_pending_for_ever() -> None:
    """ray #24259 PR #17957: what can never be placed is refused before the first task, with what there is."""
    check_requests(TWO_NODES, [Request(name="x", num_cpus=8), Request(name="y", num_gpus=0.5, custom={"fast": 1})])
    with pytest.raises(BadInput) as refused:
        check_requests(TWO_NODES, [Request(name="ok"), Request(name="full/S4", num_cpus=9, memory_bytes=2**34)])
    for part in ("full/S4", "CPU 9", "memory 16.0 GiB", "a: 2 cores, 0 GPUs, 8.0 GiB", "b: 8 cores, 2 GPUs, 64.0 GiB"):
        assert part in str(refused.value)
    with pytest.raises(BadInput, match="full/S4"):  # enough in all, but on no single node
        check_requests(TWO_NODES, [Request(name="full/S4", num_cpus=10)])


def test_accelerator_gpu_where_there_is_none() -> None:
    with pytest.raises(BadInput, match=r"run\.accelerator is 'gpu'.*a: 2 cores, 0 GPUs"):
        check_requests(TWO_NODES[:1], [Request(name="x", num_gpus=1)])
    with pytest.raises(BadInput, match="The cluster has no node"):
        check_requests([], [Request(name="x")])


def test_a_request_in_rays_words() -> None:
    request = Request(name="p", num_cpus=0, num_gpus=0.5, memory_bytes=1024, custom={"fast": 1})
    assert request.as_resources() == {"GPU": 0.5, "memory": 1024.0, "fast": 1}
    assert request.as_options() == {
        "name": "p",
        "num_cpus": 0,
        "num_gpus": 0.5,
        "memory": 1024,
        "resources": {"fast": 1},
    }


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= num_local_cpus() <= os.cpu_count()
    assert local_node().num_cpus == num_local_cpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert num_local_gpus() == 0
    affinity = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(affinity)})
        assert num_local_cpus() == 1
    finally:
        os.sched_setaffinity(0, affinity)


def test_addresses() -> None:
    """kuberay #1687: the Ray Client is refused, submission is the way."""
    for wrong in ("http://head:8265", "ray://head:10001", "head", "head:x", ""):
        with pytest.raises(BadInput, match="HOST:PORT of a Ray head"):
            start_cluster(wrong)
    with pytest.raises(BadInput, match="gridlaw submit"):
        start_cluster("http://head:8265")
    begin = time.monotonic()
    with pytest.raises(Surroundings, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        start_cluster("127.0.0.1:9")
    assert time.monotonic() - begin < 10


def test_a_failed_start_is_told_where_it_is_awaited() -> None:
    starting = begin_cluster("127.0.0.1:9")
    with pytest.raises(Surroundings, match="no Ray cluster answers"):
        starting.result()
    starting.shutdown()


def test_a_ray_that_is_slow_to_come_up_is_started_again_a_few_times() -> None:
    """Each time in a thread of its own, with which the processes of the attempt before end."""
    threads: list[threading.Thread] = []

    def start(num_failures: int) -> Cluster:
        threads.append(threading.current_thread())
        if len(threads) <= num_failures:
            raise TooSlow("its processes were not there in time")
        return Cluster(embedded=True, address="127.0.0.1:1")

    starting = StartingCluster(lambda: start(2))
    assert starting.result().address == "127.0.0.1:1"
    assert len(set(threads)) == 3
    for thread in threads[:2]:
        thread.join(10)
    assert [thread.is_alive() for thread in threads] == [False, False, True]
    starting.shutdown()
    threads.clear()
    with pytest.raises(Surroundings, match="not there in time"):
        StartingCluster(lambda: start(9)).result()
    assert len(threads) == 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    starting = begin_cluster(num_cpus=1, num_gpus=0)
    yield starting.result()
    starting.shutdown()


def test_workers_run_in_a_prepared_environment(cluster: Cluster) -> None:
    import ray

    names = ["OMP_NUM_THREADS", "RAY_USAGE_STATS_ENABLED", "MLFLOW_DISABLE_TELEMETRY", "MALLOC_TOP_PAD_"]

    @ray.remote
    def look(names: list[str]) -> dict[str, Any]:
        return {name: os.environ.get(name) for name in names}

    options = Request(name="full/S1/100N/seed0").as_options()
    assert ray.get(look.options(**options).remote(names)) == dict(
        zip(names, ["1", "0", "true", "268435456"], strict=True)
    )
    assert "MALLOC_TOP_PAD_" not in os.environ
    from ray._common.usage import usage_lib

    assert not usage_lib.usage_stats_enabled()


def test_resources_are_those_asked_for(cluster: Cluster) -> None:
    (only,) = cluster.nodes()
    assert (only.num_cpus, only.num_gpus) == (1, 0)
    cluster.check([Request(name="x", num_cpus=1)])
    with pytest.raises(BadInput, match="CPU 2"):
        cluster.check([Request(name="x", num_cpus=2)])


def test_an_embedded_ray_listens_on_loopback_only(cluster: Cluster) -> None:
    import ray

    ray.get(ray.remote(lambda: None).remote())
    listening = [
        connection.laddr.ip
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]
        if "ray" in " ".join(process.cmdline())
        for connection in process.net_connections()
        if connection.status == "LISTEN"
    ]
    assert len(listening) > 4, "the test looked at the wrong processes"
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def test_ray_keeps_its_token_authentication(cluster: Cluster) -> None:
    from ray._raylet import AuthenticationMode, get_authentication_mode

    assert get_authentication_mode() == AuthenticationMode.TOKEN


DRIVER = """if True:
    import time
    from gridlaw.platform.cluster import begin_cluster
    starting = begin_cluster(num_cpus=1)
    starting.result()
    print("up", flush=True)
    time.sleep(100)
"""


def test_a_killed_driver_leaves_no_ray_behind() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout.readline() == "up\n"
        children = psutil.Process(driver.pid).children(recursive=True)
        working = [child for child in children if "Agent" not in child.name()]  # agents may take a minute more
        assert any("raylet" in child.name() for child in working)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    left = psutil.wait_procs(working, timeout=60)[1]
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def test_importing_is_cheap() -> None:
    heavy = {"ray", "torch", "mlflow", "psutil"}
    source = f"import sys, gridlaw.platform.cluster; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True).stdout == "[]\n"
