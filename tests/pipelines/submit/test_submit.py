"""A grid as a job of a real Ray cluster: it outlives its client, its driver's death, and tells nobody a password."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from mlflow_server import Server
from running import newest_step, wait_for
from submitting import LONGER, Client, drivers, found_in, found_in_command_lines

# A Ray head with dashboard and job server: minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tracking"), password="Correct-horse-battery-staple-77")
    server.start()
    yield server
    server.stop()


def test_a_job_outlives_client_and_driver_and_tells_no_secrets(client: Client, tracking: Server) -> None:
    """The client killed after submitting, the driver killed -9: the job finishes. Tokens and passwords stay where they
    belong: a search of command lines, of what Ray shows and logs, and of everything in MLflow."""
    assert tracking.password is not None and client.head.token is not None
    client.more = {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": tracking.password}
    client.write(LONGER)
    place = ("--store", str(client.store), "--tracking-uri", tracking.uri)
    submitting = client.start("submit", "grid.yaml", *place, "--restarts", "2", "--json")
    (driver,) = wait_for(lambda: drivers(client.store), "the driver to start")
    submitting.send_signal(signal.SIGKILL)
    submitting.wait()
    (job,) = [
        each["submission_id"] for each in client.ask("/api/jobs/") if each["metadata"].get("gridlaw.grid") == "small"
    ]
    wait_for(lambda: newest_step(client.store) > 30, "training to be under way")
    secrets = {"token": client.head.token, "password": tracking.password}
    assert found_in_command_lines(secrets) == []
    assert found_in(json.dumps(client.ask(f"/api/jobs/{job}")), secrets, "what the job server tells") == []
    os.kill(driver.pid, signal.SIGKILL)
    wait_for(lambda: client.ask(f"/api/jobs/{job}")["status"] not in ("PENDING", "RUNNING"), "the job to end")
    logs = client.gridlaw("logs", job).stdout
    assert "ended by SIGKILL; starting it again (1 of 2)" in logs
    status = client.gridlaw("status", "grid.yaml", *place, "--json")
    assert {point["state"] for point in json.loads(status.stdout)["points"]} == {"done"}, logs
    again = client.gridlaw("submit", "grid.yaml", *place)
    assert again.returncode == 0, again.stderr
    assert "2 points already done" in again.stderr
    for place_searched, text in everything_kept(client, tracking):
        assert found_in(text, secrets, place_searched) == []


def everything_kept(client: Client, tracking: Server) -> Iterator[tuple[str, str]]:
    """Logs of the cluster and of the jobs, the store, MLflow's database and artifacts. The job's own folder is where
    the credentials are, readable for its owner alone."""
    folders = [client.head.folder, client.store, tracking.folder / "artifacts"]
    num_logs = 0
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            if path.name == ".gridlaw-credentials.json":
                assert path.stat().st_mode & 0o777 == 0o600, path
                continue
            num_logs += path.suffix in (".log", ".out", ".err")
            yield str(path), path.read_bytes().decode(errors="replace")
    assert num_logs > 10, "the search looked at the wrong folders"
    yield "MLflow's database", (tracking.folder / "mlflow.db").read_bytes().decode(errors="replace")


def stop_in_order(client: Client, name: str, job: str) -> None:
    """The job is asked to stop while its tasks stand still, so that it is not over by then, and saves as they go on."""
    with client.head.held():
        stopping = client.start("stop", name)
        wait_for(lambda: "stopped by SIGTERM" in client.ask(f"/api/jobs/{job}/logs")["logs"], "the driver to be told")
    out, err = stopping.communicate(timeout=600)
    assert stopping.returncode == 0, err
    assert f"{job} stopped" in out
    logs = client.gridlaw("logs", job).stdout
    assert "To go on: submit it again" in logs and "starting it again" not in logs
    assert not drivers(client.store)


def newest_saved(client: Client) -> int:
    return max((int(path.stem.partition("-")[2]) for path in client.store.glob("attempts/*/step-*.ckpt")), default=0)


def test_stop_is_orderly_and_a_second_submission_goes_on(client: Client) -> None:
    client.write({"budgets": ["60N", "120N"], "run": {"checkpoint_every_steps": 1000}})  # saved: only when stopped
    job = client.submit()
    wait_for(lambda: newest_step(client.store) > 30, "training to be under way")
    with client.head.held():
        second = client.gridlaw("submit", "grid.yaml", "--store", str(client.store))
        assert second.returncode == 2
        assert job in second.stderr, "the refusal says which job runs it"
    stop_in_order(client, "small", job)
    saved = newest_saved(client)
    assert saved > 30
    again = client.submit()
    wait_for(lambda: newest_step(client.store) > saved + 20, "training to go on")
    stop_in_order(client, again, again)
    assert newest_saved(client) > saved
    client.submit()
    followed = client.start("logs", "small", "--follow")
    out, err = followed.communicate(timeout=900)
    assert followed.returncode == 0, err
    assert "2 of 2 points done" in out
    assert {point["state"] for point in client.points()} == {"done"}
    assert "has ended already" in client.gridlaw("stop", "small").stdout
