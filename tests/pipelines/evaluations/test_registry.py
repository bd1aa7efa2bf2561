"""What ``evaluate:`` may say, and that saying it imports no torch."""

import json
import subprocess
import sys

import pytest

from gridlaw.pipelines.evaluations.registry import (
    KINDS,
    evaluation_names,
    resolve_evaluation,
    resolve_evaluations,
)
from gridlaw.platform.errors import BadInput


def test_defaults_are_filled_in() -> None:
    by_name = resolve_evaluation("niah").settings_dict()
    assert by_name["depths"] == 35
    assert by_name["lengths"] == 35
    assert by_name["samples"] == 3
    assert resolve_evaluation({"niah": None}).settings_dict() == by_name
    assert resolve_evaluation({"niah": {"samples": 3}}).settings_dict() == by_name
    assert resolve_evaluation({"niah": {"samples": 4}}).settings_dict() != by_name


@pytest.mark.parametrize("name", list(KINDS))
def test_settings_survive_json(name: str) -> None:
    entry = {"longppl": {"evaluator": "gpt2"}}.get(name)
    evaluation = resolve_evaluation({name: entry})
    saved = json.loads(json.dumps(evaluation.settings.to_dict()))
    assert resolve_evaluation({name: saved}) == evaluation
    assert evaluation.settings_dict()["name"] == name


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("nia", "evaluate is 'nia'.*loss, niah.*Did you mean niah"),
        (3, "evaluate is 3"),
        ({"loss": {}, "niah": {}}, "one name with its settings"),
        ({"niah": {"sample": 3}}, r"evaluate\.niah\.sample.*Did you mean samples"),
        ({"niah": [1]}, r"evaluate\.niah is \[1\]"),
        ({"niah": {"samples": 0}}, r"evaluate\.niah\.samples is 0; allowed: a whole number, 1 or more"),
        ({"niah": {"samples": True}}, "samples is True"),
        ({"niah": {"candidates": 1}}, "candidates is 1; allowed: a whole number, 2 or more"),
        ({"niah": {"lengths": [256, 256]}}, "different lengths"),
        ({"niah": {"lengths": [256], "max_length": 512}}, "Remove one of the two"),
        ({"loss": {"tokens": -1}}, r"evaluate\.loss\.tokens is -1"),
    ],
)
def test_wrong_entries_get_one_clear_message(entry: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        resolve_evaluation(entry)


def test_lists() -> None:
    assert [evaluation.name for evaluation in resolve_evaluations(["loss", {"niah": {"samples": 1}}])] == [
        "loss",
        "niah",
    ]
    with pytest.raises(BadInput, match="loss once"):
        resolve_evaluations(["loss", {"loss": {"tokens": 5}}])
    with pytest.raises(BadInput, match="a list of loss"):
        resolve_evaluations("loss")
    assert evaluation_names()[:2] == ["loss", "niah"]


def test_registry_and_run_import_no_torch() -> None:
    code = (
        "import sys, gridlaw.pipelines.evaluations.registry, gridlaw.pipelines.evaluations.run;"
        "print([n for n in ('torch', 'transformers', 'datasets', 'mlflow', 'ray') if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
