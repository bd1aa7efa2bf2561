"""Switch attention against its equations in plain autograd, and what decoding really reads."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tiny
from gridlaw.modules.catalog import resolve_architecture
from gridlaw.modules.kernels.attention import attention_reference
from gridlaw.modules.kernels.attention_rules import Visibility
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.mixers.switch.module import FORCED_GATE, SwitchAttention
from gridlaw.modules.mixers.switch.spec import SwitchSpec
from gridlaw.modules.models.checkpoint import transfer_weights
from gridlaw.modules.models.decoder import DecoderLM
from work import AttentionReads

WINDOW, LENGTH = 8, 40
SCALE = tiny.tiny_scale()


def mixer(**settings: object) -> SwitchAttention:
    spec = SwitchSpec(window=WINDOW, rope=False, sink=True, **settings)  # type: ignore[arg-type]
    module = spec.build(SCALE, layer_index=3, num_layers=4).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.4, generator=generator)
    return module


def equations(module: SwitchAttention, x: Tensor, nll: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output, gate and regulariser per token, written as in the paper."""
    spec = module.spec
    q = (x @ module.q_proj.weight.T).view(*x.shape[:2], SCALE.num_heads, SCALE.head_dim)
    k, v = (
        (x @ projection.weight.T).view(*x.shape[:2], SCALE.num_kv_heads, SCALE.head_dim)
        for projection in (module.k_proj, module.v_proj)
    )
    full, near = (
        attention_reference(q, k, v, SCALE.head_dim**-0.5, Visibility(window=window), module.sink).flatten(2)
        for window in (None, spec.window)
    )
    r = (x @ module.router.weight[0]) + module.router.bias
    p = torch.sigmoid(r)
    s = (p > spec.threshold).to(x.dtype)
    through = (s + p - p.detach())[..., None]
    out = (through * full + (1 - through) * near) @ module.o_proj.weight.T
    square = (full - near).square()
    mse = square.mean(-1) if spec.mse_reduction == "mean" else square.sum(-1)
    gamma = torch.full_like(r, spec.gamma_base)
    if spec.gamma == "adaptive":
        gamma = gamma / (spec.epsilon + (nll if spec.use_nll else 0.0) + spec.alpha * mse)
    activation = F.softplus(r) if spec.activation == "softplus" else torch.relu(r)
    return out, s, gamma.detach() * activation


VARIANTS: list[dict[str, object]] = [
    {},
    {"gamma": "constant"},  # V1
    {"use_nll": False},  # V2
    {"alpha": 10.0},  # V3
    {"alpha": 1.0},  # V4
    {"alpha": 0.0},  # V5
    {"epsilon": 0.2},  # V6
    {"epsilon": 0.01},  # V7
    {"activation": "relu"},
    {"mse_reduction": "sum"},
    {"threshold": 0.7},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_outputs_losses_and_gradients_are_the_equations(settings: dict[str, object]) -> None:
    module = mixer(**settings)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, LENGTH, SCALE.d_model, dtype=torch.float64, generator=generator, requires_grad=True)
    nll = torch.rand(2, LENGTH, dtype=torch.float64, generator=generator).requires_grad_()
    d_out = torch.randn(2, LENGTH, SCALE.d_model, dtype=torch.float64, generator=generator)
    ctx = ForwardContext()
    out = module(x, ctx)
    outputs = ctx.outputs[3]
    loss = module.auxiliary_loss(outputs, nll)
    assert loss is not None
    expected_out, expected_gate, expected_loss = equations(module, x, nll)
    assert torch.allclose(out, expected_out, atol=1e-12)
    assert torch.equal(outputs["gate"], expected_gate)
    assert 0 < outputs["gate"].mean() < 1, "both branches must be taken for this test to mean something"
    assert torch.allclose(loss, expected_loss, atol=1e-14)
    wanted = [x, *module.parameters()]
    ours = torch.autograd.grad((out * d_out).sum() + 50 * loss.sum(), wanted)
    theirs = torch.autograd.grad((expected_out * d_out).sum() + 50 * expected_loss.sum(), wanted)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, atol=1e-10)


