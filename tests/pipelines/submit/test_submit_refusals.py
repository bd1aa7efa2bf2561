"""What cannot be submitted: one clear message, exit code 2, and no job made. All against a real Ray head."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ray_head import new_token
from submitting import Client

# A Ray head with dashboard and job server: minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def refused(client: Client, *arguments: str) -> str:
    """The message; the command must have printed nothing else and made no job."""
    before = {job["submission_id"] for job in client.ask("/api/jobs/")}
    done = client.gridlaw(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert {job["submission_id"] for job in client.ask("/api/jobs/")} == before
    assert not client.store.exists()
    return done.stderr


def submit(client: Client, *more: str) -> str:
    return refused(client, "submit", "grid.yaml", *more)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_addresses_that_are_none(client: Client) -> None:
    place = ("--store", str(client.store))
    nobody = f"http://127.0.0.1:{free_port()}"
    told = submit(client, *place, "--address", nobody)
    assert nobody in told and "Nobody answers there" in told
    told = submit(client, *place, "--address", "ray://127.0.0.1:10001")
    assert "The Ray Client is not used" in told
    assert "Write it with http://" in submit(client, *place, "--address", client.head.gcs_address)


def test_a_token_that_is_wrong_or_missing(client: Client) -> None:
    client.more = {"RAY_AUTH_TOKEN": new_token()}
    told = submit(client, "--store", str(client.store))
    assert "It was refused" in told and "RAY_AUTH_TOKEN" in told
    assert client.more["RAY_AUTH_TOKEN"] not in told
    client.more = {"RAY_AUTH_TOKEN": "", "RAY_AUTH_MODE": ""}
    assert "None was given" in submit(client, "--store", str(client.store))


def test_places_that_are_not_the_same_for_a_job(client: Client) -> None:
    assert "run.store" in (told := submit(client)) and "--store" in told
    told = submit(client, "--store", "here")
    assert "'here'" in told and "absolute path" in told
    told = submit(client, "--store", str(client.store), "--tracking-uri", "sqlite:///mlflow.db")
    assert "run.tracking_uri" in told and "absolute path" in told
    client.write({"data": {"context": 64, "mixture": ["../elsewhere.jsonl"]}})
    (client.folder.parent / "elsewhere.jsonl").write_text('{"text": "outside"}\n' * 50)
    told = submit(client, "--store", str(client.store))
    assert "../elsewhere.jsonl" in told and "below the grid file's folder" in told


def test_more_than_is_sane_to_ship(client: Client) -> None:
    told = submit(client, "--store", str(client.store), "--ship-limit", "0.1")
    assert "data.mixture[0]" in told and "0.1 MiB" in told and "--ship-limit" in told


def test_a_password_on_the_command_line(client: Client) -> None:
    told = submit(
        client, "--store", str(client.store), "--tracking-uri", "postgresql://user:topsecret@127.0.0.1/mlflow"
    )
    assert "GRIDLAW_TRACKING_URI" in told
    assert "topsecret" not in told


def test_a_job_that_does_not_exist(client: Client) -> None:
    for command in ("logs", "stop", "status"):
        told = refused(client, command, "gridlaw-nothing-1")
        assert "gridlaw-nothing-1" in told and client.head.address in told


class OldMlflow(BaseHTTPRequestHandler):
    """Answers /version as MLflow 2 does; a real one would need an environment of its own."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"2.9.2")

    def log_message(self, format: str, *arguments: object) -> None:
        return


@pytest.fixture
def old_tracking() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OldMlflow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture
def file_as_store(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("no folder")
    return tmp_path / "file" / "store"


def test_what_only_the_cluster_can_know_comes_back_from_the_job(
    client: Client, old_tracking: str, file_as_store: Path
) -> None:
    """A store that nodes cannot write and a tracking server that is too old are the driver's to refuse: its exit code
    and its words are the command's."""
    done = client.gridlaw("submit", "grid.yaml", "--store", str(file_as_store))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "run.store" in done.stderr and str(file_as_store) in done.stderr and "Traceback" not in done.stderr
    done = client.gridlaw("submit", "grid.yaml", "--store", str(client.store), "--tracking-uri", old_tracking)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "MLflow 3 or newer" in done.stderr and "2.9.2" in done.stderr and "Traceback" not in done.stderr
