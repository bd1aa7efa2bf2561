"""``gridlaw ui``: MLflow over a local store, or Optuna's dashboard; on loopback, one address, stopped cleanly."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

import click

from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.ledger.tracking import redacted

# The UI opens in its mode for agents otherwise, where runs of training are hidden.
_MODE = "?workflowType=machine_learning"


@click.command()
@click.option("--store", default="gridlaw-runs", show_default=True, help="The store whose ledger is shown.")
@click.option("--port", default=5000, show_default=True, type=click.IntRange(1, 65535), help="First port to try.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind; loopback unless told otherwise.")
@click.option("--optuna", is_flag=True, help="Optuna's dashboard over the studies instead.")
@click.option("--storage", default=None, help="With --optuna: the studies' storage; the store's own when left out.")
def ui(store: str, port: int, host: str, optuna: bool, storage: str | None) -> None:
    """Open the MLflow UI for a local grid, or Optuna's dashboard for its studies. Ctrl-C stops it."""
    if optuna:
        _serve(_start_dashboard(store, storage, host, port := _free_port(host, port)), host, port, page="/dashboard/")
        return
    if storage is not None:
        raise BadInput("--storage", seen=storage, allowed="nothing without --optuna")
    database = Path(store).resolve() / "mlflow.db"
    if not database.exists():
        raise BadInput(
            "--store",
            seen=store,
            allowed="a folder with a ledger (mlflow.db)",
            hint="run a grid first: gridlaw run quickstart",
        )
    port = _free_port(host, port)
    _serve(_start(database, host, port), host, port, page=f"/{_MODE}", health="/health")


def _serve(server: subprocess.Popen[bytes], host: str, port: int, *, page: str, health: str = "/") -> None:
    """Wait until the server answers, say where, and end it with this command."""
    try:
        _wait_until_up(server, f"http://{host}:{port}{health}")
        click.echo(f"http://{host}:{port}{page}")
        click.echo("Ctrl-C stops the server.", err=True)
        server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        _stop(server)


def _start(database: Path, host: str, port: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}"]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    return _started(command, environment)


def _start_dashboard(store: str, storage: str | None, host: str, port: int) -> subprocess.Popen[bytes]:
    from gridlaw.platform.tuning.dashboard import STORAGE_VARIABLE
    from gridlaw.platform.tuning.storage import check_storage, default_storage, open_storage, resolve_storage

    if importlib.util.find_spec("optuna_dashboard") is None:
        raise BadInput("--optuna", allowed="with the package optuna-dashboard", hint="pip install 'gridlaw[tuning]'")
    url = resolve_storage(storage) if storage is not None else default_storage(store)
    check_storage(url)
    if open_storage(url, create=False) is None:
        raise BadInput(
            "--storage" if storage is not None else "--store",
            seen=redacted(storage) if storage is not None else store,
            allowed="a storage with studies",
            hint="run one first: gridlaw tune run FILE",
        )
    command = [sys.executable, "-m", "gridlaw.platform.tuning.dashboard", host, str(port)]
    return _started(command, {**os.environ, STORAGE_VARIABLE: url})


def _started(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    def on_sigterm(signum: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_sigterm)
    # Its own group: Ctrl-C reaches us alone, and we end the server with its workers.
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )


def _wait_until_up(server: subprocess.Popen[bytes], address: str, limit_seconds: float = 60.0) -> None:
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise Surroundings(
                f"the server ended at once: {(server.stderr.read() if server.stderr else b'').decode()[-800:]}"
            )
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise Surroundings(f"the server did not answer at {address} within {limit_seconds:.0f} s")


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _free_port(host: str, first: int) -> int:
    for port in range(first, min(first + 50, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise BadInput("--port", seen=first, allowed="a port with a free one among the next 50", hint="give another --port")