def test_the_weight_of_the_regulariser_gets_no_gradient() -> None:
    module = mixer()
    x = torch.randn(1, LENGTH, SCALE.d_model, dtype=torch.float64, requires_grad=True)
    nll = torch.rand(1, LENGTH, dtype=torch.float64, requires_grad=True)
    ctx = ForwardContext()
    module(x, ctx)
    assert not ctx.outputs[3]["branch_mse"].requires_grad
    assert not ctx.outputs[3]["gate"].requires_grad
    loss = module.auxiliary_loss(ctx.outputs[3], nll)
    assert loss is not None
    gradients = torch.autograd.grad(loss.sum(), [nll, *module.parameters()], allow_unused=True)
    reached = [name for (name, _), g in zip(module.named_parameters(), gradients[1:], strict=True) if g is not None]
    assert gradients[0] is None
    assert reached == ["router.weight", "router.bias"]


def test_model_averages_over_layers_and_tokens() -> None:
    model = tiny.tiny_model(resolve_architecture({"name": "m", "pattern": ["switch-8", "full"]}), num_layers=4)
    tokens = tiny.random_tokens(2, 20)
    ctx = model.context_for(tokens)
    model.hidden(tokens, ctx=ctx)
    nll = torch.rand(2, 20)
    assert sorted(ctx.outputs) == [0, 2]
    each = [model.layers[i].mixer.auxiliary_loss(ctx.outputs[i], nll).mean() for i in (0, 2)]
    assert torch.allclose(model.auxiliary_loss(ctx, nll), (each[0] + each[1]) / 2)
    full = tiny.tiny_model(resolve_architecture("full"))
    ctx = full.context_for(tokens)
    full.hidden(tokens, ctx=ctx)
    assert full.auxiliary_loss(ctx, nll) is None


def test_router_that_starts_full_gives_the_full_model() -> None:
    full = tiny.tiny_model(resolve_architecture("full"))
    architecture = resolve_architecture({"name": "s", "of": "swiattn-8", "router_init": "full"})
    config = dataclasses.replace(full.config, layers=tuple(s.to_dict() for s in architecture.layers(SCALE)))
    switched = DecoderLM(config).initialise(0)
    report = transfer_weights(switched, full.state_dict())
    assert report.new == tuple(f"layers.{i}.mixer.router.{name}" for i in range(2) for name in ("weight", "bias"))
    assert report.unused == ()
    tokens = tiny.random_tokens(2, 50)
    with torch.no_grad():
        assert torch.allclose(switched(tokens), full(tokens), atol=1e-5)


@torch.no_grad()
def test_decoding_reads_only_what_was_chosen() -> None:
    """Keys that reach the kernel = sum over tokens, layers and rows of s·t + (1 − s)·min(t, w), exactly."""
    model = tiny.tiny_model(resolve_architecture(f"swiattn-{WINDOW}"), num_layers=3)
    tokens = tiny.random_tokens(3, LENGTH)
    cache, expected, chosen = model.init_cache(3, LENGTH), 0, []
    with AttentionReads(num_heads=SCALE.num_heads) as reads:
        for t in range(LENGTH):
            ctx = model.context_for(tokens[:, t : t + 1], position=t)
            model.extend(tokens[:, t : t + 1], cache, ctx=ctx)
            for output in ctx.outputs.values():
                gate = output["gate"][:, 0]
                chosen += gate.tolist()
                expected += int((gate * (t + 1) + (1 - gate) * min(t + 1, WINDOW)).sum())
    assert 0.1 < sum(chosen) / len(chosen) < 0.9
    assert reads.pairs() == expected


@torch.no_grad()
@pytest.mark.parametrize("ratio", [0.0, 0.13, 0.5, 1.0])
def test_prefill_computes_full_attention_for_chosen_queries_only(ratio: float) -> None:
    model = tiny.tiny_model(resolve_architecture(f"swiattn-{WINDOW}"), num_layers=2, context=300)
    tokens = tiny.random_tokens(2, 300)
    gate = torch.rand(2, 300, generator=torch.Generator().manual_seed(0)) < ratio
    ctx = model.context_for(tokens, options={FORCED_GATE: gate})
    cache = model.init_cache(2, 300)
    with AttentionReads(num_heads=SCALE.num_heads) as reads:
        logits = model.extend(tokens, cache, ctx=ctx)
    full_queries = sum(queries for _, queries, keys in reads.calls if keys > 2 * 64 + WINDOW)
    assert sum(rows * queries for rows, queries, _ in reads.calls) == 2 * gate.numel()  # each query once a layer
    assert full_queries <= 2 * int(gate.sum())
    trained = model.context_for(tokens, options={FORCED_GATE: gate})
    assert torch.allclose(logits, model.head(model.hidden(tokens, ctx=trained)), atol=1e-4)
