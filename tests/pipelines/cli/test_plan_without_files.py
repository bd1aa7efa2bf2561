"""A grid whose files are not there yet is planned, and not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridlaw.pipelines.cli.main import main
from gridlaw.pipelines.plan import grids_folder, make_plan_without_files
from gridlaw.platform.spec.load import load_grid


def gridlaw(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paper_is_planned_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """172 points on 30 trunks; 1.937e12 training tokens where unshared runs need 4.063e12."""
    assert gridlaw("plan", "paper", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    totals = shown["totals"]
    assert (totals["points"], totals["trunks"]) == (172, 30)
    assert totals["tokens"] == pytest.approx(1.937e12, rel=1e-3)
    assert totals["tokens_without_sharing"] == pytest.approx(4.063e12, rel=1e-3)
    assert {"tokenizer.json", "long/*.jsonl", "heldout/*.jsonl"} <= {each["path"] for each in shown["absent"]}
    assert gridlaw("plan", "paper") == 0
    told = capsys.readouterr().out
    assert "not there yet" in told and "tokenizer.json (data.tokenizer)" in told


def test_switch_at_the_papers_size_is_planned_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """PAPERS B.4: steps of 1,024 windows of 4K or 128 of 32K, and the counts that vocabulary and width are ours for."""
    assert gridlaw("plan", "switch-1.5b") == 0
    assert "tokenizer-32k.json (data.tokenizer)" in capsys.readouterr().out
    plan = make_plan_without_files(load_grid("switch-1.5b", shipped_folder=grids_folder()))
    steps = {(point.id.stage, point.id.architecture, point.id.budget.label): point.total_steps for point in plan.points}
    rows = ("full", "swa-only", "sh-3to1", "sh-6to1", "swiattn")
    assert steps == (
        {("pretrain", "full", "192B"): 45_777, ("pretrain", "full", "240B"): 57_221, ("yarn", "full", "24B"): 5_723}
        | {("cpt-4k", row, "20.97152B"): 5_000 for row in rows}
        | {("cpt-32k", row, "8388608K"): 2_000 for row in rows}
        | {(f"zero-shot-{length}", "swa-only", "0N"): 0 for length in ("4k", "32k")}
        | {("duo-4k", "duo", "65536K"): 2_000, ("duo-32k", "duo", "524288K"): 2_000}
    )
    tokens = {point.name: point.tokens for point in plan.points}
    assert tokens["cpt-4k/swiattn/switch-1.5b/20.97152B/seed0"] == 5_000 * 1_024 * 4_096
    assert tokens["cpt-32k/swiattn/switch-1.5b/8388608K/seed0"] == 2_000 * 128 * 32_768
    routers = 22 * (2_048 + 1)
    own = {"swiattn": routers, "duo": 22 * 8}  # a router a layer; a gate a KV head
    for trunk in plan.trunks:
        more = own.get(trunk.architecture, 0)
        assert (trunk.num_params, trunk.num_params_own) == (1_384_212_480, 1_384_212_480 + more)
        assert trunk.num_params_total == 1_515_284_480 + more
        windows = {layer["window"] for layer in trunk.model["layers"] if "window" in layer}
        assert windows <= {1024}
        long = trunk.stage is not None and trunk.stage.endswith(("32k", "yarn"))
        assert trunk.context == (32_768 if long else 4_096)
        scaling = trunk.model["rope_scaling"] or {}
        assert (scaling.get("factor"), scaling.get("original_context")) == ((8.0, 4_096) if long else (None, None))
        schedule = trunk.training["schedule"]
        assert (schedule["name"], schedule["warmup_steps"]) == ("cosine", 500)
    rates = {trunk.stage: trunk.training["optimizer"]["lr"] for trunk in plan.trunks}
    assert (rates["cpt-4k"], rates["cpt-32k"]) == (1e-4, 2e-4)


def test_a_run_tells_everything_that_is_missing_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "status"):
        assert gridlaw(command, "paper") == 2
        told = capsys.readouterr().err
        for part in ("tokenizer.json", "long/*.jsonl", "heldout/*.jsonl", str(folder), "gridlaw plan paper"):
            assert part in told
    assert list(folder.iterdir()) == []


def test_a_file_that_is_there_and_wrong_is_refused_by_a_plan_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tokenizer.json").write_text("no tokenizer")
    assert gridlaw("plan", "paper") == 2
    assert "tokenizer.json" in capsys.readouterr().err
