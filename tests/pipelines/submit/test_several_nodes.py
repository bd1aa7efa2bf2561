"""A grid and a study on a cluster of several Ray nodes (processes on one machine), with what a team has around it:
MLflow on PostgreSQL, artifacts on an S3-compatible server, and a token without which the cluster answers nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gridlaw.pipelines.grid.records import LAW
from gridlaw.pipelines.plan import grids_folder
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.tracking import default_tracking_uri
from mlflow_server import Server
from postgres import Postgres
from ray_head import RayHead, RayNode, new_token
from running import wait_for
from s3_server import SECRET_KEY, S3Server
from submitting import Client, found_in, found_in_command_lines

# Three Ray nodes, MLflow, PostgreSQL and an object store on one machine: minutes, many on a busy one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

GRID: dict[str, Any] = {
    "name": "small",
    "architectures": ["full", "swa-16"],
    "budgets": ["20N", "40N"],
    "laws": [{"target": "loss", "form": "d"}],
    "run": {"checkpoint_every_steps": 20},
}
STUDY: dict[str, Any] = {
    "name": "study",
    "budgets": ["4N"],
    "tune": {"space": {"lr": {"log": [1e-3, 0.1]}}, "objectives": {"loss": "min"}, "trials": 3},
}


def paper_nano() -> dict[str, Any]:
    """The shipped grid with all of its 84 points and its law, each trained and evaluated for a twentieth as long."""
    whole: dict[str, Any] = yaml.safe_load((grids_folder() / "paper-nano.yaml").read_text())
    schedule = whole["training"]["schedule"] | {"warmup_steps": 2}
    return whole | {
        "budgets": ["0.25N", "0.5N", "1N"],
        "training": whole["training"] | {"batch_tokens": 1024, "schedule": schedule},
        "evaluate": [{"loss": {"tokens": 4096}}, {"niah": {"depths": 2, "lengths": 2, "samples": 1}}],
    }


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server) -> Iterator[RayHead]:
    """A head without cores and two nodes with one each."""
    head = RayHead(token=new_token(), num_cpus=0)
    head.start({"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    try:
        for _ in range(2):
            head.add_node(num_cpus=1)
        yield head
    finally:
        head.stop()


@pytest.fixture(scope="module")
def tracking(postgres: Postgres, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(
        tmp_path_factory.mktemp("tracking"),
        database=postgres.database("mlflow"),
        artifacts=f"s3://{s3_server.new_bucket()}/mlflow",
        environment=s3_server.environment,
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def person(cluster: RayHead, s3_server: S3Server, tmp_path: Path) -> Client:
    client = Client(tmp_path, cluster)
    client.more = dict(s3_server.environment)
    return client


def on_a_laptop(folder: Path, person: Client) -> Path:
    """The same file run without a cluster; its store."""
    folder.mkdir()
    (folder / "texts").symlink_to(person.folder / "texts")
    (folder / "grid.yaml").write_text((person.folder / "grid.yaml").read_text())
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MLFLOW_"))}
    command = [sys.executable, "-m", "gridlaw.pipelines.cli.main", "run", "grid.yaml", "--plain"]
    done = subprocess.run(
        command, cwd=folder, env=environment | {"RAY_worker_niceness": "0", "CI": "true"}, capture_output=True,
        text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "gridlaw-runs"


def numbers(uri: str, store: str) -> dict[str, Any]:
    """Everything that was measured, by kind and name: every step's training loss, and final metrics."""
    ledger = Ledger.open(uri, "small", store, create=False)
    assert ledger is not None
    found: dict[str, Any] = {}
    for kind in ("trunk", "point", "evaluation"):
        for run in ledger.find_runs(kind):
            assert run.status == "FINISHED", (run.name, run.status, run.reason)
            own = {name: run.metrics[name] for name in ("loss",) if name in run.metrics}
            found[f"{kind} {run.name}"] = (ledger.metric_history(run.run_id, "train_loss"), own)
    return found


def training_on(node: RayNode) -> bool:
    return any("seed0" in task and "loss" not in task for task in node.tasks())


def test_nodes_come_and_go_and_the_result_is_the_laptop_s(
    person: Client, tracking: Server, s3_server: S3Server, cluster: RayHead, tmp_path: Path
) -> None:
    person.write(GRID)
    local = person.gridlaw("submit", "grid.yaml", "--store", str(tmp_path / "s"), "--tracking-uri", tracking.uri)
    assert local.returncode == 2 and "the cluster has 3 nodes" in local.stderr and "--shared-store" in local.stderr
    store = f"s3://{s3_server.new_bucket()}/gridlaw"
    file = person.gridlaw("submit", "grid.yaml", "--store", store, "--tracking-uri", f"sqlite:///{tmp_path}/m.db")
    assert file.returncode == 2 and "an sqlite file is one machine's" in file.stderr

    submitted = person.gridlaw("submit", "grid.yaml", "--store", store, "--tracking-uri", tracking.uri)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    stays, doomed = cluster.nodes
    wait_for(lambda: training_on(stays) and training_on(doomed), "training on both nodes", 900)
    doomed.kill()
    with stays.held():  # what the dead node did is not done there meanwhile
        joined = cluster.add_node(num_cpus=1)
        wait_for(lambda: training_on(joined), "the dead node's work on the one that joined", 900)
    secrets = {"token": cluster.token or "", "S3 key": SECRET_KEY}
    assert found_in_command_lines(secrets) == []
    wait_for(lambda: person.ask(f"/api/jobs/{job}")["status"] not in ("PENDING", "RUNNING"), "the job's end", 2400)
    logs = person.gridlaw("logs", job).stdout
    assert person.ask(f"/api/jobs/{job}")["driver_exit_code"] == 0, logs
    assert "4 of 4 points done" in logs and "worker lost" in logs and "trying again (2 of " in logs
    shown = person.gridlaw("status", job, "--json")
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert (told["status"], told["ledger"]["states"]) == ("SUCCEEDED", {"finished": 4}), told

    laptop = on_a_laptop(tmp_path / "laptop", person)
    assert numbers(tracking.uri, store) == numbers(default_tracking_uri(laptop), str(laptop))
    kept = [
        each["Key"] for each in s3_server.client().list_objects_v2(Bucket=tracking.artifacts.split("/")[2])["Contents"]
    ]
    assert any(key.endswith("small.html") for key in kept), kept
    for path in cluster.folder.rglob("*.*"):
        told = path.suffix in (".log", ".out", ".err", ".yaml", ".json") and path.name != ".gridlaw-credentials.json"
        if told and path.is_file():
            assert found_in(path.read_text(errors="replace"), secrets, str(path)) == []


