"""Wrong input: one clear message that names the place, exit code 2, and nothing written."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from commands import gridlaw, refused

GOOD: dict[str, Any] = {
    "name": "good",
    "architectures": ["full", "swa-16"],
    "scales": ["n1", "n2"],
    "budgets": ["5N", "10N", "20N"],
    "data": {"context": 64},
    "training": {"batch_tokens": 512, "precision": "fp32"},
    "laws": [{"target": "loss", "verify": {"points": ["n2/20N"]}}],
}


def test_the_good_file_is_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "grid.yaml").write_text(yaml.safe_dump(GOOD))
    assert gridlaw("plan", "grid.yaml") == 0
    assert "full/n1/5N/seed0" in capsys.readouterr().out


FILES = {
    "empty": ("", "empty"),
    "not-yaml": ("name: [unclosed", "YAML"),
    "a-list": ("- name: x\n", "mapping"),
    "a-text": ("just words\n", "mapping"),
    "duplicate-key": ("name: a\nname: b\n", "name"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_files_that_are_no_grid(kind: str, command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, word = FILES[kind]
    (folder / "grid.yaml").write_text(text)
    assert word.lower() in refused(folder, capsys, command, "grid.yaml").lower()


def test_missing_file_and_unknown_shipped_grid(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.yaml" in refused(folder, capsys, "run", "nowhere.yaml")
    told = refused(folder, capsys, "run", "quickstrat")
    assert "quickstart" in told


CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": ({"architecturs": ["full"]}, ["architecturs", "architectures"]),
    "unknown nested key": ({"training": {"batch_token": 512}}, ["batch_token", "batch_tokens"]),
    "unknown architecture": ({"architectures": ["ful"]}, ["ful", "swa-128", "gdn"]),
    "unknown scale": ({"scales": ["n9"], "laws": []}, ["n9", "n1", "S1"]),
    "duplicate architecture": ({"architectures": ["full", "full"]}, ["full"]),
    "duplicate budget": ({"budgets": ["5N", "5.0N"]}, ["5N"]),
    "zero budget": ({"budgets": ["0N"]}, ["0"]),
    "negative budget": ({"budgets": ["-5N"]}, ["-5N"]),
    "window beyond the context": ({"architectures": ["full", "swa-128"]}, ["swa-128", "128", "64"]),
    "a window beyond the context behind one equal to it": (
        {"architectures": [{"name": "two-windows", "pattern": ["swa-64", "swa-128"]}], "laws": []},
        ["two-windows", "128", "64"],
    ),
    "too few points for a law": ({"budgets": ["5N"], "scales": ["n1"], "laws": [{"target": "loss"}]}, ["laws", "4"]),
    "law of a metric that is not measured": ({"laws": [{"target": "longppl"}]}, ["longppl", "loss"]),
    "unknown evaluation": ({"evaluate": ["los"]}, ["los", "loss"]),
    "token batch no multiple of the context": ({"training": {"batch_tokens": 500}}, ["batch_tokens", "64"]),
    "a context that the corpus cannot fill": (
        {"data": {"context": 2_000_000_000}, "training": {"batch_tokens": 2_000_000_000}},
        ["context"],
    ),
    "more epochs than allowed": ({"budgets": ["2B"], "laws": []}, ["epochs"]),
    "budgets of the same number of steps": ({"budgets": ["5N", "5.001N"], "laws": []}, ["5.001N", "step"]),
    "several devices": ({"run": {"devices": {"n1": 4}}}, ["devices", "1"]),
    "an evaluation that asks for more devices than there are": (
        {"run": {"evaluations": {"loss": {"devices": 9999}}}},
        ["evaluation loss", "9999", "cores"],
    ),
    "an evaluation that asks for more memory than there is": (
        {"run": {"evaluations": {"loss": {"memory": "999TiB"}}}},
        ["evaluation loss", "memory", "GiB"],
    ),
    "a store in S3 without a place for the ledger": (
        {"run": {"store": "s3://bucket/x"}},
        ["run.tracking_uri", "http://HOST:PORT"],
    ),
    "a store of a kind that there is not": (
        {"run": {"store": "gs://bucket/x", "tracking_uri": "sqlite:////nowhere/x.db"}},
        ["run.store", "gs://", "s3://BUCKET/PREFIX"],
    ),
    "a decay longer than the budget": (
        {"training": {"batch_tokens": 512, "schedule": {"decay_fraction": 1.5}}},
        ["decay_fraction", "1.5", "1"],
    ),
    "a warmup longer than a cosine budget": (
        {"training": {"batch_tokens": 65536, "schedule": {"name": "cosine"}}},
        ["warmup_steps", "100"],
    ),
    "a source that is not there": ({"data": {"context": 64, "mixture": ["no/*.jsonl"]}}, ["no/*.jsonl"]),
    "unknown rope key": ({"rope": {"bas": 10}}, ["rope.bas", "base"]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_wrong_values(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, words = CHANGES[kind]
    (folder / "grid.yaml").write_text(yaml.safe_dump(GOOD | changes))
    told = refused(folder, capsys, "run", "grid.yaml")
    for word in words:
        assert word in told


FAR = b'{"text": "some words"}\n' * 500
TEXTS: dict[str, tuple[str, bytes, list[str]]] = {
    "not UTF-8": ("a.txt", b"caf\xe9 au lait", ["a.txt", "0xe9", "UTF-8"]),
    "an empty document": ("a.txt", b" \n", ["a.txt", "not empty"]),
    "an empty file": ("a.jsonl", b"", ["a.jsonl", "an empty file"]),
    "a line that is not JSON": ("a.jsonl", FAR + b"not json\n", ["a.jsonl line 501", "not json", "a JSON object"]),
    "lines without the column": ("a.jsonl", b'{"body": "x"}\n', ["a.jsonl line 1", "body", "text_column"]),
    "no Parquet": ("a.parquet", b"PAR0", ["a.parquet", "a Parquet file"]),
    "a torn gzip file": ("a.jsonl.gz", gzip.compress(FAR)[:-9], ["a.jsonl.gz", "a whole gzip file"]),
    "no gzip": ("a.txt.gz", b"words", ["a.txt.gz", "a whole gzip file"]),
}


@pytest.mark.parametrize("place", ["mixture", "heldout"])
@pytest.mark.parametrize("kind", TEXTS)
def test_texts_that_cannot_be_used(kind: str, place: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found before anything starts where it stands at the beginning of a file."""
    name, content, words = TEXTS[kind]
    (folder / name).write_bytes(content)
    given: Any = [name] if place == "mixture" else {"source": name}
    (folder / "grid.yaml").write_text(yaml.safe_dump(GOOD | {"data": {"context": 64, place: given}}))
    told = refused(folder, capsys, "run", "grid.yaml")
    for word in words:
        assert word in told


