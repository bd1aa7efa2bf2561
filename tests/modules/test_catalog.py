"""Names, patterns and exact counts, held against the papers' tables."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gridlaw.modules.catalog import (
    architecture_names,
    describe,
    flops_per_token,
    full_num_params,
    model_config,
    resolve_architecture,
    resolve_scale,
    scale_names,
)
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.scale import SCALES

LAYERS = {  # PAPERS A.2: per-layer parameters, norms left out, at S1 to S4
    "full": (1_499_136, 2_621_440, 4_055_040, 5_799_936),
    "swa-128": (1_499_136, 2_621_440, 4_055_040, 5_799_936),
    "swa-512": (1_499_136, 2_621_440, 4_055_040, 5_799_936),
    "swa-2048": (1_499_136, 2_621_440, 4_055_040, 5_799_936),
    "lightning": (1_502_208, 2_625_536, 4_060_160, 5_806_080),
    "gdn": (1_496_114, 2_627_634, 4_075_570, 5_839_922),
    "mamba2": (1_576_098, 2_789_912, 4_349_470, 6_253_092),
}
FULL = {
    "S1": 14_999_424, "S2": 31_470_080, "S3": 64_901_760, "S4": 104_427_264, "S5": 476_852_480,
    "switch-1.5b": 1_384_212_480, "n1": 23_712, "n2": 47_392, "n3": 97_200, "n4": 172_608,
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layer_parameters_are_the_papers(name: str) -> None:
    for scale, expected in zip(("S1", "S2", "S3", "S4"), LAYERS[name], strict=True):
        first = describe(resolve_architecture(name), SCALES[scale], context=16_384).layers[0]
        if name == "mamba2" and scale != "S2":
            assert abs(first.num_params - expected) <= 0.0004 * expected
        else:
            assert first.num_params == expected


def test_non_embedding_parameters_of_full_are_the_papers() -> None:
    assert {name: full_num_params(SCALES[name]) for name in scale_names()} == FULL


def test_totals_are_the_papers() -> None:
    rounded = {name: describe(resolve_architecture("full"), SCALES[name], context=1).num_params_total for name in FULL}
    assert [round(rounded[name] / 1e6) for name in ("S1", "S2", "S3", "S4", "S5")] == [71, 107, 159, 217, 665]
    assert rounded["switch-1.5b"] == 1_515_284_480  # without sinks there


def test_nano_layers_are_within_five_percent_of_full() -> None:
    for name in ("n1", "n2", "n3", "n4"):
        full = describe(resolve_architecture("full"), SCALES[name], context=512).layers[0].num_params
        for architecture in architecture_names():
            for layer in describe(resolve_architecture(architecture), SCALES[name], context=512).layers:
                assert abs(layer.num_params / full - 1) <= 0.05, (architecture, name)


def test_forward_flops_at_s1_are_the_papers_share() -> None:
    described = describe(resolve_architecture("full"), SCALES["S1"], context=16_384)
    assert described.flops_per_token / (2 * described.num_params_full) == pytest.approx(7.1, abs=0.05)
    head = 2 * 384 * 73_448
    attention = 10 * 4 * 6 * 64 * 16_385 / 2
    assert round(head / 1e6) == 56
    assert round(attention / 1e6) == 126
    assert described.flops_per_token == pytest.approx(head + attention + 2 * 10 * 1_499_136)
    shares = {
        name: describe(resolve_architecture("full"), SCALES[name], context=16_384).flops_per_token / 2 / FULL[name]
        for name in ("S4", "S5")
    }
    assert shares["S4"] == pytest.approx(3.7, abs=0.05)
    assert shares["S5"] == pytest.approx(2.5, abs=0.05)


def test_switch_counts_both_branches_in_training_and_the_chosen_one_after() -> None:
    architecture, scale = resolve_architecture("swiattn-64"), SCALES["n3"]
    both = describe(architecture, scale, context=512).flops_per_token
    full = describe(architecture, scale, context=512, training=False, full_ratio=1.0).flops_per_token
    near = describe(architecture, scale, context=512, training=False, full_ratio=0.0).flops_per_token
    half = describe(architecture, scale, context=512, training=False, full_ratio=0.5).flops_per_token
    assert near < half < full < both
    assert half == pytest.approx((near + full) / 2)
    with pytest.raises(BadSetting, match=r"full_ratio is 1\.5; allowed: a number from 0 to 1"):
        describe(architecture, scale, context=512, training=False, full_ratio=1.5)


def test_patterns_repeat_by_layer_index() -> None:
    def names(architecture: str, scale: str) -> list[str]:
        return [spec.name for spec in resolve_architecture(architecture).layers(SCALES[scale])]

    assert names("swa-128", "n2") == ["swa", "full", "swa", "full"]
    assert names("swa-128-1to3", "S1") == ["swa", "swa", "swa", "full"] * 2 + ["swa", "swa"]
    assert names("sh-6to1", "S1") == ["swa"] * 6 + ["full"] + ["swa"] * 3
    assert names("swa-64-headwise", "n2") == ["headwise"] * 4
    nope = resolve_architecture("swa-128-nope").layers(SCALES["n2"])
    assert [spec.uses_rope for spec in nope] == [True, False, True, False]


def test_window_suffix_and_default() -> None:
    for name in ("swiattn", "swa-only", "sh-3to1", "sh-6to1", "duo"):
        assert resolve_architecture(name).pattern[0].to_dict()["window"] == 1024
        assert resolve_architecture(f"{name}-64").pattern[0].to_dict()["window"] == 64


def test_grid_file_entries() -> None:
    mine = resolve_architecture({"name": "mine", "pattern": ["swa-128", "gdn", {"mixer": "swa", "window": 3}, "full"]})
    assert [spec.name for spec in mine.pattern] == ["swa", "gdn", "swa", "full"]
    assert mine.pattern[2].to_dict()["window"] == 3
    variant = resolve_architecture(
        {"name": "v", "of": {"name": "u", "of": "swiattn-64", "training": {"optimizer": {"lr": 1.0, "name": "adamw"}}},
         "alpha": 10, "training": {"optimizer": {"lr": 2e-3}}}
    )  # fmt: skip
    assert variant.name == "v"
    assert variant.pattern[0].to_dict()["alpha"] == 10.0
    assert variant.overrides == {"training": {"optimizer": {"lr": 2e-3, "name": "adamw"}}}
    bare = resolve_architecture({"name": "bare", "of": "swa-128", "sink": False})
    assert [spec.to_dict()["sink"] for spec in bare.layers(SCALES["n1"])] == [False, False]


def test_scales_from_a_grid_file() -> None:
    scale = resolve_scale({"name": "mine", "layers": 8, "d_model": 256, "heads": 4})
    assert (scale.num_layers, scale.head_dim, scale.num_kv_heads, scale.ffn_dim) == (8, 64, 4, 640)
    given = resolve_scale(
        {"name": "m", "layers": 2, "d_model": 50, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn_dim": 99}
    )
    assert (given.inner_dim, given.kv_dim, given.ffn_dim) == (64, 32, 99)


def test_config_survives_json() -> None:
    for name in architecture_names():
        config = model_config(resolve_architecture(name), SCALES["n1"], vocab_size=257, context=2048)
        again = ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())))
        assert again == config
        assert [spec.to_dict() for spec in again.mixers()] == list(config.layers)
        described = describe(resolve_architecture(name), SCALES["n1"], vocab_size=257, context=2048)
        assert flops_per_token(config) == described.flops_per_token
        json.dumps(described.to_dict())


def test_rope_base_follows_the_context() -> None:
    full, scale = resolve_architecture("full"), SCALES["n1"]
    assert model_config(full, scale, vocab_size=9, context=4096).rope_base == 10_000
    assert model_config(full, scale, vocab_size=9, context=16_384).rope_base == 500_000
    assert model_config(full, scale, vocab_size=9, context=512, rope_base=777).rope_base == 777


def test_describe_never_imports_torch() -> None:
    code = (
        "import sys\n"
        "from gridlaw.modules.catalog import *\n"
        "for name in architecture_names():\n"
        "    describe(resolve_architecture(name), resolve_scale('S1'), context=16384)\n"
        "assert not {'torch', 'numpy', 'lightning'} & sys.modules.keys(), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


MISTAKES = [
    ("swq-128", "Did you mean 'swa-128'"),
    ("swa-0", "window is 0; allowed: a whole number of at least 1"),
    ({"name": "x", "pattern": []}, "pattern is .*at least one mixer"),
    ({"name": "x", "pattern": "full"}, "allowed: a list"),
    ({"name": "x", "pattern": ["sws-128"]}, "mixer is 'sws-128'.*full, swa"),
    ({"name": "x", "pattern": ["swa"]}, "with its settings: rope, sink, window"),
    ({"name": "x", "pattern": ["full-128"]}, "suffix '128'; allowed: nope, nosink"),
    ({"name": "x", "pattern": [{"mixer": "swa", "windw": 3}]}, "setting 'windw'; allowed: rope, sink, window"),
    ({"name": "x", "pattern": [{"mixer": "swa", "window": 2.5}]}, "window is 2.5"),
    ({"name": "x", "pattern": [7]}, "pattern is 7"),
    ({"name": "x", "of": "full", "pattern": ["full"]}, "either pattern"),
    ({"name": "x"}, "either pattern"),
    ({"of": "full"}, "architecture: name"),
    ({"name": "x", "of": "full", "alpha": 1}, "alpha is 1; allowed: name, of, pattern, training, rope, sink"),
    ({"name": "x", "of": "swiattn", "threshold": 1.5}, "threshold is 1.5; allowed: a number from 0 to 1"),
    ({"name": "x", "of": "swiattn", "activation": "gelu"}, "activation is 'gelu'; allowed: softplus, relu"),
    ({"name": "x", "of": "full", "training": 3}, "training is 3; allowed: a mapping"),
    (7, "architecture is 7"),
]


@pytest.mark.parametrize(("entry", "message"), MISTAKES, ids=[str(index) for index in range(len(MISTAKES))])
def test_mistakes_in_architectures_get_one_clear_message(entry: object, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        resolve_architecture(entry)  # type: ignore[arg-type]


def test_mistakes_in_scales_get_one_clear_message() -> None:
    with pytest.raises(BadSetting, match=r"scale is 'S9'; allowed: S1, S2.*Did you mean"):
        resolve_scale("S9")
    base = {"name": "mine", "layers": 2, "d_model": 64, "heads": 4}
    with pytest.raises(BadSetting, match="heads is 5; allowed: a divisor of d_model = 64"):
        resolve_scale({**base, "heads": 5})
    with pytest.raises(BadSetting, match="num_kv_heads is 3; allowed: a divisor of num_heads = 4"):
        resolve_scale({**base, "kv_heads": 3})
    with pytest.raises(BadSetting, match="num_layers is 0"):
        resolve_scale({**base, "layers": 0})
    with pytest.raises(BadSetting, match="dmodel is 3; allowed: name, layers"):
        resolve_scale({**base, "dmodel": 3})
    with pytest.raises(BadSetting, match="a mapping with heads"):
        resolve_scale({"name": "mine", "layers": 2, "d_model": 64})
    odd = resolve_scale({**base, "head_dim": 15})
    with pytest.raises(BadSetting, match="head_dim is 15; allowed: an even number with rotary positions"):
        model_config(resolve_architecture("full"), odd, vocab_size=9, context=8)
    model_config(resolve_architecture({"name": "n", "of": "full", "rope": False}), odd, vocab_size=9, context=8)
    one = resolve_scale({**base, "kv_heads": 1})
    with pytest.raises(BadSetting, match="num_kv_heads is 1; allowed: an even number with head-wise mixing"):
        model_config(resolve_architecture("swa-8-headwise"), one, vocab_size=9, context=8)
