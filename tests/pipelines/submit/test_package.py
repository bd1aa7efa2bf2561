from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridlaw.pipelines.cli.main import main
from gridlaw.pipelines.submit import credentials
from gridlaw.pipelines.submit.package import make_package, without_passwords
from gridlaw.pipelines.submit.place import check_place, check_storage_place
from gridlaw.pipelines.submit.submit import entrypoint, printed
from gridlaw.platform.addresses import redacted
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import parse_grid
from gridlaw.platform.spec.sections import RunSection

TEXT = """
name: small
architectures: [full]
scales: [n1]
budgets: [5N]
data: {{context: 64, tokenizer: {tokenizer}, mixture: [{source}, "embedded:python"]}}
evaluate: [loss, {{longppl: {{evaluator: ./judge, corpus: "gov/*.jsonl", context: 32, slide: 8}}}}]
"""


def spec(folder: Path, *, tokenizer: str = "bytes", source: str = "texts/*.jsonl") -> GridSpec:
    text = TEXT.format(tokenizer=json.dumps(tokenizer), source=json.dumps(source))
    return parse_grid(text, source="grid.yaml", base_folder=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = tmp_path / "base"
    for name in ("texts/a.jsonl", "texts/b.jsonl", "gov/x.jsonl", "judge/config.json", "judge/deep/w.bin", "tok.json"):
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 1000)
    (base / "full").mkdir()  # a folder with an architecture's name is nobody's data
    (base / "full" / "huge.bin").write_text("x" * 10_000)
    return base


def test_relative_files_are_shipped_under_their_names(folder: Path, tmp_path: Path) -> None:
    package = make_package(spec(folder, tokenizer="tok.json"), "name: small\n")
    assert set(package.files) == {
        "texts/a.jsonl", "texts/b.jsonl", "gov/x.jsonl", "judge/config.json", "judge/deep/w.bin", "tok.json",
    }  # fmt: skip
    assert package.required == ()
    (tmp_path / "job").mkdir()
    package.write(tmp_path / "job")
    assert (tmp_path / "job" / "judge" / "deep" / "w.bin").read_text() == "x" * 1000
    assert (tmp_path / "job" / "grid.yaml").read_text() == "name: small\n"


def test_absolute_paths_and_datasets_are_told_and_not_shipped(folder: Path) -> None:
    package = make_package(spec(folder, tokenizer=str(folder / "tok.json"), source="/nowhere/*.jsonl"), "")
    assert not any(name.startswith(("texts", "tok")) for name in package.files)
    told = "; ".join(package.required)
    assert f"{folder / 'tok.json'} (data.tokenizer)" in told
    assert "/nowhere/*.jsonl (data.mixture[0], not on this machine)" in told


def test_files_above_the_limit_and_outside_the_folder_are_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"0\.003 MiB in all.*--ship-limit"):
        make_package(spec(folder), "", limit_mib=0.003)
    (folder.parent / "outside.jsonl").write_text("x")
    with pytest.raises(BadInput, match=r"\.\./outside\.jsonl.*below the grid file's folder"):
        make_package(spec(folder, source="../outside.jsonl"), "")


def test_a_link_is_shipped_as_what_it_points_to(folder: Path, tmp_path: Path) -> None:
    (folder.parent / "real.jsonl").write_text("linked")
    (folder / "link.jsonl").symlink_to(folder.parent / "real.jsonl")
    package = make_package(spec(folder, source="link.jsonl"), "")
    (tmp_path / "job").mkdir()
    package.write(tmp_path / "job")
    assert (tmp_path / "job" / "link.jsonl").read_text() == "linked"
    assert not (tmp_path / "job" / "link.jsonl").is_symlink()


