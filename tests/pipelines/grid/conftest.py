"""Small real grids: a real Ray, a real MLflow on sqlite, real training of models with a few thousand parameters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from running import install_mixer

Result = subprocess.CompletedProcess[str]

GRID: dict[str, Any] = {
    "name": "small",
    "architectures": ["full", "swa-16"],
    "scales": [
        {"name": "a", "layers": 2, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1},
        {"name": "b", "layers": 2, "d_model": 24, "ffn_dim": 48, "heads": 2, "kv_heads": 1},
    ],
    "budgets": ["2N", "4N"],
    "data": {"context": 64},
    "training": {
        "batch_tokens": 512,
        "precision": "fp32",
        "optimizer": {"name": "adamw"},
        "schedule": {"warmup_steps": 4},
    },
    "evaluate": [{"loss": {"tokens": 4096}}],
    "laws": [{"target": "loss", "form": "d", "verify": {"points": ["b/4N"]}}],
}


class Workplace:
    """A folder with a grid file in it, and the gridlaw command run there as a person would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "grid.yaml"
        self.store = folder / "gridlaw-runs"
        self.tracking_uri = ""
        """Of the ledger, where it is not in the store."""
        self.plugins: Path | None = None
        self.more_environment: dict[str, str] = {}
        self.prefix: tuple[str, ...] = ()
        """In front of the command: another host name, fewer rights."""

    def write(self, changes: Mapping[str, Any] | None = None) -> None:
        self.file.write_text(yaml.safe_dump(GRID | dict(changes or {})))

    def write_stages(self, stages: list[dict[str, Any]], changes: Mapping[str, Any] | None = None) -> None:
        """A grid with stages instead of blocks, and without laws unless they are given."""
        kept = {key: value for key, value in GRID.items() if key not in ("architectures", "scales", "budgets", "laws")}
        self.file.write_text(yaml.safe_dump(kept | {"stages": stages} | dict(changes or {})))

    def environment(self) -> dict[str, str]:
        path = [str(each) for each in (self.plugins, os.environ.get("PYTHONPATH")) if each]
        own = {"OMP_NUM_THREADS": "1", "CI": "true", "PYTHONPATH": os.pathsep.join(path)}
        return {**os.environ, **own, **self.more_environment}

    def install_faulty_mixer(self) -> None:
        self.plugins = self.folder / "plugins"
        install_mixer(Path(__file__).with_name("faulty_mixers.py"), self.plugins, "faulty = faulty_mixers:FaultySpec")

    def start(self, *arguments: str, verb: tuple[str, ...] = ("run",)) -> subprocess.Popen[str]:
        """``gridlaw run``, or what ``verb`` says, in the background; the caller ends it."""
        command = [*self.prefix, sys.executable, "-m", "gridlaw.pipelines.cli.main", *verb, "grid.yaml", *arguments]
        log = open(self.folder / "run.log", "a")  # noqa: SIM115 - inherited by the process
        return subprocess.Popen(command, cwd=self.folder, env=self.environment(), stdout=log, stderr=log, text=True)

    def gridlaw(self, *arguments: str, timeout: float = 600) -> Result:
        command = [*self.prefix, sys.executable, "-m", "gridlaw.pipelines.cli.main", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=timeout
        )

    def without_ray(self, *arguments: str) -> Result:
        """The command, which must succeed and import nothing heavy."""
        code = (
            "import sys\nfrom gridlaw.pipelines.cli.main import main\n"
            f"try:\n    main({list(arguments)!r})\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
            "loaded = [name for name in ('torch', 'ray', 'lightning') if name in sys.modules]\n"
            "assert not loaded, loaded\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.folder, env=self.environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done

    def run(self, *arguments: str, timeout: float = 600) -> Result:
        return self.gridlaw("run", "grid.yaml", *arguments, timeout=timeout)

    def plan(self) -> dict[str, Any]:
        done = self.gridlaw("plan", "grid.yaml", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def client(self) -> Any:
        from gridlaw.platform.ledger.tracking import default_tracking_uri, prepare_environment

        prepare_environment()
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self.tracking_uri or default_tracking_uri(self.store))

    def runs(self, kind: str, *, name: str = "small") -> list[Any]:
        client = self.client()
        experiment = client.get_experiment_by_name(name)
        found: list[Any] = client.search_runs(
            [experiment.experiment_id], f"tags.`gridlaw.kind` = '{kind}'", max_results=1000
        )
        return found

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file in the store: equal ones mean that nothing was touched."""
        files = {path: path.stat() for path in self.store.rglob("*") if path.is_file()}
        return {str(path): (each.st_size, each.st_mtime_ns) for path, each in files.items()}

    def losses(self) -> dict[str, float]:
        """Final metrics of every point, by name."""
        return {run.data.tags["gridlaw.name"]: run.data.metrics["loss"] for run in self.runs("point")}


@pytest.fixture(scope="session")
def new_workplace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Workplace]:
    def make() -> Workplace:
        place = Workplace(tmp_path_factory.mktemp("grid"))
        place.write()
        return place

    return make
