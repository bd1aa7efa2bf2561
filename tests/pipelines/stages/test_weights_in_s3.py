"""``from: s3://BUCKET/FOLDER``: declared by content by the plan, fetched by whichever worker starts from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridlaw.pipelines.grid.attempts import MODEL_FOLDER, WEIGHTS
from gridlaw.pipelines.grid.executor import run_stage
from gridlaw.pipelines.grid.tasks import TaskBuilder
from gridlaw.pipelines.plan import GridPlan, make_plan
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.load import grid_from_mapping
from gridlaw.platform.store.open import open_store
from gridlaw.platform.store.s3 import S3Store
from s3_server import S3Server

SCALE = {"name": "a", "layers": 1, "d_model": 16, "ffn_dim": 32, "heads": 2, "kv_heads": 1}


def planned(source: str, folder: Path) -> GridPlan:
    stage = {"name": "x", "from": source, "architectures": ["full"], "scales": [SCALE], "budgets": [0]}
    grid = {"name": "g", "data": {"context": 64}, "stages": [stage]}
    return make_plan(grid_from_mapping(grid, source="test", base_folder=folder))


def adopted(plan: GridPlan, store: Any, folder: str) -> bytes:
    """The model that the plan's only point ends with, as a worker makes it."""
    tasks = TaskBuilder(store=store, run=plan.spec.run, accelerator="cpu", stop="stop")
    store.folder("attempts")
    record = run_stage("adopt", tasks.adopt(plan.trunks[0], run_id="point", weights=folder), store.address)
    assert "result" in record, record["failure"]
    made: bytes = store.read_bytes(f"attempts/point/{MODEL_FOLDER}/{WEIGHTS}")
    return made


def test_weights_in_s3_are_those_of_a_folder(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gridlaw.modules.models.checkpoint import save_model
    from gridlaw.modules.models.config import ModelConfig
    from gridlaw.modules.models.decoder import DecoderLM

    monkeypatch.setenv("GRIDLAW_CACHE", str(tmp_path / "cache"))
    fresh = make_plan(
        grid_from_mapping(
            {"name": "g", "architectures": ["full"], "scales": [SCALE], "budgets": ["1N"], "data": {"context": 64}},
            source="test",
            base_folder=tmp_path,
        )
    )
    save_model(DecoderLM(ModelConfig.from_dict(fresh.trunks[0].model)).initialise(7), tmp_path / "weights")
    bucket = s3.new_bucket()
    distant = S3Store(f"s3://{bucket}/imported")
    for path in (tmp_path / "weights").iterdir():
        distant.upload(path, f"full/{path.name}")
    here, there = planned("./weights", tmp_path), planned(f"s3://{bucket}/imported/full/", tmp_path)
    assert here.points[0].fingerprint == there.points[0].fingerprint, "where weights lie is no identity"
    base = there.trunks[0].base
    assert base is not None and base.folder == f"s3://{bucket}/imported/full"
    expected = (tmp_path / "weights" / WEIGHTS).read_bytes()
    assert adopted(there, open_store(tmp_path / "store", create=True), base.folder) == expected
    monkeypatch.setenv("GRIDLAW_CACHE", str(tmp_path / "another-node"))
    assert adopted(there, S3Store(f"s3://{bucket}/store"), base.folder) == expected


def test_weights_that_are_not_there_are_refused(s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.new_bucket()
    for source, said in [
        (f"s3://{bucket}/nothing", "There is nothing"),
        ("s3://no-such-bucket/weights", "no-such-bucket"),
        (f"s3://{bucket}", "s3://BUCKET/FOLDER"),
    ]:
        with pytest.raises(BadInput, match=r"^stages: x: from is ") as refused:
            planned(source, tmp_path)
        assert said in str(refused.value)
