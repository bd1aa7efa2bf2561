"""One Ray head with token authentication for all tests of this folder, and a person's folder beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_head import RayHead, new_token
from submitting import Client


@pytest.fixture(scope="session")
def head() -> Iterator[RayHead]:
    cluster = RayHead(token=new_token())
    cluster.start({"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    yield cluster
    cluster.stop()


@pytest.fixture
def client(head: RayHead, tmp_path: Path) -> Client:
    return Client(tmp_path, head)
