"""Gated heads: gates learned by gradient, then binarised so that each head keeps only what it needs."""

from __future__ import annotations

import pytest
import torch

import tiny
from gridlaw.modules.catalog import resolve_architecture
from gridlaw.modules.mixers.duo.spec import DuoSpec
from gridlaw.modules.models.decoder import DecoderLM

BINARY = {"name": "duo-binary", "of": "duo-16", "binary": True}


def test_gates_start_at_full_attention() -> None:
    full = tiny.tiny_model(resolve_architecture("full"))
    duo = DecoderLM(tiny.tiny_model(resolve_architecture("duo-16")).config).initialise(0)
    duo.load_state_dict(full.state_dict(), strict=False)
    tokens = tiny.random_tokens(1, 50)
    with torch.no_grad():
        assert torch.allclose(duo(tokens), full(tokens), atol=1e-5)


def test_a_gate_beyond_one_is_clamped_and_still_learns() -> None:
    model = tiny.tiny_model(resolve_architecture("duo-16"))
    gate = model.layers[0].mixer.gate
    tokens = tiny.random_tokens(1, 50)
    with torch.no_grad():
        gate.fill_(1.0)
        at_one = model(tokens)
        gate.fill_(1.7)
        assert torch.equal(model(tokens), at_one)
    model(tokens).square().mean().backward()
    assert gate.grad is not None
    assert (gate.grad != 0).all()


@torch.no_grad()
def test_binary_gates_are_the_soft_form_at_zero_and_one() -> None:
    soft = tiny.tiny_model(resolve_architecture("duo-16"))
    binary = tiny.tiny_model(resolve_architecture(BINARY))
    for model, values in ((soft, [1.0, 0.0]), (binary, [0.8, 0.3])):
        for layer in model.layers:
            layer.mixer.gate.copy_(torch.tensor(values))
    tokens = tiny.random_tokens(2, 60)
    assert torch.allclose(binary(tokens), soft(tokens), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("values", [[0.8, 0.3], [0.9, 0.9], [0.1, 0.1]])
def test_binary_heads_keep_what_they_need(values: list[float]) -> None:
    model = tiny.tiny_model(resolve_architecture(BINARY))
    for layer in model.layers:
        layer.mixer.gate.copy_(torch.tensor(values))
    scale, num_full = model.config.scale, sum(value > 0.5 for value in values)
    per_token = 2 * scale.head_dim * 4  # key and value of one head
    for length in (100, 1000):
        streaming = (16 + DuoSpec().first_tokens) * (2 - num_full)
        expected = scale.num_layers * per_token * (num_full * length + streaming)
        assert model.init_cache(1, length).num_bytes() == expected
    tokens = tiny.random_tokens(1, 60)
    cache = model.init_cache(1, 60)
    pieces = [model.extend(piece, cache) for piece in tokens.split([2, 1, 1, 30, 1, 1, 20, 4], 1)]
    assert torch.allclose(torch.cat(pieces, 1), model(tokens), atol=1e-4)
