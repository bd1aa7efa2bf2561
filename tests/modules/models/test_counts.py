"""The torch-free formulas against the built models: parameters on the meta device, FLOPs over the decode form."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tiny
from gridlaw.modules.catalog import (
    architecture_names,
    describe,
    flops_per_token,
    model_config,
    resolve_architecture,
    scale_names,
)
from gridlaw.modules.kernels import reference_recurrent
from gridlaw.modules.kernels.dispatch import forced
from gridlaw.modules.mixers.gdn import module as gdn_module
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.models.norm import RMSNorm
from gridlaw.modules.scale import SCALES


@pytest.mark.parametrize("scale", scale_names())
@pytest.mark.parametrize("name", architecture_names())
def test_parameters_of_the_built_model_are_the_formulas(name: str, scale: str) -> None:
    architecture = resolve_architecture(name)
    described = describe(architecture, SCALES[scale], vocab_size=257, context=512)
    config = model_config(architecture, SCALES[scale], vocab_size=257, context=512)
    with torch.device("meta"):
        model = DecoderLM(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == described.num_params_total
    for layer, expected in zip(model.layers, described.layers, strict=True):
        parameters = {n: p.numel() for n, p in layer.named_parameters() if not n.endswith("sink")}
        norms = {f"{n}.weight" for n, m in layer.named_children() if isinstance(m, RMSNorm)}
        assert sum(count for n, count in parameters.items() if n not in norms) == expected.num_params
    outside = {"embedding.weight", "head.weight"}
    inside = [p.numel() for n, p in model.named_parameters() if n not in outside and not n.endswith("sink")]
    assert sum(inside) == described.num_params_non_embedding


@torch.no_grad()
@pytest.mark.parametrize("name", list(tiny.ARCHITECTURES))
def test_flops_of_the_decode_form_are_the_formulas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matmuls only, summed over t and divided by T; Switch at the ratio it really chose."""
    length = 23
    model = tiny.tiny_model(tiny.tiny_architecture(name), context=length)
    tokens = tiny.random_tokens(1, length)
    cache, ctx_outputs = model.init_cache(1, length), []
    monkeypatch.setattr(gdn_module, "gated_delta_step", _counted_delta_step)
    monkeypatch.setattr(gdn_module, "short_conv", _counted_conv)
    with contextlib.ExitStack() as stack:
        stack.enter_context(forced("attention", "reference"))
        counter = stack.enter_context(FlopCounterMode(display=False))
        for t in range(length):
            ctx = model.context_for(tokens[:, t : t + 1], position=t)
            model.extend(tokens[:, t : t + 1], cache, ctx=ctx)
            ctx_outputs.append(ctx.outputs)
    config = model.config
    expected = flops_per_token(config, length, training=False, full_ratio=1.0) * length
    for t, outputs in enumerate(ctx_outputs):  # what the routers saved: a token at t sees min(t, w) keys, not t
        for index, output in outputs.items():
            if float(output["gate"]) == 0.0:
                window = config.layers[index]["window"]
                saved = (t + 1) - min(t + 1, window)
                expected -= 4 * config.num_heads * config.head_dim * saved
    if any(layer.get("binary") for layer in config.layers):  # the formula's ratio 1 counts every head as full
        expected = _with_binary_gates(model, length)
    assert counter.get_total_flops() == round(expected)


def _counted_delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The reference's step, whose every product a FLOP counter sees."""
    return reference_recurrent.gated_delta_step(q * q.shape[-1] ** -0.5, k, v, g, beta, state)


def _counted_conv(x_BTC: Tensor, weight_CJ: Tensor, *, before: Tensor) -> Tensor:
    """One position of the depthwise convolution as a matrix product per channel."""
    assert x_BTC.shape[1] == 1
    seen_BCJ = torch.cat([before, x_BTC], 1).transpose(1, 2)
    return torch.bmm(weight_CJ[:, None], seen_BCJ.permute(1, 2, 0)).permute(2, 1, 0)


def _with_binary_gates(model: DecoderLM, length: int) -> float:
    shares = [float((layer.mixer.gate > 0.5).float().mean()) for layer in model.layers]
    assert len(set(shares)) == 1
    return flops_per_token(model.config, length, training=False, full_ratio=shares[0]) * length