PLACES = {
    "a store of the working directory": (RunSection(), 1, "run.store"),
    "a relative store": (RunSection(store="here"), 1, "absolute path"),
    "a relative sqlite file": (RunSection(store="/s", tracking_uri="sqlite:///m.db"), 1, "absolute path"),
    "a folder of one of two nodes": (RunSection(store="/s", tracking_uri="http://m:5000"), 2, "--shared-store"),
    "an sqlite file of one of two nodes": (
        RunSection(store="s3://abc/d", tracking_uri="sqlite:////m.db"),
        2,
        "2 nodes",
    ),
    "a tracking folder": (RunSection(store="/s", tracking_uri="./mlruns"), 1, "run.tracking_uri"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_places_that_a_job_cannot_use(kind: str) -> None:
    run, num_nodes, words = PLACES[kind]
    with pytest.raises(BadInput, match=words):
        check_place(run, num_nodes=num_nodes)


def test_places_that_a_job_can_use() -> None:
    check_place(RunSection(store="/s"), num_nodes=1)
    check_place(RunSection(store="/s", tracking_uri="sqlite:////m.db"), num_nodes=1)
    check_place(RunSection(store="s3://abc/d", tracking_uri="http://m:5000"), num_nodes=9)
    check_place(RunSection(store="/s", tracking_uri="http://m:5000"), num_nodes=9, shared_store=True)
    with pytest.raises(BadInput, match="a tracking server"):  # the default would be sqlite beside the store
        check_place(RunSection(store="/s"), num_nodes=2, shared_store=True)


def test_credentials_go_by_a_file_of_their_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {
        "MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p", "AWS_SECRET_ACCESS_KEY": "k", "HF_TOKEN": "h",
        "HOME": "/root",
    }  # fmt: skip
    sent = credentials.collect(here, RunSection(store="/s", tracking_uri="http://m"))
    assert set(sent) == {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
    sent = credentials.collect(here, RunSection(store="s3://abc/b"), asked=["HF_TOKEN"])
    assert set(sent) == {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN"}
    with pytest.raises(BadInput, match="NOT_SET"):
        credentials.collect(here, RunSection(store="/s"), asked=["NOT_SET"])
    assert credentials.collect({}, RunSection(tracking_uri="http://m", storage="postgresql://h/d")) == {}
    secret = "postgresql://u:p@h/d"
    sent = credentials.collect({}, RunSection(store="/s", tracking_uri=secret, storage=secret))
    assert sent == {"GRIDLAW_TRACKING_URI": secret, "GRIDLAW_STORAGE": secret}
    credentials.write(tmp_path, sent | {"HF_TOKEN": "sent"})
    assert (tmp_path / credentials.FILE).stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("HF_TOKEN", "the node's own")
    for name in sent:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    credentials.load()
    import os

    assert os.environ["GRIDLAW_TRACKING_URI"] == "postgresql://u:p@h/d"
    assert os.environ["HF_TOKEN"] == "the node's own"


def test_addresses_without_their_passwords() -> None:
    assert redacted("postgresql://me:secret@host:1/db?sslmode=on") == "postgresql://***@host:1/db?sslmode=on"
    assert (
        redacted("postgresql://host/db?user=me&password=secret&x=1") == "postgresql://host/db?user=***&password=***&x=1"
    )
    for plain in ("sqlite:////a/b.db", "sqlite:///b.db", "http://mlflow:5000/", "s3://bucket/a@b"):
        assert redacted(plain) == plain


def test_a_shipped_file_tells_no_password(folder: Path) -> None:
    addresses = '{tracking_uri: "postgresql+psycopg://u:p1@h/d", storage: "mysql://h/d?user=me&password=p2"}'
    text = TEXT.format(tokenizer="bytes", source='"texts/*.jsonl"')
    text += "tune: {space: {lr: {log: [1e-3, 0.1]}}, objectives: {loss: min}, trials: 2}\n"
    told = without_passwords(text + f"run: {addresses}\n", folder)
    assert "p1" not in told and "p2" not in told
    run = parse_grid(told, source="grid.yaml", base_folder=folder).run
    assert (run.tracking_uri, run.storage) == ("postgresql+psycopg://***@h/d", "mysql://h/d?user=***&password=***")
    assert without_passwords(text, folder) == text
    with pytest.raises(BadInput, match=r"run\.storage.*GRIDLAW_STORAGE") as refused:
        without_passwords(text + 'run: {storage: "mysql://u:sec\\x72et@h/d"}\n', folder)
    assert "secret" not in str(refused.value)


def test_where_a_submitted_study_may_be_kept() -> None:
    check_storage_place(RunSection(storage="postgresql+psycopg://u:p@h/d"))
    for run in (RunSection(), *(RunSection(storage=url) for url in ("sqlite:////d/optuna.db", "journal:////d/s.log"))):
        with pytest.raises(BadInput, match=r"run\.storage.*postgresql.*GRIDLAW_STORAGE"):
            check_storage_place(run)


def test_what_a_job_starts_and_prints() -> None:
    words = entrypoint(["run", "grid.yaml"], "/a b", "http://m", python="python3.11", restarts=3)
    assert words.startswith("python3.11 -m gridlaw.pipelines.submit.parent --restarts 3 -- run grid.yaml")
    assert "--store '/a b' --tracking-uri http://m" in words
    assert printed("setting up\nRunning entrypoint for job x: y\nfirst\nlast\n") == "first\nlast"


@pytest.mark.parametrize("option", ["--ship-limit", "--wait"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_limits_that_are_no_numbers(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["submit", "quickstart", "--address", "http://127.0.0.1:1", "--store", "/nowhere", option, value])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and option in told and value in told
