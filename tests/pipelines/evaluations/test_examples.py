"""Examples are made once, read as they were made, and shared by all who ask the same."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.models import checkpoint
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import longppl, niah, recall
from gridlaw.pipelines.evaluations.inputs import EXAMPLES_FILE, Inputs
from gridlaw.pipelines.evaluations.registry import resolve_evaluation
from gridlaw.pipelines.evaluations.run import EvaluationRun, make_examples
from gridlaw.pipelines.evaluations.sources import plan_examples, with_sources
from gridlaw.platform.errors import BadInput

MakeRun = Callable[..., EvaluationRun]
ENTRIES = {"niah": {"depths": 2, "lengths": 2, "samples": 2}, "recall": {"pairs": 3, "samples": 3}}
MODULES: dict[str, Any] = {"niah": niah, "recall": recall}


@pytest.mark.parametrize("name", list(ENTRIES))
def test_read_as_they_were_made_and_made_once(
    make_run: MakeRun, prepared: PreparedData, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, folder = MODULES[name], tmp_path / "shared"
    run = make_run({name: ENTRIES[name]}, inputs=Inputs(examples=str(folder)))
    made = module.make_samples(run)
    number = make_examples(name, ENTRIES[name], prepared_folder=prepared.folder, context=256, inputs=run.inputs)
    assert number == len(made)
    monkeypatch.setattr(module, "make_samples", lambda run: pytest.fail("made again"))
    for sample, read in zip(made, module.examples(run), strict=True):
        for field in dataclasses.fields(sample):
            assert np.array_equal(getattr(sample, field.name), getattr(read, field.name)), field.name


def test_a_killed_search_for_key_tokens_leaves_no_examples(
    make_run: MakeRun, prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found stays, the table appears at the end alone."""
    settings = {"evaluator": "./x", "context": 64, "slide": 32, "split": True, "documents": 40}
    run = make_run({"longppl": settings}, inputs=Inputs(examples=str(tmp_path / "shared")))
    asked: list[int] = []

    def find(evaluator: object, texts: list[str], **thresholds: object) -> list[list[list[int]]]:
        if len(asked) == 1:
            asked.append(0)
            raise KeyboardInterrupt
        asked.append(len(texts))
        return [[[1, 2]] for _ in texts]

    monkeypatch.setattr(longppl, "_evaluator", lambda run: None)
    monkeypatch.setattr(longppl, "find_key_tokens", find)
    with pytest.raises(KeyboardInterrupt):
        longppl.examples(run)
    assert not (tmp_path / "shared" / EXAMPLES_FILE).exists()
    assert len(longppl.examples(run)) == 40
    assert sum(asked) == 40


FINDER = """
import json, sys
from pathlib import Path
from gridlaw.pipelines.evaluations.inputs import EXAMPLES_FILE, Inputs
from gridlaw.pipelines.evaluations.run import make_examples
settings, data, model, folder = json.loads(sys.argv[1]), *sys.argv[2:]
inputs = Inputs(examples=folder, evaluator={"identity": "finder", "folder": model})
make_examples("longppl", settings, prepared_folder=Path(data), context=256, inputs=inputs)
"""