def test_a_parquet_file_without_the_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"body": ["x"]}), folder / "a.parquet")
    (folder / "grid.yaml").write_text(yaml.safe_dump(GOOD | {"data": {"context": 64, "mixture": ["a.parquet"]}}))
    told = refused(folder, capsys, "run", "grid.yaml")
    assert "a.parquet" in told and "body" in told and "text_column" in told


PRETRAIN = {"name": "pretrain", "architectures": ["full"], "scales": ["n1"], "budgets": ["5N"]}
STAGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "from an unknown point": ({"from": "pretrain/full/7N"}, ["pretrain/full/7N", "5N"]),
    "from an unknown architecture": ({"from": "pretrain/ful/5N"}, ["ful", "full"]),
    "from an unknown experiment": ({"from": "nowhere:full/n1/5N", "scales": ["n1"]}, ["nowhere", "ledger"]),
    "from a folder that is not there": ({"from": "./weights", "scales": ["n1"]}, ["./weights", "model.safetensors"]),
    "weights that do not fit": ({"architectures": ["lightning"]}, ["layers.0.ffn.gate_proj.weight", "(80, 32)"]),
    "a context below what YaRN stretches": ({"data": {"context": 32}, "rope": {"yarn": {}}}, ["context", "32", "64"]),
}


@pytest.mark.parametrize("kind", STAGES)
def test_stages_that_cannot_be(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes, words = STAGES[kind]
    stage = {"name": "cpt", "from": "pretrain/full/5N", "architectures": ["full"], "budgets": ["2N"]} | changes
    kept = {key: GOOD[key] for key in ("name", "data", "training")}
    (folder / "grid.yaml").write_text(yaml.safe_dump(kept | {"stages": [PRETRAIN, stage]}))
    told = refused(folder, capsys, "run", "grid.yaml")
    for word in words:
        assert word in told


def test_a_gpu_where_there_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gridlaw.platform.cluster import num_local_gpus

    if num_local_gpus():
        pytest.fail("this test is for machines without a GPU")
    (folder / "grid.yaml").write_text(yaml.safe_dump(GOOD | {"run": {"accelerator": "gpu"}}))
    assert "GPU" in refused(folder, capsys, "run", "grid.yaml")


def test_a_window_equal_to_the_context_is_allowed_with_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "grid.yaml").write_text(yaml.safe_dump(GOOD | {"architectures": ["swa-64"]}))
    assert gridlaw("plan", "grid.yaml") == 0
    assert "warning" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["describe", "ful", "--scale", "S1"], ["ful", "full"]),
        (["describe", "full", "--scale", "S9"], ["S9", "S1"]),
        (["describe", "swa-0", "--scale", "S1"], ["window", "0"]),
        (["describe", "full"], ["--scale"]),
        (["describe", "full", "--scale", "S1", "--context", "0"], ["--context"]),
        (["rnu"], ["rnu"]),
        (["run"], ["GRID"]),
        (["report", "quickstart"], ["quickstart"]),
        (["ui"], ["gridlaw-runs"]),
        (["ui", "quickstart", "--store", "nowhere"], ["nowhere"]),
        (["ui", "quickstart", "--tracking-uri", "postgresql://host/db"], ["postgresql://host/db", "mlflow server"]),
        (["evaluate", "quickstart", "loss", "--store", "nowhere"], ["gridlaw run quickstart --store nowhere"]),
        (["fit", "nowhere.csv"], ["nowhere.csv"]),
        (["data", "prepare", "nowhere/*.txt", "--out", "out", "--context", "64"], ["nowhere"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_arguments(
    arguments: list[str], words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(folder, capsys, *arguments)
    for word in words:
        assert word in told
