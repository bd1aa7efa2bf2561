"""Wrong input around Switch attention and its baselines: one clear message, exit code 2, nothing written."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import gridlaw, refused

GOOD: dict[str, Any] = {
    "name": "good",
    "data": {"context": 64},
    "training": {"batch_tokens": 512, "precision": "fp32"},
    "stages": [
        {"name": "pretrain", "architectures": ["full"], "scales": ["n1"], "budgets": ["5N"]},
        {"name": "cpt", "from": "pretrain/full/5N", "architectures": ["swiattn-16"], "budgets": ["2N"]},
        {
            "name": "gates",
            "from": "pretrain/full/5N",
            "architectures": ["duo-16"],
            "budgets": ["2N"],
            "training": {"batch_tokens": 1024, "distill": {"full_heads": 0.5}},
            "data": {
                "context": 512,
                "mixture": [{"source": "generate:passkey", "settings": {"characters": 511, "passkeys": 2}}],
            },
        },
    ],
}


def switch(**settings: Any) -> dict[str, Any]:
    return {"name": "mine", "of": "swiattn-16", **settings}


def changed(stage: int, **keys: Any) -> dict[str, Any]:
    """GOOD with keys of one stage replaced; None removes one."""
    grid = copy.deepcopy(GOOD)
    for key, value in keys.items():
        grid["stages"][stage][key] = value
        if value is None:
            del grid["stages"][stage][key]
    return grid


def test_the_good_file_is_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "grid.yaml").write_text(yaml.safe_dump(GOOD))
    assert gridlaw("plan", "grid.yaml") == 0
    assert "gates/duo-16/n1/2N/seed0" in capsys.readouterr().out


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "threshold above 1": (changed(1, architectures=[switch(threshold=1.5)]), ["threshold", "1.5", "from 0 to 1"]),
    "threshold below 0": (changed(1, architectures=[switch(threshold=-0.1)]), ["threshold", "-0.1", "from 0 to 1"]),
    "negative alpha": (changed(1, architectures=[switch(alpha=-1)]), ["alpha", "-1", "at least 0"]),
    "epsilon of 0": (changed(1, architectures=[switch(epsilon=0)]), ["epsilon", "0", "above 0"]),
    "unknown activation": (changed(1, architectures=[switch(activation="gelu")]), ["activation", "softplus", "relu"]),
    "unknown reduction": (changed(1, architectures=[switch(mse_reduction="max")]), ["mse_reduction", "mean", "sum"]),
    "unknown start of the router": (changed(1, architectures=[switch(router_init="zero")]), ["router_init", "full"]),
    "unknown setting": (changed(1, architectures=[switch(gama_base=1e-3)]), ["gama_base", "gamma_base"]),
    "target above 1": (
        changed(1, training={"gamma_controller": {"target": 1.2}}),
        ["stages[1].training", "gamma_controller.target", "1.2", "1"],
    ),
    "controller without a target": (
        changed(1, training={"gamma_controller": {"gain": 1.0}}),
        ["gamma_controller.target", "required"],
    ),
    "controller without routers": (
        changed(1, architectures=["swa-only-16"], training={"gamma_controller": {"target": 0.2}}),
        ["gamma_controller of swa-only-16", "switch", "own training"],
    ),
    "target that fixed layers keep out of reach": (
        changed(
            1,
            architectures=[{"name": "half", "pattern": ["switch-16", "full"]}],
            training={"gamma_controller": {"target": 0.2}},
        ),
        ["gamma_controller.target of half", "0.2", "0.5 to 1"],
    ),
    "window beyond the context": (
        changed(1, architectures=["swiattn"]),
        ["swiattn", "window", "1024", "64", "swa-64"],
    ),
    "base point that no stage trains": (
        changed(1, **{"from": "pretrain/full/10N"}),
        ["stages[1].from", "pretrain/full/10N", "5N"],
    ),
    "share of heads above 1": (
        changed(2, training={"batch_tokens": 1024, "distill": {"full_heads": 1.5}}),
        ["distill.full_heads", "1.5", "1"],
    ),
    "threshold and share of heads": (
        changed(2, training={"batch_tokens": 1024, "distill": {"full_heads": 0.5, "threshold": 0.5}}),
        ["distill", "either threshold or full_heads"],
    ),
    "duo without distillation": (
        changed(2, training={"batch_tokens": 1024}),
        ["training.distill of duo-16", "generate:passkey", "binary: true"],
    ),
    "duo on other text than its own": (
        changed(2, data={"context": 512}),
        ["data.mixture of duo-16", "embedded:python", "generate:passkey"],
    ),
    "duo on a mixture": (
        changed(2, data={"context": 512, "mixture": ["generate:passkey", "generate:needle"]}),
        ["data.mixture of duo-16", "generate:needle", "generate:passkey alone"],
    ),
    "duo without a full model": (
        changed(2, **{"from": None}, scales=["n1"]),
        ["distill of duo-16", "from", "full-attention model"],
    ),
    "distillation of something else": (
        changed(2, architectures=["swiattn-16"]),
        ["training.distill of swiattn-16", "duo"],
    ),
    "passkeys longer than their documents": (
        changed(2, data={"context": 512, "mixture": [{"source": "generate:passkey", "settings": {"characters": 100}}]}),
        ["settings.characters", "100", "at least"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_message_names_the_place(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid, words = CASES[case]
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid))
    told = refused(folder, capsys, "run", "grid.yaml")
    assert [word for word in words if word not in told] == [], told


def test_a_window_as_long_as_the_context_is_warned_about(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "grid.yaml").write_text(yaml.safe_dump(changed(1, architectures=["swiattn-64"])))
    assert gridlaw("plan", "grid.yaml") == 0
    told = capsys.readouterr()
    assert "swiattn-64: its window equals the context (64 tokens)" in told.out + told.err


def test_gates_trained_from_nothing_are_warned_about(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = {**GOOD, "stages": [{**GOOD["stages"][0], "architectures": ["duo-16"]}]}
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid))
    assert gridlaw("plan", "grid.yaml") == 0
    told = capsys.readouterr()
    assert "duo-16: its gates learn from the language-model loss" in told.out + told.err
