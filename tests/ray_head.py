"""A real Ray head with dashboard, job server and token authentication, private to a test run."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from running import wait_for

# On a busy machine Ray's own limits for its start are too short, and workers at a lower priority starve.
_PATIENT = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "300",
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_JOB_START_TIMEOUT_SECONDS": "600",
    "RAY_worker_niceness": "0",
}


_TRIES, _NODE_SECONDS = 4, 120
_AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


class RayHead:
    """``ray start --head --block`` on loopback, on free ports and in a folder of its own.

    token: what clients have to present; None for a cluster without authentication. stop: ends it by its pid.
    """

    def __init__(self, *, token: str | None = None, num_cpus: int = 2, num_gpus: int = 0) -> None:
        """num_gpus: that it declares; none has to be there."""
        self.token, self.num_cpus, self.num_gpus = token, num_cpus, num_gpus
        self.nodes: list[RayNode] = []
        # Paths of unix sockets have at most 107 characters: pytest's folders are too deep for Ray's.
        self.folder = Path(tempfile.mkdtemp(prefix="gr-"))
        names = ("gcs", "dashboard", "agent", "agent-grpc", "metrics", "runtime-env", "client", "manager", "objects")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.address = f"http://127.0.0.1:{self.ports['dashboard']}"
        self.gcs_address = f"127.0.0.1:{self.ports['gcs']}"
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Of the cluster, and of clients that know its token."""
        known = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MLFLOW_"))}
        known["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), known.get("PATH", "")])
        known |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", **_PATIENT}
        if self.token is None:
            return known | {"RAY_AUTH_MODE": "disabled"}
        return known | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    def start(self, more: Mapping[str, str] | None = None) -> None:
        self._more = dict(more or {})
        for _ in range(_TRIES):
            self._start()
            if self._is_up():
                return
            self._end()
        raise AssertionError(f"no Ray head after {_TRIES} tries: {self.log()}")

    def _start(self) -> None:
        ports = {
            "port": "gcs",
            "dashboard-port": "dashboard",
            "dashboard-agent-listen-port": "agent",
            "dashboard-agent-grpc-port": "agent-grpc",
            "metrics-export-port": "metrics",
            "runtime-env-agent-port": "runtime-env",
            "ray-client-server-port": "client",
            "node-manager-port": "manager",
            "object-manager-port": "objects",
        }
        command = [
            sys.executable, __file__, "start", "--head", "--block", "--include-dashboard=true",
            "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--temp-dir={self.folder}",
            f"--num-cpus={self.num_cpus}", f"--num-gpus={self.num_gpus}", "--disable-usage-stats",
        ]  # fmt: skip
        command += ["--object-store-memory=80000000"]
        command += [f"--{option}={self.ports[name]}" for option, name in ports.items()]
        with open(self.folder / "head.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment() | self._more, start_new_session=True
            )

    def add_node(self, *, num_cpus: int) -> RayNode:
        """Another node, as its own processes on this machine; returns when the head knows it."""
        names = (
            "node-manager-port", "object-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
            "metrics-export-port", "runtime-env-agent-port",
        )  # fmt: skip
        command = [
            sys.executable, __file__, "start", "--block", f"--address={self.gcs_address}", "--disable-usage-stats",
        ]  # fmt: skip
        command += ["--node-ip-address=127.0.0.1", f"--num-cpus={num_cpus}", "--num-gpus=0"]
        command += ["--object-store-memory=80000000"]
        command += [f"--{name}={port}" for name, port in zip(names, free_ports(len(names)), strict=True)]
        log = self.folder / f"node{len(self.nodes)}.log"
        for _ in range(_TRIES):
            before = self._alive()
            with open(log, "ab") as output:
                process = subprocess.Popen(
                    command, stdout=output, stderr=output, env=self.environment() | self._more, start_new_session=True
                )
            node, deadline = RayNode(process), time.monotonic() + _NODE_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                if self._alive() - before:
                    self.nodes.append(node)
                    return node
                time.sleep(0.5)
            node.kill()
        raise AssertionError(f"no Ray node after {_TRIES} tries: {log.read_text()}")

    def ask(self, path: str) -> Any:
        """What the dashboard answers those who have the token."""
        request = urllib.request.Request(f"{self.address}{path}")
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def _alive(self) -> set[str]:
        found = self.ask("/api/v0/nodes")["data"]["result"]["result"]
        return {node["node_id"] for node in found if node["state"] == "ALIVE"}

    def _is_up(self, limit_seconds: float = 400) -> bool:
        """The job server answers, and its agent is there to run a job; False if the raylet gave up on its agent.

        It does so after 15 s, a constant in Ray's code that is too short for a busy machine.
        """
        gave_up = self.folder / "session_latest" / "logs" / "raylet.out"
        deadline = time.monotonic() + limit_seconds
        while time.monotonic() < deadline:
            assert self._process is not None and self._process.poll() is None, self.log()
            with suppress(OSError, urllib.error.URLError):
                request = urllib.request.Request(f"{self.address}/api/jobs/")
                if self.token is not None:
                    request.add_header("Authorization", f"Bearer {self.token}")
                with urllib.request.urlopen(request, timeout=5) as answer:
                    assert answer.status == 200
                    if "Ray runtime started" in self.log():
                        return True
            with suppress(OSError):
                if "Timed out waiting for file" in gave_up.read_text(errors="replace"):
                    return False
            time.sleep(0.2)
        raise AssertionError(f"no Ray head after {limit_seconds} s: {self.log()}")

    def held(self) -> AbstractContextManager[None]:
        """Inside, the head's tasks stand still (``RayNode.held``)."""
        assert self._process is not None
        return RayNode(self._process).held()

    def log(self) -> str:
        return (self.folder / "head.log").read_text()

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        import psutil

        if self._process is None:
            return
        own = [psutil.Process(self._process.pid)] if psutil.pid_exists(self._process.pid) else []
        own += [child for parent in own for child in parent.children(recursive=True)]
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        for process in own:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None
        (self.folder / "session_latest").unlink(missing_ok=True)


class RayNode:
    """``ray start --address`` of a head, with its raylet and workers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def tasks(self) -> list[str]:
        """Names of the tasks that run there now, as its workers show them."""
        return list(self._at_work().values())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the tasks of grids (their names have a slash) that run now stand still, so that they are not over
        before a test has looked at them. Ray may give up on one that does so for a minute: it is tried again then."""
        workers = wait_for(
            lambda: [process for process, task in self._at_work().items() if "/" in task], "a grid's task", 60
        )
        for worker in workers:
            worker.suspend()
        try:
            yield
        finally:
            for worker in workers:
                worker.resume()

    def kill(self) -> None:
        """As if its power had failed: every process at once, without a word."""
        import psutil

        for process in self._processes():
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()

    def _at_work(self) -> dict[Any, str]:
        import psutil

        found = {}
        for process in self._processes():
            with suppress(psutil.Error):
                words = " ".join(process.cmdline())
                if words.startswith("ray::") and not words.startswith("ray::IDLE"):
                    found[process] = words.removeprefix("ray::").strip()
        return found

    def _processes(self) -> list[Any]:
        import psutil

        try:
            own = psutil.Process(self._process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.Error:
            return []


def new_token() -> str:
    """A token that no other text in a test contains."""
    return secrets.token_hex(32)


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on now, all different."""
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _ray_start() -> None:
    """The ``ray`` command, with more than the seconds that constants in its code give its processes to come up: 30 to a
    raylet, and 15 to a raylet's agents to write down their ports, which are given here."""
    import inspect

    from ray._private import services
    from ray._raylet import persist_port

    start = services.start_raylet

    def start_raylet(*arguments: Any, **more: Any) -> Any:
        bound = inspect.signature(start).bind(*arguments, **more)
        given = bound.arguments
        # Nodes of one machine share a session's folder, and each unpacks a job's files anew there when its first task
        # comes: it would pull the folder away under the others' processes.
        given["resource_dir"] = f"{given['resource_dir']}-{given['node_id'][:8]}"
        Path(given["resource_dir"]).mkdir(exist_ok=True)
        for name in _AGENT_PORTS:
            persist_port(given["session_dir"], given["node_id"], name, given[name])
        return start(*bound.args, **bound.kwargs)

    services.start_raylet = start_raylet
    from ray.scripts.scripts import main

    ask = services.get_node

    def wait(*arguments: Any, **more: Any) -> Any:
        deadline = time.monotonic() + 300
        while True:
            try:
                return ask(*arguments, **more)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    services.get_node = wait
    main()


if __name__ == "__main__":
    _ray_start()
