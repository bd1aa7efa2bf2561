"""Helpers that tests import by name (`import peers`) live beside this file; one thread per test process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from postgres import Postgres
    from s3_server import S3Server

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's is 15: workers would starve beside the other test process
if not Path(
    "/dev/nvidiactl"
).exists():  # peers' kernels are interpreted then, and triton reads this when first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.append(str(Path(__file__).parent))  # appended, never first: tests/platform must not come before the library


GRIDS = Path(__file__).parent / "pipelines" / "grid"  # whole grids with a Ray of their own


def scope(nodeid: str) -> str:
    """Tests of one scope share a process under ``pytest -n 2``: a file's, and all whole grids (no two Rays at once)."""
    file = Path(nodeid.split("::")[0])
    return "grids" if file.parts[1:3] == GRIDS.parts[-2:] else str(file)


@pytest.hookimpl(optionalhook=True)  # machines that only run kernels have no pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """(``--dist loadgroup`` would do, but pytest-xdist 3.8 loses its groups under pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = scope
    return scheduler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole grids first: they take the longest."""
    items.sort(key=lambda item: GRIDS not in item.path.parents)


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sqlite database as the driver makes it; made once, because migrations cost over a second."""
    from gridlaw.platform.ledger.tracking import create_database, default_tracking_uri

    folder = tmp_path_factory.mktemp("database")
    assert create_database(default_tracking_uri(folder))
    return folder / "mlflow.db"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server for all tests that ask; take a database each (``postgres.database("name")``)."""
    with _postgres() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A test's own server, for it to kill."""
    with _postgres() as server:
        yield server


@contextmanager
def _postgres() -> Iterator[Postgres]:
    from postgres import Postgres

    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3-compatible server for all tests that ask; take a bucket each (``s3_server.new_bucket()``)."""
    from s3_server import S3Server

    server = S3Server()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with this process's and its children's environment leading to it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
