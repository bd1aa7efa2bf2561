"""Plans of several stages: positions that go on or change, budgets of 0, what identity holds. Nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridlaw.modules.errors import BadSetting
from gridlaw.pipelines.plan import GridPlan, TrunkPlan, make_plan
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.load import grid_from_mapping

PRETRAIN = {"name": "pretrain", "architectures": ["full"], "scales": ["n1"], "budgets": ["5N"]}
TRAINING = {"batch_tokens": 4096, "precision": "fp32"}


def planned(*stages: dict[str, Any], **more: Any) -> GridPlan:
    grid = {"name": "g", "data": {"context": 256}, "training": TRAINING, "stages": [PRETRAIN, *stages], **more}
    return make_plan(grid_from_mapping(grid, source="test", base_folder=Path.cwd()))


def stage(name: str, architecture: str = "full", budget: Any = "2N", **more: Any) -> dict[str, Any]:
    return {"name": name, "from": "pretrain/full/5N", "architectures": [architecture], "budgets": [budget], **more}


def trunk(plan: GridPlan, name: str) -> TrunkPlan:
    return next(each for each in plan.trunks if each.stage == name)


def test_a_stage_keeps_the_positions_that_its_weights_were_trained_with() -> None:
    """The default base would follow the longer context."""
    plan = planned(stage("long", data={"context": 8192}, training={"batch_tokens": 8192}), rope={})
    assert trunk(plan, "long").model["rope_base"] == trunk(plan, "pretrain").model["rope_base"] == 10_000
    (warning,) = plan.warnings
    assert "stage long: a context of 8,192 tokens" in warning and "trained at 256" in warning


def test_a_change_of_the_base_extends_the_context() -> None:
    plan = planned(stage("long", data={"context": 512}, rope={"base": 500_000}))
    model = trunk(plan, "long").model
    assert (model["rope_base"], model["rope_scaling"], model["context"]) == (500_000, None, 512)
    assert plan.warnings == ()


def test_yarn_takes_its_numbers_from_base_and_context_and_goes_on_in_later_stages() -> None:
    plan = planned(
        stage("long", data={"context": 1024}, rope={"yarn": {}}),
        {"name": "later", "from": "long/full/2N", "architectures": ["swa-64"], "budgets": ["1N"],
         "data": {"context": 1024}},
        {"name": "longer", "from": "long/full/2N", "architectures": ["full"], "budgets": ["1N"],
         "data": {"context": 4096}, "rope": {"yarn": {"beta_fast": 16, "attention_factor": 1}}},
    )  # fmt: skip
    usual = {"beta_fast": 32, "beta_slow": 1, "attention_factor": None}
    expected = {"type": "yarn", "factor": 4.0, "original_context": 256} | usual
    assert trunk(plan, "long").model["rope_scaling"] == trunk(plan, "later").model["rope_scaling"] == expected
    assert trunk(plan, "longer").model["rope_scaling"] == expected | {
        "factor": 16.0, "beta_fast": 16, "attention_factor": 1,
    }  # fmt: skip
    assert plan.warnings == ()


def test_a_factor_of_1_is_no_yarn_and_a_small_one_is_warned_about() -> None:
    plan = planned(
        stage("one", rope={"yarn": {"factor": 1}}),
        stage("small", data={"context": 1024}, rope={"yarn": {"factor": 2}}),
    )
    assert trunk(plan, "one").model["rope_scaling"] is None
    (warning,) = plan.warnings
    assert warning == "stage small: YaRN with factor 2 of 256 tokens covers 512, fewer than the context of 1,024"


@pytest.mark.parametrize(
    ("rope", "context", "words"),
    [
        ({"yarn": {"factor": 0.5}}, 512, ["rope.yarn.factor", "0.5", "1"]),
        ({"yarn": {"beta_fast": 1, "beta_slow": 2}}, 512, ["beta_fast", "(1, 2)"]),
        ({"yarn": {}}, 64, ["data.context", "64", "256"]),
        ({"yarn": {"typ": "linear"}}, 512, ["rope.yarn.typ"]),
        ({"base": 1}, 512, ["rope.base", "1"]),
        ({"bse": 5}, 512, ["rope.bse", "base"]),
        ({"yarn": 4}, 512, ["rope.yarn", "4"]),
    ],
)
def test_positions_that_cannot_be(rope: dict[str, Any], context: int, words: list[str]) -> None:
    with pytest.raises((BadInput, BadSetting)) as error:
        planned(stage("long", data={"context": context}, rope=rope))
    for word in words:
        assert word in str(error.value)


def test_yarn_of_a_fresh_start_must_say_what_it_stretches() -> None:
    with pytest.raises(BadSetting, match=r"rope.yarn.original_context.*from:"):
        planned(rope={"yarn": {}})
    plan = planned(rope={"yarn": {"original_context": 64}})
    assert trunk(plan, "pretrain").model["rope_scaling"]["factor"] == 4.0


def test_a_budget_of_0_has_no_training_in_its_identity_and_a_trained_one_does() -> None:
    plans = [
        planned(stage("zero", "swa-64", 0, training={"optimizer": {"name": name}}), stage("cpt", training=TRAINING))
        for name in ("adamw", "muon")
    ]
    zero, other = (trunk(plan, "zero").points[0] for plan in plans)
    assert zero.fingerprint == other.fingerprint
    assert (zero.total_steps, zero.tokens, zero.train_flops, zero.is_trained) == (0, 0, 0.0, False)
    assert "training" not in zero.identity["trunk"]
    assert zero.identity["trunk"]["parent"] == trunk(plans[0], "pretrain").points[0].fingerprint
    assert trunk(plans[0], "cpt").fingerprint != ""


def test_a_budget_of_0_needs_no_token_batch() -> None:
    planned(stage("zero", "swa-64", 0, data={"context": 300}))
    with pytest.raises(BadSetting, match="batch_tokens"):
        planned(stage("cpt", "swa-64", "1N", data={"context": 300}))


def test_a_trunk_may_serve_0_and_more() -> None:
    both = stage("both", "swa-64") | {"budgets": [0, "2N"]}
    found = trunk(planned(both), "both")
    assert [point.id.budget.label for point in found.points] == ["0N", "2N"]
    assert found.branch_steps == (found.points[1].trunk_steps,)


def test_a_cosine_stage_starts_every_budget_from_the_base() -> None:
    cosine = {"schedule": {"name": "cosine", "warmup_steps": 1}}
    found = trunk(planned(stage("cpt", training=cosine)), "cpt")
    assert found.base is not None and found.branch_steps == ()
    assert found.points[0].identity["trunk"]["parent"] == found.base.fingerprint


def test_weights_that_cannot_fit_are_refused_by_the_plan() -> None:
    with pytest.raises(BadSetting) as error:
        planned(stage("cpt", "lightning"))
    assert "stages: cpt: from pretrain/full/n1/5N/seed0 for cpt/lightning/n1/2N/seed0" in str(error.value)
    assert "layers.0.ffn.gate_proj.weight is (80, 32)" in str(error.value)
    with pytest.raises(BadSetting, match=r"embedding\.weight"):
        planned(stage("cpt") | {"scales": ["n3"], "from": "pretrain/full/n1/5N"})


def test_laws_have_no_place_for_a_budget_of_0() -> None:
    law = {"target": "loss", "form": "d", "fit": {"stages": ["zero"]}}
    with pytest.raises(BadInput, match="points of budget 0 are in no law"):
        planned(stage("zero", "swa-64", 0), laws=[law])


def test_a_stage_is_measured_on_the_text_that_it_names() -> None:
    """Its evaluations are others then; what is asked is shared with that stage, and training does not change."""
    needles = {"mixture": [{"source": "generate:needle", "settings": {"documents": 400}}]}
    own, other = (planned(stage("gates", data=needles, **more), evaluate=["loss", {"niah": {"samples": 1}}])
                  for more in ({}, {"evaluated_on": "pretrain"}))  # fmt: skip
    assert trunk(own, "gates").measured == trunk(own, "gates").data
    assert trunk(other, "gates").measured == trunk(other, "pretrain").data != trunk(other, "gates").data
    assert trunk(own, "gates").fingerprint == trunk(other, "gates").fingerprint
    prints = [[plan.evaluation_fingerprint(plan.points[index], plan.evaluations[0]) for index in (0, 1)]
              for plan in (own, other)]  # fmt: skip
    assert prints[0][0] == prints[1][0] and prints[0][1] != prints[1][1]
    assert [len(plan.all_examples()) for plan in (own, other)] == [2, 1]


def test_text_of_another_context_measures_nothing() -> None:
    with pytest.raises(BadInput) as caught:
        planned(stage("long", data={"context": 512}, evaluated_on="pretrain"))
    assert "stages.long.evaluated_on" in str(caught.value) and "the same data.context" in str(caught.value)
