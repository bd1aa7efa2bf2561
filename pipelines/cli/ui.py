"""``gridlaw ui``: MLflow over a local store, or Optuna's dashboard; on loopback, one address, stopped cleanly."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Any

import click

from gridlaw.pipelines.cli.options import place_options
from gridlaw.pipelines.place import DEFAULT_STORE, Place
from gridlaw.pipelines.plan import grids_folder
from gridlaw.platform.addresses import redacted
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.ledger.tracking import Tracking, sqlite_path
from gridlaw.platform.ledger.views import POINTS, TAG, experiment_page

# The UI opens in its mode for agents otherwise, where runs of training are hidden.
_MODE = "workflowType=machine_learning"


@click.command()
@click.argument("grid", required=False)
@click.option("--port", default=5000, show_default=True, type=click.IntRange(1, 65535), help="First port to try.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind; loopback unless told otherwise.")
@click.option("--optuna", is_flag=True, help="Optuna's dashboard over the studies instead.")
@click.option("--storage", default=None, help="With --optuna: the studies' storage; the store's own when left out.")
@place_options
def ui(
    grid: str | None,
    port: int,
    host: str,
    optuna: bool,
    storage: str | None,
    store: str | None,
    tracking_uri: str | None,
) -> None:
    """Open the MLflow UI at GRID's points, or at a store's experiments, or Optuna's dashboard, at GRID's study.
    Ctrl-C stops it.

    Without GRID and options: of ./gridlaw-runs. A tracking server is linked to; nothing is started then.
    """
    experiment = ""
    if grid is not None:
        experiment, store, tracking_uri, own = _place(grid, store, tracking_uri)
        storage = storage or (own if optuna else None)
    store, tracking_uri = store or DEFAULT_STORE, tracking_uri or ""
    if optuna:
        port = _free_port(host, port)
        url = _studies(store, storage)
        page = _study_page(url, experiment)
        _serve(lambda log: _start_dashboard(url, host, port, log), host, port, page=page)
        return
    if storage is not None:
        raise BadInput("--storage", seen=storage, allowed="nothing without --optuna")
    if tracking_uri.startswith("http"):
        click.echo(f"{redacted(tracking_uri)}/{_page(tracking_uri, experiment)}")
        return
    database = _database(store, tracking_uri)
    page = _page(f"sqlite:///{database}", experiment)
    port = _free_port(host, port)
    _serve(lambda log: _start(database, host, port, log), host, port, page=f"/{page}", health="/health")


def _place(grid: str, store: str | None, tracking_uri: str | None) -> tuple[str, str, str, str | None]:
    """(experiment, store, tracking address, storage) of a grid or a study; what is given goes before the file's."""
    from gridlaw.platform.spec.load import load_grid

    spec = load_grid(grid, shipped_folder=grids_folder()).placed(store=store, tracking_uri=tracking_uri)
    place = Place.of_run(spec.run)
    return spec.name, place.store_address, place.tracking_uri, spec.run.storage


def _database(store: str, tracking_uri: str) -> Path:
    """The sqlite file to show; ``BadInput`` where there is none or the ledger is another kind of database."""
    if tracking_uri and not tracking_uri.startswith("sqlite"):
        raise BadInput(
            "run.tracking_uri",
            seen=redacted(tracking_uri),
            allowed="an http(s) server, or sqlite",
            hint="start `mlflow server` on that database and open its address",
        )
    database = sqlite_path(tracking_uri) or Path(store).resolve() / "mlflow.db"
    if not database.exists():
        raise BadInput(
            "--store",
            seen=store,
            allowed="a folder with a ledger (mlflow.db)",
            hint="run a grid first: gridlaw run quickstart",
        )
    return database


def _page(tracking_uri: str, experiment: str) -> str:
    """What comes behind the server's address: an experiment's points, or all experiments where none is named.

    A store with one experiment names it. ``BadInput`` for an experiment that is not there.
    """
    tracking = Tracking(uri=tracking_uri, patience_seconds=10.0)
    found = {each.name: each for each in tracking.call("list experiments", lambda client: client.search_experiments())}
    found.pop("Default", None)
    if not experiment and len(found) == 1:
        (experiment,) = found
    if not experiment:
        return f"?{_MODE}"
    if experiment not in found:
        raise BadInput(
            "grid",
            seen=experiment,
            allowed=", ".join(found) or "a grid that has run",
            hint=f"run it first: gridlaw run {experiment}",
        )
    known = found[experiment]
    return experiment_page(known.experiment_id, POINTS if TAG + POINTS in known.tags else "")


def _serve(
    start: Callable[[IO[bytes]], subprocess.Popen[bytes]], host: str, port: int, *, page: str, health: str = "/"
) -> None:
    """Start a server, wait until it answers, say where, and end it with this command."""
    with tempfile.TemporaryFile() as log:  # a pipe that nobody reads would fill up and halt the server
        server = start(log)
        try:
            _wait_until_up(server, f"http://{host}:{port}{health}", log)
            click.echo(f"http://{host}:{port}{page}")
            click.echo("Ctrl-C stops the server.", err=True)
            server.wait()
        except KeyboardInterrupt:
            pass
        finally:
            _stop(server)


def _start(database: Path, host: str, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}"]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    return _started(command, environment, log)


def _studies(store: str, storage: str | None) -> str:
    """The address of a storage with studies; ``BadInput`` where there are none, or without the dashboard."""
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
    return url


def _study_page(url: str, experiment: str) -> str:
    """What comes behind the dashboard's address: an experiment's study, or all studies where none is named."""
    from gridlaw.platform.tuning.study import experiments_of

    if not experiment:
        return "/dashboard/"
    known = experiments_of(url)
    if experiment not in known:
        raise BadInput(
            "grid", seen=experiment, allowed=", ".join(known) or "a study that has begun",
            hint="run it first: gridlaw tune run FILE",
        )  # fmt: skip
    return f"/dashboard/studies/{known[experiment]}"


def _start_dashboard(url: str, host: str, port: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    from gridlaw.platform.tuning.dashboard import STORAGE_VARIABLE

    command = [sys.executable, "-m", "gridlaw.platform.tuning.dashboard", host, str(port)]
    return _started(command, {**os.environ, STORAGE_VARIABLE: url}, log)


def _started(command: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    def on_sigterm(signum: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_sigterm)
    # Its own group: Ctrl-C reaches us alone, and we end the server with its workers.
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)


def _wait_until_up(server: subprocess.Popen[bytes], address: str, log: IO[bytes], limit_seconds: float = 300.0) -> None:
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            log.seek(0)
            raise Surroundings(f"the server ended at once: {log.read().decode(errors='replace')[-800:]}")
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
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                raise BadInput(
                    "--host", seen=host, allowed="a name or an IPv4 address of this machine", hint=str(error)
                ) from None
            return port
    raise BadInput("--port", seen=first, allowed="a port with a free one among the next 50", hint="give another --port")
