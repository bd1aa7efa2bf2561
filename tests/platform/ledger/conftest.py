from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.tracking import create_database, default_tracking_uri


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sqlite database as the driver makes it; made once, because migrations cost over a second."""
    folder = tmp_path_factory.mktemp("database")
    assert create_database(default_tracking_uri(folder))
    return folder / "mlflow.db"


@pytest.fixture
def uri(fresh_database: Path, tmp_path: Path) -> str:
    shutil.copy(fresh_database, tmp_path / "mlflow.db")
    return default_tracking_uri(tmp_path)


@pytest.fixture
def ledger(uri: str, tmp_path: Path) -> Ledger:
    return Ledger.open(uri, "grid", str(tmp_path), create=True, patience_seconds=5)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python processes from source; what still runs in the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(source: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", source, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


class Server:
    """A real ``mlflow server`` on loopback that can be stopped and started again on the same database and port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with open(self.folder / "server.log", "ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                assert answer.status == 200
                return
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.1)
        raise AssertionError((self.folder / "server.log").read_text())

    def stop(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the server's own group: its workers, too
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def server(fresh_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(fresh_database, folder / "mlflow.db")
    running = Server(folder)
    running.start()
    yield running
    running.stop()