def test_a_study_is_submitted_with_its_storage_in_postgresql(
    person: Client, tracking: Server, s3_server: S3Server, postgres: Postgres
) -> None:
    person.write(STUDY)
    store = f"s3://{s3_server.new_bucket()}/gridlaw"
    place = ("--store", store, "--tracking-uri", tracking.uri)
    refused = person.gridlaw("submit", "grid.yaml", *place)
    assert refused.returncode == 2
    assert "run.storage" in refused.stderr and "GRIDLAW_STORAGE" in refused.stderr
    storage = postgres.database("studies")
    whole = yaml.safe_load((person.folder / "grid.yaml").read_text())
    whole["run"]["storage"] = storage
    (person.folder / "grid.yaml").write_text(yaml.safe_dump(whole))
    submitted = person.gridlaw("submit", "grid.yaml", *place)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    wait_for(lambda: person.ask(f"/api/jobs/{job}")["status"] not in ("PENDING", "RUNNING"), "the study's end", 1800)
    shown = person.gridlaw("tune", "status", "grid.yaml", *place, "--json")
    assert shown.returncode == 0, shown.stderr
    trials = json.loads(shown.stdout)["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 3, person.gridlaw("logs", job).stdout
    told = json.loads(person.gridlaw("status", "study", "--json").stdout)
    assert told["job"] == job and told["ledger"] == {"kind": "trial", "num_planned": 3, "states": {"finished": 3}}
    secrets = {"password": postgres.password}
    assert found_in_command_lines(secrets) == []
    assert found_in(json.dumps(person.ask(f"/api/jobs/{job}")), secrets, "what the job server tells") == []
    assert found_in(person.gridlaw("logs", job).stdout, secrets, "the job's log") == []


def test_the_doctor_looks_at_every_node(person: Client, tracking: Server, s3_server: S3Server) -> None:
    store = f"s3://{s3_server.new_bucket()}/gridlaw"
    place = ("--address", person.head.address, "--store", store, "--tracking-uri", tracking.uri)
    done = person.gridlaw("doctor", *place, "--json")
    checks = json.loads(done.stdout)["checks"]
    for name in ("versions", "kernels", "shared memory", "store"):
        assert len({each["node"] for each in checks if each["check"] == name}) == 3, checks
    assert any(each["check"] == "tracking" for each in checks)
    assert [each for each in checks if not each["ok"] and each["check"] != "shared memory"] == []
    assert done.returncode == (0 if all(each["ok"] for each in checks) else 1)


def test_paper_nano_runs_across_the_nodes(
    person: Client, tracking: Server, s3_server: S3Server, cluster: RayHead
) -> None:
    """Seven architectures, four scales and three budgets, fitted on three scales and verified on the fourth."""
    grid = paper_nano()
    (person.folder / "grid.yaml").write_text(yaml.safe_dump(grid))
    store = f"s3://{s3_server.new_bucket()}/gridlaw"
    submitted = person.gridlaw("submit", "grid.yaml", "--store", store, "--tracking-uri", tracking.uri)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    wait_for(lambda: person.ask(f"/api/jobs/{job}")["status"] not in ("PENDING", "RUNNING"), "paper-nano's end", 3000)
    logs = person.gridlaw("logs", job).stdout
    assert "84 of 84 points done" in logs, logs
    tasks = person.ask("/api/v0/tasks?limit=10000&detail=1")["data"]["result"]["result"]
    trained = [(task["name"], task["node_id"]) for task in tasks if task["name"].endswith("/n4/seed0 trunk")]
    assert {name.partition("/")[0] for name, _ in trained} == set(grid["architectures"])
    assert len({node for _, node in trained}) > 1, trained
    ledger = Ledger.open(tracking.uri, "paper-nano", store, create=False)
    assert ledger is not None
    points = ledger.find_runs("point")
    assert {run.status for run in points} == {"FINISHED"} and len(points) == 84
    assert all({"loss", "niah_rank_accuracy"} <= run.metrics.keys() for run in points)
    laws = {run.name: ledger.read_json(run.run_id, LAW)["row"] for run in ledger.find_runs("law")}
    assert len(laws) == 7 * 2
    for name, row in laws.items():
        assert {point["scale"] for point in row["fitted"]} == {"n1", "n2", "n3"}, (name, row["reason"])
        assert [point["scale"] for point in row["held_out"]] == ["n4"] * 3 and row["r2"] is not None, name
