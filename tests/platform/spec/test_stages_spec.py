"""Several stages for one model: sources, inheritance, overrides, mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import parse_grid
from gridlaw.platform.spec.quantities import parse_budget

HEAD = """
name: staged
data: {context: 512, tokenizer: bytes}
training: {batch_tokens: 4096, schedule: {name: wsd, decay_fraction: 0.2}}
stages:
  - {name: pretrain, architectures: [full], scales: [n2, n3], budgets: [10N, 100N], seeds: [0, 1]}
"""


def staged(*stages: str) -> GridSpec:
    text = HEAD + "".join(f"  - {stage}\n" for stage in stages)
    return parse_grid(text, source="staged.yaml", base_folder=Path())


def message(*stages: str) -> str:
    with pytest.raises(BadInput) as error:
        staged(*stages)
    return str(error.value)


def test_points_carry_the_stages_name_even_if_there_is_one_stage_only() -> None:
    assert staged().points()[0].name == "pretrain/full/n2/10N/seed0"


def test_scales_and_seeds_are_those_of_the_source() -> None:
    spec = staged("{name: cpt, from: pretrain/full/100N, architectures: [swiattn-64], budgets: [20N]}")
    cpt = [point for point in spec.points() if point.stage == "cpt"]
    assert [point.name for point in cpt] == [
        f"cpt/swiattn-64/{scale}/20N/seed{seed}" for scale in ("n2", "n3") for seed in (0, 1)
    ]
    parents = [spec.parent_of(point) for point in cpt]
    assert [parent.name for parent in parents if parent] == [
        f"pretrain/full/{scale}/100N/seed{seed}" for scale in ("n2", "n3") for seed in (0, 1)
    ]


def test_a_source_with_scale_and_seed_narrows_both() -> None:
    spec = staged("{name: cpt, from: pretrain/full/n3/100N/seed1, architectures: [duo-64], budgets: [20N, 1M]}")
    cpt = [point for point in spec.points() if point.stage == "cpt"]
    assert [point.name for point in cpt] == ["cpt/duo-64/n3/20N/seed1", "cpt/duo-64/n3/1M/seed1"]
    parent = spec.parent_of(cpt[1])
    assert parent is not None
    assert parent.name == "pretrain/full/n3/100N/seed1"


def test_a_chain_of_stages_with_a_budget_of_zero() -> None:
    spec = staged(
        "{name: cpt, from: pretrain/full/100N, architectures: [swa-64], budgets: [20N]}",
        "{name: zero, from: cpt/swa-64/20N, architectures: [full], budgets: [0], scales: [n3]}",
    )
    zero = [point for point in spec.points() if point.stage == "zero"]
    assert [point.name for point in zero] == ["zero/full/n3/0N/seed0", "zero/full/n3/0N/seed1"]
    assert spec.parent_of(spec.points()[0]) is None


def test_settings_of_a_stage_lie_over_the_grids() -> None:
    spec = staged(
        "{name: cpt, from: pretrain/full/100N, budgets: [20N], training: {schedule: {name: cosine, warmup_steps: 9}},"
        " architectures: [full, {name: hot, of: full, training: {optimizer: {lr: 0.1}}}],"
        " data: {context: 1024}, rope: {base: 500000}}"
    )
    assert spec.training_for("full", "pretrain")["schedule"] == {"name": "wsd", "decay_fraction": 0.2}
    assert spec.training_for("hot", "cpt") == {
        "batch_tokens": 4096, "schedule": {"name": "cosine", "warmup_steps": 9}, "optimizer": {"lr": 0.1},
    }  # fmt: skip
    assert spec.data_for("cpt") == {"context": 1024, "tokenizer": "bytes"}
    assert spec.data_for("pretrain")["context"] == 512
    assert (spec.rope_for("pretrain"), spec.rope_for("cpt")) == ({}, {"base": 500000})


def test_sources_outside_this_grid() -> None:
    spec = staged(
        "{name: a, from: ./weights, architectures: [full], scales: [n3], budgets: [20N]}",
        '{name: b, from: "paper-grid:full/S1/100N", architectures: [full], scales: [S1], budgets: [20N]}',
        '{name: c, from: "paper:pretrain/full/S1/100N/seed2", architectures: [full], scales: [S1], budgets: [20N]}',
    )
    a, b, c = (spec.source_of(name) for name in "abc")
    assert a is not None
    assert a.folder == "./weights"
    assert b is not None
    assert (b.experiment, b.point and b.point.architecture, b.point and b.point.scale) == ("paper-grid", "full", "S1")
    assert b.point is not None
    assert b.point.budget == parse_budget("100N")
    assert c is not None
    assert c.point is not None
    assert (c.point.stage, c.point.seed) == ("pretrain", 2)
    assert all(spec.parent_of(point) is None for point in spec.points())


CPT = "{name: cpt, from: pretrain/full/100N, architectures: [full], budgets: [5N], "
CASES = [
    ("{name: pretrain, architectures: [full], scales: [n1], budgets: [5N]}", "stages of different names"),
    ("{name: cpt, from: pretrain/full/50N, architectures: [full], budgets: [5N]}", "pretrain: 10N, 100N"),
    ("{name: cpt, from: pretrain/ful/100N, architectures: [full], budgets: [5N]}", "Did you mean full?"),
    ("{name: cpt, from: pretain/full/100N, architectures: [full], budgets: [5N]}", "earlier stage"),
    ("{name: cpt, from: cpt/full/100N, architectures: [full], budgets: [5N]}", "earlier stage: pretrain"),
    ("{name: cpt, from: full/100N, architectures: [full], budgets: [5N]}", "Write STAGE/ARCHITECTURE/BUDGET"),
    ("{name: cpt, from: weights, architectures: [full], budgets: [5N]}", "./weights"),
    ("{name: cpt, from: pretrain/full, architectures: [full], budgets: [5N]}", "has a budget"),
    ("{name: cpt, from: '', architectures: [full], budgets: [5N]}", "at least 1"),
    ("{name: cpt, from: pretrain/full/n9/100N, architectures: [full], budgets: [5N]}", "n9"),
    ("{name: cpt, from: pretrain/full/100N, architectures: [full], scales: [n1], budgets: [5N]}", "this grid lacks"),
    ("{name: cpt, from: pretrain/full/100N, architectures: [full], seeds: [5], budgets: [5N]}", "this grid lacks"),
    ("{name: cpt, from: pretrain/full/100N, budgets: [5N]}", "stages[1].architectures"),
    ("{name: cpt, from: ./weights, architectures: [full], budgets: [5N]}", "stages[1].scales"),
    ("{name: cpt, architectures: [full], scales: [n1], budgets: [0]}", "with from:"),
    (CPT + "evaluated_on: pretain}", "Did you mean pretrain?"),
    (CPT + "training: {cilp: 1}}", "Did you mean clip?"),
    (CPT + "data: {context: -1}}", "stages[1].data.context"),
    ("{name: full, from: pretrain/full/100N, architectures: [full], budgets: [5N]}", "another name"),
    ("{name: n2, architectures: [full], scales: [n1], budgets: [5N]}", "another name"),
    ("{name: a/b, architectures: [full], scales: [n1], budgets: [5N]}", "stages[1].name"),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "said"), CASES)
def test_mistakes_in_stages(stage: str, said: str) -> None:
    assert said in message(stage)


@pytest.mark.parametrize(
    "key", ["architectures: [full]", "scales: [n1]", "budgets: [5N]", "seeds: [0]", "also: [{seeds: [1]}]"]
)
def test_stages_or_blocks(key: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_grid(HEAD + key + "\n", source="staged.yaml", base_folder=Path())
    assert "either stages: or blocks" in str(error.value)


def test_the_first_stage_starts_fresh() -> None:
    text = "name: x\ndata: {context: 8}\nstages: [{name: a, from: b/full/5N, architectures: [full], budgets: [5N]}]"
    with pytest.raises(BadInput) as error:
        parse_grid(text, source="x", base_folder=Path())
    assert "The first stage starts fresh" in str(error.value)
