"""Costs by formula against the catalog's own totals and against the real caches."""

import copy
from collections.abc import Callable

import pytest
import torch

from gridlaw.modules.catalog import flops_per_token, model_config, resolve_architecture, resolve_scale
from gridlaw.modules.kernels.reads import record_reads
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import efficiency
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.platform.errors import BadInput
from work import AttentionReads

MakeRun = Callable[..., EvaluationRun]


def config_of(architecture: str, context: int = 512) -> ModelConfig:
    return model_config(resolve_architecture(architecture), resolve_scale("n1"), vocab_size=257, context=context)


@pytest.mark.parametrize("architecture", ["full", "swa-128", "gdn", "lightning", "mamba2"])
def test_positions_add_up_to_the_catalog(architecture: str) -> None:
    config = config_of(architecture)
    total = sum(efficiency.step_flops(config, position) for position in range(1, 513))
    assert total / 512 == pytest.approx(flops_per_token(config, 512, training=False), rel=1e-12)


def test_keys_read() -> None:
    config = config_of("swa-128")
    windows = [efficiency.keys_read(config, spec, 300) for spec in config.mixers()]
    assert sorted(windows) == sorted(128.0 if spec.name == "swa" else 300.0 for spec in config.mixers())
    assert {128.0, 300.0} == set(windows)
    assert [efficiency.keys_read(config, spec, 100) for spec in config.mixers()] == [100.0, 100.0]
    gdn = config_of("gdn")
    assert {efficiency.keys_read(gdn, spec, 300) for spec in gdn.mixers()} == {0.0, 300.0}


@pytest.mark.parametrize("architecture", ["full", "swa-128", "gdn"])
def test_measured_cache_is_what_the_formula_says(
    make_run: MakeRun, models: Callable[[str], DecoderLM], architecture: str
) -> None:
    entry = {"efficiency": {"length": 200, "new_tokens": 4, "repeats": 1}}
    result = efficiency.compute(make_run(entry, architecture=architecture))
    metrics, details = result["metrics"], result["details"]
    assert metrics["state_bytes"] == sum(details["state_bytes_by_layer"])
    # The real cache has room for the new tokens, too.
    specs, scale = models(architecture).config.mixers(), models(architecture).config.scale
    room = sum(spec.state_bytes(scale, 204, bytes_per_element=4) for spec in specs)
    assert metrics["cache_bytes"] == pytest.approx(room, rel=0.02)
    assert metrics["prefill_tokens_per_second"] > metrics["decode_tokens_per_second"] > 0
    assert details["positions"][-1] == 200
    assert len(details["flops_by_position"]) == len(details["positions"])
    if architecture == "full":
        assert metrics["decode_keys_read"] == 200 * len(details["keys_read_by_layer"])


def test_length_beyond_the_model_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(BadInput, match=r"evaluate\.efficiency\.length is 257; allowed: at most 256"):
        efficiency.compute(make_run({"efficiency": {"length": 257}}))


@pytest.mark.parametrize("architecture", ["full", "swa-128", "swa-128-headwise", "gdn"])
def test_counting_at_the_kernel_agrees_with_the_formulas(make_run: MakeRun, architecture: str) -> None:
    """Where nothing is chosen both are known: the mean over the decoded positions, layer by layer."""
    run = make_run({"efficiency": {"length": 200, "new_tokens": 5}}, architecture=architecture)
    config = ModelConfig.from_dict(run.model_config)
    expected = [
        sum(efficiency.keys_read(config, spec, position) for position in range(201, 206)) / 5
        for spec in config.mixers()
    ]
    assert efficiency._count_keys_read(run, 200) == pytest.approx(expected)


@pytest.mark.parametrize("full", [True, False])
def test_a_switchs_reads_are_what_it_chose(make_run: MakeRun, models: Callable[[str], DecoderLM], full: bool) -> None:
    """A router that always, or never, asks for full attention: all keys, or the window's, and not the formula's."""
    model = copy.deepcopy(models("swiattn-64"))
    with torch.no_grad():
        for block in model.blocks():
            block.mixer.router.weight.zero_()
            block.mixer.router.bias.fill_(1.0 if full else -1.0)
    entry = {"efficiency": {"length": 200, "new_tokens": 5, "repeats": 1}}
    result = efficiency.compute(make_run(entry, architecture="swiattn-64", load=lambda: model))
    each = 203.0 if full else 64.0  # positions 201 to 205, or the window
    layers = len(model.blocks())
    assert result["details"]["decode_keys_read_by_layer"] == [each] * layers
    assert result["metrics"]["decode_keys_read"] == each * layers
    assert result["details"]["decode_keys_read_from"] == "shapes at the kernel"


@pytest.mark.parametrize("architecture", ["full", "swa-128", "swiattn-64"])
def test_what_is_noted_is_what_torchs_kernel_is_given(models: Callable[[str], DecoderLM], architecture: str) -> None:
    """Counted a second time below all of our code, row by row of a batch whose rows choose for themselves."""
    model = models(architecture)
    tokens = torch.randint(0, 256, (6, 200), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        cache = model.init_cache(6, 208)
        model.extend(tokens, cache)
        with record_reads() as noted, AttentionReads(num_heads=model.config.scale.num_heads) as given:
            for _ in range(4):
                model.extend(tokens[:, :1], cache)
    assert sum(each.head_keys for each in noted) == model.config.scale.num_heads * given.pairs() > 0
