"""Fingerprints: what changes them, what does not, and how differences are told."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gridlaw.platform.identity import (
    ABSENT,
    Difference,
    canonical_json,
    differences,
    drift_text,
    evaluation_identity,
    fingerprint,
    law_identity,
    point_identity,
    shares_trunk,
    show,
    trunk_identity,
)
from gridlaw.platform.spec.blocks import PointId
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import parse_grid

QUICK = settings(deadline=None, max_examples=100)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)
MAPPINGS = st.dictionaries(st.text(max_size=4), PLAIN, max_size=4)

MODEL = {
    "layers": [{"mixer": "swa", "window": 64, "sink": True}, {"mixer": "full", "sink": True}],
    "scale": {"d_model": 32, "ffn_dim": 80, "num_heads": 2},
    "vocab_size": 257,
    "rope_base": 10_000.0,
}
DATA = {
    "context": 512,
    "tokenizer": {"sha256": "t0"},
    "mixture": [{"sha256": "c0", "weight": 1.0}],
    "document_mask": False,
}
TRAINING = {
    "batch_tokens": 4096,
    "optimizer": {"name": "muon", "lr": 1e-3, "weight_decay": 0.1},
    "schedule": {
        "name": "wsd", "warmup_steps": 10, "decay_fraction": 0.1, "decay_shape": "1-sqrt", "final_fraction": 0.0,
    },
    "precision": "bf16",
    "clip": 1.0,
}  # fmt: skip


def changed(value: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    """A copy with the field at a dotted path set (list positions are numbers)."""
    result = copy.deepcopy(value)
    target: Any = result
    *parts, last = path.split(".")
    for part in parts:
        target = target[int(part) if isinstance(target, list) else part]
    target[last] = new
    return result


def trunk(**parts: Any) -> dict[str, Any]:
    return trunk_identity(**{"model": MODEL, "data": DATA, "training": TRAINING, "seed": 0, **parts})


def point(training: dict[str, Any] = TRAINING, tokens: int = 409_600) -> dict[str, Any]:
    return point_identity(trunk(training=training), budget_tokens=tokens, training=training)


class TestCanonicalForm:
    """One text for one meaning."""

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
            (1.0, 1),
            (-0.0, 0),
            (1e3, 1000),
            (1e22, 10**22),
            ((1, 2), [1, 2]),
            (1e-3, 0.001),
        ],
    )
    def test_one_meaning_one_text(self, left: Any, right: Any) -> None:
        assert canonical_json(left) == canonical_json(right)

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            (True, 1),
            (False, 0),
            ("1", 1),
            (None, {}),
            ({"a": None}, {}),
            ([1, 2], [2, 1]),
            (0.1, 0.1 + 2**-55),
            ("", []),
        ],
    )
    def test_two_meanings_two_texts(self, left: Any, right: Any) -> None:
        assert canonical_json(left) != canonical_json(right)

    def test_the_text_is_known(self) -> None:
        value = {"lr": 1e-3, "b": [True, None, 2.0], "é": "x", "a": 1e-7}
        assert canonical_json(value) == '{"a":1e-07,"b":[true,null,2],"lr":0.001,"é":"x"}'
        assert fingerprint(value) == "b8ba8b73b54a0fd9b6bd"

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), Path("/a"), {1: 2}, {1, 2}, b"x", object()])
    def test_what_has_no_form_is_our_bug_and_its_place_is_told(self, value: Any) -> None:
        with pytest.raises(TypeError, match=r"a\.b\[0\]"):
            canonical_json({"a": {"b": [value]}})

    @QUICK
    @given(MAPPINGS)
    def test_stored_as_json_and_read_back_it_has_the_same_fingerprint(self, value: dict[str, Any]) -> None:
        assert fingerprint(json.loads(json.dumps(value))) == fingerprint(value)
        assert fingerprint(json.loads(canonical_json(value))) == fingerprint(value)

    @QUICK
    @given(MAPPINGS, st.randoms())
    def test_the_order_of_keys_does_not_matter(self, value: dict[str, Any], random: Any) -> None:
        def shuffled(inner: Any) -> Any:
            if isinstance(inner, dict):
                keys = list(inner)
                random.shuffle(keys)
                return {key: shuffled(inner[key]) for key in keys}
            return [shuffled(each) for each in inner] if isinstance(inner, list) else inner

        assert fingerprint(shuffled(value)) == fingerprint(value)

    @QUICK
    @given(st.dictionaries(st.sampled_from("abc"), st.floats(allow_nan=False, allow_infinity=False) | st.integers()))
    def test_yaml_in_flow_and_block_style_is_one(self, value: dict[str, Any]) -> None:
        for flow in (True, False):
            text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
            assert fingerprint(yaml.safe_load(text)) == fingerprint(value)


class TestDifferences:
    """Field by field, and none exactly where fingerprints agree."""

    @QUICK
    @given(MAPPINGS, MAPPINGS)
    def test_differences_and_fingerprints_agree(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        assert (differences(old, new) == []) == (fingerprint(old) == fingerprint(new))

    def test_fields_by_their_paths(self) -> None:
        new = changed(changed(point(), "trunk.training.optimizer.lr", 2e-3), "trunk.parent", "abc")
        assert differences(point(), new) == [
            Difference(field="trunk.parent", old=ABSENT, new="abc"),
            Difference(field="trunk.training.optimizer.lr", old=1e-3, new=2e-3),
        ]

    def test_drift_as_people_read_it(self) -> None:
        training = changed(TRAINING, "optimizer.lr", 2e-3)
        assert drift_text(differences(point(), point(training))) == "lr 1e-3 → 2e-3"

    def test_alike_layers_are_told_once_and_names_are_told_apart(self) -> None:
        old = {"layers": [{"m": {"window": 64}}, {"m": {}}, {"m": {"window": 64}}], "a": {"x": 1}, "b": {"x": 1}}
        new = {"layers": [{"m": {"window": 9}}, {"m": {}}, {"m": {"window": 9}}], "a": {"x": 2}, "b": {"x": 3}}
        told = drift_text(differences(old, new))
        assert told == "a.x 1 → 2, b.x 1 → 3, layers[0, 2].m.window 64 → 9"

    def test_lists_of_other_lengths_are_shown_whole(self) -> None:
        assert drift_text(differences({"a": [1]}, {"a": [1, 2]})) == "a [1] → [1,2]"

    @pytest.mark.parametrize(
        ("value", "text"),
        [(1e-3, "1e-3"), (0.1, "0.1"), (2.5e-4, "2.5e-4"), (1e22, "1e22"), (0.3333333333333333, "0.3333333333333333"),
         (True, "true"), (None, "null"), ("wsd", "wsd"), (ABSENT, "absent"), (4096, "4096")],
    )  # fmt: skip
    def test_values(self, value: Any, text: str) -> None:
        assert show(value) == text

    @QUICK
    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_shown_numbers_are_exact(self, value: float) -> None:
        assert float(show(value)) == value


class TestLegacy:
    """A field added in a later version, with the value that the code had before, changes no fingerprint."""

    LEGACY: ClassVar = {
        "trunk.training.z_loss": 0.0,
        "trunk.model.layers.*.qk_norm": False,
        "trunk.rope": {"type": "none"},
    }

    def test_old_fingerprints_stay(self) -> None:
        old = point()
        new = changed(old, "trunk.training.z_loss", 0)
        new = changed(new, "trunk.rope", {"type": "none"})
        for layer in (0, 1):
            new = changed(new, f"trunk.model.layers.{layer}.qk_norm", False)
        assert fingerprint(new) != fingerprint(old)
        assert fingerprint(new, self.LEGACY) == fingerprint(old, self.LEGACY) == fingerprint(old)
        assert differences(old, new, self.LEGACY) == []

    def test_another_value_is_another_identity_and_told_as_such(self) -> None:
        new = changed(point(), "trunk.training.z_loss", 1e-4)
        assert fingerprint(new, self.LEGACY) != fingerprint(point())
        assert drift_text(differences(point(), new, self.LEGACY)) == "z_loss absent → 1e-4"
        one_layer = changed(point(), "trunk.model.layers.1.qk_norm", True)
        assert fingerprint(one_layer, self.LEGACY) != fingerprint(point())

    def test_only_where_the_kind_stands(self) -> None:
        evaluation = evaluation_identity(point(), name="loss", settings={"training": {"z_loss": 0.0}})
        assert fingerprint(evaluation, self.LEGACY) == fingerprint(evaluation)
        nested = changed(evaluation, "point.trunk.training.z_loss", 0.0)
        assert fingerprint(nested, self.LEGACY) == fingerprint(evaluation)

    def test_a_field_added_to_an_added_section(self) -> None:
        legacy = {**self.LEGACY, "trunk.rope.factor": 1.0}
        new = changed(point(), "trunk.rope", {"type": "none", "factor": 1.0})
        assert fingerprint(new, legacy) == fingerprint(point())

    def test_positions_of_earlier_versions(self) -> None:
        """YaRN had three numbers before its other three could be set."""
        yarn = {"type": "yarn", "factor": 4.0, "original_context": 512}
        old = changed(point(), "trunk.model.rope_scaling", yarn)
        usual = {"beta_fast": 32, "beta_slow": 1, "attention_factor": None}
        assert fingerprint(changed(old, "trunk.model.rope_scaling", yarn | usual)) == fingerprint(old)
        assert fingerprint(changed(old, "trunk.model.rope_scaling", yarn | usual | {"beta_fast": 16})) != fingerprint(
            old
        )

    def test_nothing_is_changed_in_place(self) -> None:
        new = changed(point(), "trunk.training.z_loss", 0.0)
        before = copy.deepcopy(new)
        fingerprint(new, self.LEGACY)
        assert new == before


TRUNK_FIELDS = [
    ("model", "layers.0.window", 128), ("model", "layers.1.sink", False), ("model", "scale.d_model", 48),
    ("model", "vocab_size", 300), ("model", "rope_base", 5e5), ("data", "context", 1024),
    ("data", "mixture.0.sha256", "c1"), ("data", "mixture.0.weight", 2), ("data", "tokenizer.sha256", "t1"),
    ("data", "document_mask", True), ("training", "batch_tokens", 8192), ("training", "optimizer.name", "adamw"),
    ("training", "optimizer.lr", 2e-3), ("training", "optimizer.weight_decay", 0), ("training", "precision", "fp32"),
    ("training", "clip", 2), ("training", "schedule.warmup_steps", 11),
]  # fmt: skip
PARTS = {"model": MODEL, "data": DATA, "training": TRAINING}


class TestWhatEnters:
    """The identity section of the design, field by field."""

    @pytest.mark.parametrize(("part", "path", "new"), TRUNK_FIELDS)
    def test_every_field_of_a_trunk_counts_for_it_and_its_points(self, part: str, path: str, new: Any) -> None:
        other = trunk(**{part: changed(PARTS[part], path, new)})
        assert fingerprint(other) != fingerprint(trunk())
        assert fingerprint(point_identity(other, budget_tokens=4096, training=TRAINING)) != fingerprint(
            point_identity(trunk(), budget_tokens=4096, training=TRAINING)
        )

    def test_seed_and_parent_count(self) -> None:
        prints = {fingerprint(trunk()), fingerprint(trunk(seed=1)), fingerprint(trunk(parent="p")),
                  fingerprint(trunk(parent="q"))}  # fmt: skip
        assert len(prints) == 4

    @pytest.mark.parametrize(
        ("key", "new"), [("decay_fraction", 0.2), ("decay_shape", "linear"), ("final_fraction", 0.1)]
    )
    def test_the_decay_is_the_points_and_not_the_trunks(self, key: str, new: Any) -> None:
        training = changed(TRAINING, f"schedule.{key}", new)
        assert fingerprint(trunk(training=training)) == fingerprint(trunk())
        assert fingerprint(point(training)) != fingerprint(point())

    def test_the_budget_is_the_points_and_not_the_trunks(self) -> None:
        assert shares_trunk(TRAINING)
        assert fingerprint(point(tokens=819_200)) != fingerprint(point())
        assert fingerprint(trunk(budget_tokens=1)) == fingerprint(trunk(budget_tokens=2)) == fingerprint(trunk())

    def test_a_cosine_schedule_puts_the_budget_into_the_trunk(self) -> None:
        cosine = changed(TRAINING, "schedule.name", "cosine")
        assert not shares_trunk(cosine)
        one, two = (trunk(training=cosine, budget_tokens=tokens) for tokens in (4096, 8192))
        assert fingerprint(one) != fingerprint(two)
        final = changed(cosine, "schedule.final_fraction", 0.1)
        assert fingerprint(trunk(training=final, budget_tokens=4096)) != fingerprint(one)
        ignored = changed(cosine, "schedule.decay_fraction", 0.5)  # wsd's: cosine does not read it
        assert fingerprint(trunk(training=ignored, budget_tokens=4096)) == fingerprint(one)
        assert point_identity(one, budget_tokens=4096, training=cosine)["decay"] is None
        with pytest.raises(AssertionError, match="budget"):
            trunk(training=cosine)

    def test_max_epochs_is_no_identity(self) -> None:
        assert fingerprint(trunk(data={**DATA, "max_epochs": 4})) == fingerprint(trunk())

    def test_an_evaluation_is_point_name_settings_and_corpus(self) -> None:
        def of(**parts: Any) -> str:
            given = {"name": "longppl", "settings": {"evaluator": "e0"}, "corpus": {"sha256": "g0"}, **parts}
            return fingerprint(evaluation_identity(given.pop("point", point()), **given))

        others = [
            of(name="loss"), of(settings={"evaluator": "e1"}), of(corpus={"sha256": "g1"}), of(corpus=None),
            of(point=point(tokens=8192)),
        ]  # fmt: skip
        assert len({of(), *others}) == 6

    def test_a_law_is_its_evaluations_in_any_order_and_its_fit(self) -> None:
        def of(fitted: list[str], verified: list[str], **fit: Any) -> str:
            settings = {"form": "nd", "delta": 1e-3, **fit}
            return fingerprint(law_identity(fitted=fitted, verified=verified, fit=settings))

        base = of(["a", "b"], ["c"])
        assert of(["b", "a"], ["c"]) == base
        others = [of(["a"], ["c"]), of(["a", "b"], []), of(["a", "c"], ["b"]), of(["a", "b"], ["c"], form="d"),
                  of(["a", "b"], ["c"], delta=1e-2)]  # fmt: skip
        assert len({base, *others}) == 6


GRID = """
name: one
architectures: [full, {name: hot, of: full, training: {optimizer: {lr: 2e-3}}}]
scales: [n1, n2]
budgets: [5N, 10N]
data: {context: 512, mixture: [{source: text, weight: 1}]}
training: {batch_tokens: 4096, optimizer: {name: muon}, schedule: {name: wsd, warmup_steps: 10, decay_fraction: 0.1}}
"""
SAME_GRID = """
# another name, other order, other style; more points, laws, evaluations; and where it runs
run:
  devices: {n1: 0.5}
  accelerator: cpu
  store: s3://bucket/elsewhere
  tracking_uri: http://server:5000
  max_parallel: 3
  checkpoint_every_steps: 7
  keep: {every_tokens: 1M}
  hardware: {peak_tflops: 1}
