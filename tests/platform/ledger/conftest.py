from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.tracking import default_tracking_uri
from mlflow_server import Server


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


@pytest.fixture(scope="module")
def server(fresh_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(fresh_database, folder / "mlflow.db")
    running = Server(folder)
    running.start()
    yield running
    running.stop()
