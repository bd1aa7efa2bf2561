"""bf16 of whole models against fp64, beside a plain bf16 implementation; on a GPU, training against the CPU's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tiny
from gridlaw.modules.kernels.dispatch import forced
from gridlaw.modules.mixers.switch.module import FORCED_GATE
from gridlaw.modules.models import decoder, norm
from gridlaw.modules.models.decoder import DecoderLM

SOFTMAX = ["full", "swa-128", "swa-128-headwise", "swa-128-nope", "swiattn", "sh-3to1", "duo"]
MIXERS = ["full", "swa-128", "swa-128-headwise", "lightning", "mamba2", "gdn", "gdn-conv", "swiattn", "duo"]


def logits(model: DecoderLM, tokens: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Switch's choice is given, so that a router near its threshold does not decide this comparison."""
    ctx = model.context_for(tokens, options={FORCED_GATE: gate})
    return model.head(model.hidden(tokens, ctx=ctx))


@torch.no_grad()
@pytest.mark.parametrize("name", SOFTMAX)
def test_bf16_errs_at_most_twice_as_much_as_plain_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain: scores as a matrix, torch's own norm, SiLU and product, all in bf16. Recurrences are held elsewhere."""
    model = tiny.tiny_model(tiny.tiny_architecture(name))
    tokens = tiny.random_tokens(4, 81)
    gate = torch.rand(4, 81, generator=torch.Generator().manual_seed(0)) < 0.5
    low = copy.deepcopy(model).bfloat16()
    exact = logits(copy.deepcopy(low).double(), tokens, gate)  # the same weights, rounded once
    ours = (logits(low, tokens, gate).double() - exact).norm()

    def plain_norm(self: norm.RMSNorm, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)

    def plain_ffn(self: decoder.SwiGLU, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    monkeypatch.setattr(norm.RMSNorm, "forward", plain_norm)
    monkeypatch.setattr(decoder.SwiGLU, "forward", plain_ffn)
    with forced("attention", "reference"):
        plain = (logits(low, tokens, gate).double() - exact).norm()
    assert 0 < ours <= 2 * plain


@pytest.mark.parametrize("name", MIXERS)
def test_autocast_trains_as_full_precision(name: str) -> None:
    model = tiny.tiny_model(tiny.tiny_architecture(name))
    tokens = tiny.random_tokens(2, 81)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(tokens)
        loss = nn.functional.cross_entropy(low.float().flatten(0, 1), tokens.flatten())
    loss.backward()
    expected = model(tokens)
    assert low.dtype == torch.bfloat16
    assert (low - expected).norm() < 0.1 * expected.norm()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("name", MIXERS)
def test_twenty_bf16_steps_on_a_gpu_follow_the_cpu(name: str) -> None:
    start = tiny.tiny_model(tiny.tiny_architecture(name)).config
    tokens = tiny.random_tokens(8, 129)

    def losses(device: str) -> list[float]:
        model = DecoderLM(start).initialise(0).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        seen = []
        for _ in range(20):
            batch = tokens.to(device)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                out = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(out.float().flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    for gpu, cpu in zip(losses("cuda"), losses("cpu"), strict=True):
        assert abs(gpu - cpu) < 0.02 * cpu
