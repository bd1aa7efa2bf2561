"""Costs by work, not by seconds: sizes of tensors, keys that reach the kernel, bytes kept."""

from __future__ import annotations

import pytest
import torch

import tiny
from gridlaw.modules.catalog import resolve_architecture
from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.kernels.dispatch import forced
from gridlaw.modules.mixers.module_base import state_tensors
from gridlaw.modules.models.decoder import DecoderLM
from work import AttentionReads, LargestTensor

LONG = 8192
EFFICIENT = ["swa-1", "swa-128", "swa-2048", "lightning", "mamba2", "gdn", "gdn-conv"]


def one_layer(mixer: str, context: int = LONG) -> DecoderLM:
    return tiny.tiny_model(resolve_architecture({"name": "one", "pattern": [mixer]}), num_layers=1, context=context)


@pytest.mark.parametrize("mixer", EFFICIENT)
def test_training_makes_no_tensor_of_the_length_squared(mixer: str) -> None:
    model = one_layer(mixer)
    tokens = tiny.random_tokens(1, LONG)
    with LargestTensor() as largest:
        model.hidden(tokens).square().mean().backward()
    assert largest.num_elements < LONG**2, largest.operation


def test_the_counter_sees_a_square_of_scores() -> None:
    """The same check fails on an implementation that makes one."""
    q = torch.randn(1, 512, 2, 8, requires_grad=True)
    k = torch.randn(1, 512, 2, 8)
    with forced("attention", "reference"), LargestTensor() as largest:
        attention(q, k, k, window=16).sum().backward()
    assert largest.num_elements >= 512**2


@pytest.mark.parametrize("document", [False, True])
@pytest.mark.parametrize("window", [16, 128, 1024])
def test_window_attention_costs_length_times_window(window: int, document: bool) -> None:
    def pairs(length: int) -> int:
        q, k = torch.zeros(1, length, 2, 8), torch.zeros(1, length, 1, 8)
        ids = torch.zeros(1, length, dtype=torch.long) if document else None
        with AttentionReads(num_heads=2) as reads:
            attention(q, k, k, window=window, document_ids=ids)
        return reads.pairs()

    assert pairs(4096) <= 4096 * (window + max(64, min(window, 512)))
    assert pairs(12_288) - pairs(8192) == pairs(8192) - pairs(4096)


@torch.no_grad()
@pytest.mark.parametrize("mixer", ["swa-16", "lightning", "mamba2", "gdn", "gdn-conv"])
def test_decoding_costs_the_same_at_every_position(mixer: str) -> None:
    """Elements of all tensors an efficient layer makes for one token, and the bytes it keeps, stop growing."""
    model = one_layer(mixer, context=4096)
    layer = model.layers[0]

    def cost_and_bytes(length: int) -> tuple[int, int]:
        cache = model.init_cache(1, 4096)
        tokens = tiny.random_tokens(1, length + 1)
        model.extend(tokens[:, :length], cache)
        ctx = model.context_for(tokens[:, length:], position=length)
        x = model.embedding(tokens[:, length:])
        with AttentionReads(num_heads=tiny.tiny_scale().num_heads) as reads, _Elements() as made:
            layer.mixer.extend(x, cache.states[0], ctx)
        kept = sum(tensor.numel() * tensor.element_size() for tensor in state_tensors(cache.states))
        return made.total + reads.pairs(), kept

    assert cost_and_bytes(100) == cost_and_bytes(1000) == cost_and_bytes(3000)


class _Elements(LargestTensor):
    """The sum of the elements of all returned tensors instead of the largest."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.total += out.numel()
        return out