@pytest.mark.slow
def test_a_search_killed_with_9_goes_on_from_its_finished_part(
    models: Callable[[str], DecoderLM], prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text is searched twice, and the end is that of a search which nobody disturbed."""
    settings = {
        "evaluator": "./model",
        "context": 64,
        "slide": 32,
        "alpha": 0.0,
        "beta": -20,
        "split": True,
        "documents": 96,
    }
    model = checkpoint.save_model(models("full"), tmp_path / "model")
    arguments = [json.dumps(settings), str(prepared.folder), str(model), str(tmp_path / "killed")]
    found = tmp_path / "killed" / longppl.KEY_TOKENS_FILE
    with subprocess.Popen([sys.executable, "-c", FINDER, *arguments]) as finder:
        while finder.poll() is None and (not found.exists() or found.read_bytes().count(b"\n") < 1 + 16):
            time.sleep(0.01)
        finder.send_signal(signal.SIGKILL)
    assert finder.returncode == -signal.SIGKILL
    kept_lines = [line for line in found.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert 1 + 16 <= len(kept_lines) < 1 + 96
    assert not (tmp_path / "killed" / EXAMPLES_FILE).exists()

    asked: list[str] = []
    find = longppl.find_key_tokens
    monkeypatch.setattr(
        longppl, "find_key_tokens", lambda own, texts, **more: asked.extend(texts) or find(own, texts, **more)
    )

    def search(folder: str) -> list[dict[str, Any]]:
        inputs = Inputs(examples=str(tmp_path / folder), evaluator={"identity": "finder", "folder": str(model)})
        make_examples("longppl", settings, prepared_folder=prepared.folder, context=256, inputs=inputs)
        return [json.loads(line) for line in (tmp_path / folder / longppl.KEY_TOKENS_FILE).read_text().splitlines()]

    continued = search("killed")
    assert len(asked) == 96 - (len(kept_lines) - 1)
    assert continued[: len(kept_lines)] == [json.loads(line) for line in kept_lines]
    assert continued == search("undisturbed")
    assert sum(len(line["slices"]) for line in continued[1:]) > 96


def planned(entry: dict[str, Any], *, data: str = "d", context: int = 256, base_folder: Path = Path(".")) -> str:
    evaluation = with_sources(
        resolve_evaluation(entry), base_folder=base_folder, find_point=lambda name: ("p", name, 512)
    )
    found = plan_examples(evaluation, data=data, tokenizer={"name": "bytes"}, context=context)
    assert found is not None
    return found.fingerprint


def test_identity_of_examples_is_what_they_are_made_of(tmp_path: Path) -> None:
    niah_entry = {"niah": {"samples": 2}}
    assert planned(niah_entry) == planned({"niah": {"samples": 2, "depths": 35}})
    assert len({planned(niah_entry), planned({"niah": {"samples": 3}}), planned(niah_entry, data="other")}) == 3
    assert planned(niah_entry, context=512) != planned(niah_entry)
    longppl_entry = {"evaluator": "a/b/c", "context": 64, "slide": 32}
    first = planned({"longppl": longppl_entry})
    assert planned({"longppl": {**longppl_entry, "min_key_tokens": 3}}) == first
    assert planned({"longppl": {**longppl_entry, "evaluator": "a/b/d"}}) != first
    assert planned({"longppl": {**longppl_entry, "alpha": 1}}) != first
    # A corpus of its own counts by content, whatever it is called and whatever the models were trained on.
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("the same text")
    own = [
        planned({"longppl": {**longppl_entry, "corpus": f"{name}.txt"}}, data=name, base_folder=tmp_path)
        for name in ("one", "two")
    ]
    assert own[0] == own[1] != first
    (tmp_path / "one.txt").write_text("another text")
    assert planned({"longppl": {**longppl_entry, "corpus": "one.txt"}}, base_folder=tmp_path) != own[0]


def test_evaluations_without_examples_have_none() -> None:
    assert plan_examples(resolve_evaluation("loss"), data="d", tokenizer={}, context=1) is None


def model_folder(folder: Path, weights: bytes = b"w", **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 512, **config}))
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "README.md").write_text(folder.name)
    return folder


def test_a_folder_is_an_evaluator_by_content(tmp_path: Path) -> None:
    model_folder(tmp_path / "a")
    model_folder(tmp_path / "b")
    model_folder(tmp_path / "c", weights=b"v")
    found = [
        planned({"longppl": {"evaluator": f"./{name}", "context": 64, "slide": 32}}, base_folder=tmp_path)
        for name in "abc"
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluator": "./nowhere"}, "a folder with the config.json of a causal LM"),
        (
            {"evaluator": "./a", "context": 500},
            r"context is '500 \+ 32 \(slide\)'; allowed: at most 512, the evaluator's",
        ),
        ({"evaluator": "a"}, r"evaluator is 'a'; allowed: .*There is a folder of this name: write \./a"),
        ({"evaluator": "full/n1/5N"}, "Points are known within a grid only"),
        ({"evaluator": "./a", "evaluator_revision": "main"}, "evaluator_revision is 'main'; allowed: nothing beside"),
        (
            {"evaluator": "gpt2", "corpus": "no/*.jsonl"},
            r"evaluate\.longppl\.corpus is 'no/\*\.jsonl'.*nothing matches",
        ),
        ({"evaluator": "gpt2", "text_column": "body"}, "text_column is 'body'; allowed: nothing without a corpus"),
        ({"evaluator": "./notes.jsonl"}, "key token file is .*notes.jsonl, made by something else"),
    ],
)
def test_wrong_sources_get_one_clear_message(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    model_folder(tmp_path / "a")
    (tmp_path / "notes.jsonl").write_text("{}\n")
    evaluation = resolve_evaluation({"longppl": {"context": 64, "slide": 32, **settings}})
    with pytest.raises(BadInput, match=message):
        with_sources(evaluation, base_folder=tmp_path, find_point=None)


def test_a_model_without_revision_is_warned_about() -> None:
    def warnings(**more: Any) -> list[str]:
        entry = {"longppl": {"evaluator": "gpt2", **more}}
        return with_sources(resolve_evaluation(entry), base_folder=Path("."), find_point=None).warnings()

    assert "gpt2 without evaluator_revision" in warnings()[0]
    assert warnings(evaluator_revision="abc") == []
