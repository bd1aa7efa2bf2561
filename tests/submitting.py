"""A person who submits grids to a Ray cluster with the gridlaw command, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from ray_head import RayHead

GRID: dict[str, Any] = {
    "name": "small",
    "architectures": ["full"],
    "scales": [{"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}],
    "budgets": ["2N", "4N"],
    "data": {"context": 64, "mixture": ["texts/*.jsonl"]},
    "training": {
        "batch_tokens": 512,
        "precision": "fp32",
        "optimizer": {"name": "adamw"},
        "schedule": {"warmup_steps": 4},
    },
    "evaluate": [{"loss": {"tokens": 2048}}],
    "run": {"checkpoint_every_steps": 20},
}
LONGER = {"budgets": ["40N", "80N"]}
"""Some hundred steps: long enough to be stopped or killed in the middle."""


class Client:
    """A person with a grid file, who knows a cluster's address."""

    def __init__(self, folder: Path, head: RayHead) -> None:
        self.folder, self.head, self.store = folder, head, folder / "store"
        self.more: dict[str, str] = {}
        self.write()

    def write(self, changes: Mapping[str, Any] | None = None) -> None:
        texts = self.folder / "texts"
        texts.mkdir(exist_ok=True)
        rows = ("".join(f"{number} is followed by {number + 1}. " for number in range(i, i + 60)) for i in range(200))
        (texts / "numbers.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
        (self.folder / "grid.yaml").write_text(yaml.safe_dump(GRID | dict(changes or {})))

    def environment(self) -> dict[str, str]:
        known = self.head.environment() | {"CI": "true", "RAY_API_SERVER_ADDRESS": self.head.address}
        return known | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")} | self.more

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gridlaw.pipelines.cli.main", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def gridlaw(self, *arguments: str, timeout: float = 1200) -> subprocess.CompletedProcess[str]:
        # A driver starts within minutes on a busy machine; what is there is not waited for.
        patient = ("--wait", "900") if arguments[0] == "submit" else ()
        process = self.start(*arguments, *patient)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def submit(self, *arguments: str) -> str:
        """Submit the grid with a store of its own; returns the job's id."""
        done = self.gridlaw("submit", "grid.yaml", "--store", str(self.store), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def ask(self, path: str) -> Any:
        """What the cluster's dashboard answers those who have its token."""
        return self.head.ask(path)

    def points(self) -> list[dict[str, Any]]:
        done = self.gridlaw("status", "grid.yaml", "--store", str(self.store), "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["points"]
        return found


def drivers(store: Path) -> list[psutil.Process]:
    """Processes of ``gridlaw run`` with that store, the parent that started them left out."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if str(store) in words and "gridlaw.pipelines.cli.main" in words and "run" in words:
            found.append(process)
    return found


def found_in(text: str, secrets: dict[str, str], where: str) -> list[str]:
    return [f"the {name} in {where}" for name, secret in secrets.items() if secret in text]


def found_in_command_lines(secrets: dict[str, str]) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += found_in(text, secrets, text[:200])
    return found