laws: [{target: loss, verify: {budgets: [10N]}}]
evaluate: [niah, loss, {recall: {distance: 3}}]
training:
  schedule: {decay_fraction: 1.0e-1, warmup_steps: 10, name: wsd}
  optimizer: {"name": "muon"}
  batch_tokens: 4_096
data:
  mixture:
  - weight: 1.0
    source: 'text'
  max_epochs: 9
  context: 512
budgets: [20N, 10.0N, 5N]
seeds: [1, 0]
scales: [n2, n1, n3]
architectures:
  - {name: hot, training: {optimizer: {lr: 0.002}}, of: full}
  - gdn
  - full
also: [{scales: [n4], budgets: [7N]}]
name: two
"""


def point_fingerprints(spec: GridSpec) -> dict[str, str]:
    """Fingerprints of all points, with what a catalog would resolve stood for by what the file declares."""

    def of(each: PointId) -> str:
        training = spec.training_for(each.architecture)
        architecture = spec.architecture_for(each.architecture)
        model = {"of": architecture["of"] if isinstance(architecture, dict) else architecture, "scale": each.scale}
        identity = trunk_identity(model=model, data=spec.data_for(), training=training, seed=each.seed)
        tokens = each.budget.num_steps(1_000_000, training["batch_tokens"]) * training["batch_tokens"]
        return fingerprint(point_identity(identity, budget_tokens=tokens, training=training))

    return {each.name: of(each) for each in spec.points()}


def test_name_run_order_formatting_and_other_parts_of_a_file_change_no_fingerprint() -> None:
    """marin #473 #4204 #5216."""
    one, two = (
        point_fingerprints(parse_grid(text, source="g", base_folder=Path(folder)))
        for text, folder in ((GRID, "/a"), (SAME_GRID, "/b"))
    )
    assert len(one) == 8
    assert len(two) == 3 * 3 * 3 * 2 + 3 * 2
    assert {name: two[name] for name in one} == one
    assert len(set(one.values())) == 8


@pytest.mark.parametrize("change", ["lr: 3e-3", "weight: 2", "warmup_steps: 11", "decay_fraction: 0.2", "context: 256"])
def test_a_change_of_the_file_that_counts(change: str) -> None:
    key = change.split(":")[0]
    other = re.sub(rf"{key}: [^,}}]+", change, GRID)
    assert other != GRID
    before, after = (point_fingerprints(parse_grid(text, source="g", base_folder=Path())) for text in (GRID, other))
    differ = {name for name in before if before[name] != after[name]}
    assert differ == ({name for name in before if name.startswith("hot")} if key == "lr" else set(before))
