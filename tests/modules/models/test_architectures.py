"""What every architecture must do, one test per behaviour over all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import tiny
from gridlaw.modules.catalog import architecture_names, resolve_architecture
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.module_base import state_tensors
from gridlaw.modules.models.checkpoint import load_model, save_model
from gridlaw.modules.models.decoder import DecoderLM

LENGTH = 81  # crosses windows of 16 and chunks of 32 and 64, and is a multiple of none
SHARED = ["full", "swa-128", "lightning", "mamba2", "gdn", "gdn-conv", "swa-128-headwise", "swiattn", "duo"]


@pytest.fixture(params=list(tiny.ARCHITECTURES))
def model(request: pytest.FixtureRequest) -> DecoderLM:
    return tiny.tiny_model(tiny.tiny_architecture(request.param))


def decode(model: DecoderLM, tokens: Tensor, sizes: list[int], max_length: int | None = None) -> Tensor:
    """Logits of all tokens, given to the recurrent form in pieces of these sizes."""
    cache = model.init_cache(tokens.shape[0], max_length or tokens.shape[1])
    return torch.cat([model.extend(piece, cache) for piece in tokens.split(sizes, 1)], 1)


def test_table_covers_every_registered_architecture() -> None:
    assert set(architecture_names()) <= set(tiny.ARCHITECTURES)
    assert len(tiny.ARCHITECTURES) >= 16


@torch.no_grad()
def test_shapes_at_odd_lengths(model: DecoderLM) -> None:
    for num_tokens in (1, 2, 17, 37, 67):
        logits = model(tiny.random_tokens(3, num_tokens))
        assert logits.shape == (3, num_tokens, tiny.VOCAB_SIZE)
        assert torch.isfinite(logits).all()


def test_hidden_states_of_the_last_tokens_alone_are_the_same(model: DecoderLM) -> None:
    tokens = tiny.random_tokens(3, 41)
    with torch.no_grad():
        torch.testing.assert_close(model.hidden(tokens, last=5), model.hidden(tokens)[:, -5:])


def test_no_token_sees_a_later_one(model: DecoderLM) -> None:
    tokens = tiny.random_tokens(1, LENGTH)
    position = 40
    changed = tokens.clone()
    changed[:, position + 1 :] = (changed[:, position + 1 :] + 7) % tiny.VOCAB_SIZE
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, : position + 1], after[:, : position + 1], atol=1e-5)
    assert not torch.allclose(before[:, position + 1], after[:, position + 1], atol=1e-3)


def test_no_gradient_reaches_a_later_token(model: DecoderLM) -> None:
    position = 40
    embedded: list[Tensor] = []
    handle = model.embedding.register_forward_hook(lambda _module, _args, out: embedded.append(out))
    logits = model(tiny.random_tokens(2, LENGTH))
    handle.remove()
    (gradient,) = torch.autograd.grad(logits[:, position].square().sum(), embedded[0])
    assert torch.equal(gradient[:, position + 1 :], torch.zeros_like(gradient[:, position + 1 :]))
    assert (gradient[:, : position + 1].abs().amax(-1) > 0).any(1).all()
    assert gradient[:, position].abs().max() > 0


@torch.no_grad()
def test_parallel_form_equals_token_by_token(model: DecoderLM) -> None:
    tokens = tiny.random_tokens(2, LENGTH)
    assert torch.allclose(decode(model, tokens, [1] * LENGTH), model(tokens), atol=1e-4)


@torch.no_grad()
def test_prefill_and_decode_equal_one_forward_at_every_border(model: DecoderLM) -> None:
    tokens = tiny.random_tokens(2, LENGTH)
    expected = model(tokens)
    for prefill in (1, 8, 9, 10, 15, 16, 17, 19, 20, 31, 32, 33, 63, 64, 65):
        got = decode(model, tokens[:, : prefill + 2], [prefill, 1, 1], max_length=LENGTH)
        assert torch.allclose(got, expected[:, : prefill + 2], atol=1e-4), f"prefill of {prefill}"


@torch.no_grad()
def test_prefill_in_pieces_equals_one_forward(model: DecoderLM) -> None:
    tokens = tiny.random_tokens(2, LENGTH)
    expected = model(tokens)
    for sizes in ([23, 23, 23, 12], [1, 2, 40, 38], [64, 17]):
        assert torch.allclose(decode(model, tokens, sizes), expected, atol=1e-4), str(sizes)


@torch.no_grad()
def test_batch_rows_are_independent(model: DecoderLM) -> None:
    tokens = tiny.random_tokens(3, LENGTH)
    together = model(tokens)
    decoded = decode(model, tokens, [33, *[1] * (LENGTH - 33)])
    for row in range(3):
        assert torch.allclose(model(tokens[row : row + 1])[0], together[row], atol=1e-5)
        assert torch.allclose(decoded[row], together[row], atol=1e-4)


def test_packed_documents_equal_documents_alone(model: DecoderLM) -> None:
    tokens = tiny.random_tokens(2, LENGTH)
    lengths = [[13, 31, 1, 36], [40, 41]]
    ids = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])
    packed = model(tokens, document_ids=ids)
    loss = packed.square().sum()
    packed_gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    alone = torch.cat(
        [torch.cat([model(piece[None])[0] for piece in tokens[row].split(lengths[row])])[None] for row in range(2)]
    )
    assert torch.allclose(packed, alone, atol=1e-4)
    gradients = torch.autograd.grad(alone.square().sum(), list(model.parameters()), allow_unused=True)
    for (name, _), ours, theirs in zip(model.named_parameters(), packed_gradients, gradients, strict=True):
        if theirs is None:
            assert ours is None, name
        else:
            assert ours is not None, name
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max() + 1)), name


def test_every_parameter_gets_a_gradient(model: DecoderLM) -> None:
    logits = model(tiny.random_tokens(2, LENGTH))
    logits.square().mean().backward()
    binary = any(spec.name == "duo" and spec.to_dict()["binary"] for spec in model.config.mixers())
    for name, parameter in model.named_parameters():
        if binary and name.endswith("mixer.gate"):
            continue  # binarised gates are not learned any more
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_cache_holds_the_bytes_the_formula_says(model: DecoderLM) -> None:
    specs, scale = model.config.mixers(), model.config.scale
    if any(spec.name == "duo" and spec.to_dict()["binary"] for spec in specs):
        return  # what binary gates keep depends on their values; test_duo.py counts it
    for context in (8, 100):
        cache = model.init_cache(2, context)
        model.extend(tiny.random_tokens(2, 5), cache)
        expected = sum(spec.state_bytes(scale, context, bytes_per_element=4) for spec in specs)
        assert cache.num_bytes() == 2 * expected


@torch.no_grad()
def test_state_of_efficient_layers_does_not_grow(model: DecoderLM) -> None:
    for spec, layer in zip(model.config.mixers(), model.layers, strict=True):
        if spec.name in ("swa", "lightning", "mamba2", "gdn"):
            sizes = {
                sum(t.numel() for t in state_tensors(layer.mixer.init_state(1, n, device="cpu", dtype=torch.float32)))
                for n in (64, 1000, 100_000)
            }
            assert len(sizes) == 1, spec


def test_saved_and_loaded_model_is_the_same(model: DecoderLM, tmp_path: Path) -> None:
    tokens = tiny.random_tokens(1, 20)
    with torch.no_grad():
        expected = model(tokens)
        loaded = load_model(save_model(model, tmp_path / "model"))
        assert torch.equal(loaded(tokens), expected)
    assert loaded.config == model.config


def test_initial_values_depend_on_seed_and_name_only(model: DecoderLM) -> None:
    torch.manual_seed(1)
    first = DecoderLM(model.config).initialise(3).state_dict()
    torch.manual_seed(2)
    again = DecoderLM(model.config).initialise(3).state_dict()
    other = DecoderLM(model.config).initialise(4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name, value in first.items() if value.dim() == 2 and value.abs().max() > 0]
    assert drawn
    assert all(not torch.equal(first[name], other[name]) for name in drawn)
    deeper = tiny.tiny_model(resolve_architecture("full"), num_layers=3).config
    full = DecoderLM(deeper).initialise(3).state_dict()
    assert torch.equal(full["layers.1.ffn_norm.weight"], first["layers.1.ffn_norm.weight"])
    assert torch.equal(full["embedding.weight"], first["embedding.weight"])


@torch.no_grad()
def test_finite_with_weights_a_hundred_times_too_large(model: DecoderLM) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.mul_(100.0)
    logits = model(tiny.random_tokens(1, LENGTH))
    assert torch.isfinite(logits).all()
    assert torch.allclose(decode(model, tiny.random_tokens(1, LENGTH), [17, 64])[:, :1], logits[:, :1], rtol=1e-2)


@pytest.mark.parametrize("name", ["lightning", "mamba2", "gdn", "gdn-conv"])
@pytest.mark.parametrize("time_step", [-30.0, 30.0])  # softplus of it: decay near 1, and far from it
@pytest.mark.parametrize("rate", [-10.0, 5.0])  # log of the decay's rate
@pytest.mark.parametrize("strength", [-30.0, 0.0, 30.0])  # factor on the logit of beta
def test_finite_with_extreme_gates(name: str, time_step: float, rate: float, strength: float) -> None:
    model = tiny.tiny_model(tiny.tiny_architecture(name))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("A_log"):
                parameter.fill_(rate)
            elif parameter_name.endswith("dt_bias"):
                parameter.fill_(time_step)
            elif "b_proj" in parameter_name:
                parameter.mul_(strength)
    logits = model(tiny.random_tokens(1, LENGTH))
    logits.square().mean().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@torch.no_grad()
def test_a_cache_beyond_its_length_is_refused(model: DecoderLM) -> None:
    cache = model.init_cache(1, 4)
    model.extend(tiny.random_tokens(1, 3), cache)
    with pytest.raises(BadSetting, match="cache length is 5; allowed: at most 4 tokens"):
        model.extend(tiny.random_tokens(1, 2), cache)
    with pytest.raises(BadSetting, match="cache: batch size is 2"):
        model.extend(tiny.random_tokens(2, 1), cache)


@pytest.mark.parametrize("name", SHARED)
def test_greedy_generation_is_argmax_of_the_full_forward(name: str) -> None:
    model = tiny.tiny_model(tiny.tiny_architecture(name))
    tokens = tiny.random_tokens(2, 9)
    new = model.generate_greedy(tokens, 12)
    with torch.no_grad():
        expected = model(torch.cat([tokens, new], 1))[:, 8:-1].argmax(-1)
    assert torch.equal(new, expected)
    stop = int(new[0, 3])
    assert model.generate_greedy(tokens[:1], 12, stop_token=stop).shape[1] <= 4


@torch.no_grad()
@pytest.mark.parametrize(
    "mixer", ["full", "swa-128", "headwise-128", "lightning", "mamba2", "gdn", "gdn-conv", "switch-128", "duo-128"]
)
def test_finite_at_eight_thousand_tokens(mixer: str) -> None:
    architecture = resolve_architecture({"name": "one", "pattern": [mixer]})
    model = tiny.tiny_model(architecture, num_layers=1, context=8192)
    assert torch.isfinite(model.hidden(tiny.random_tokens(1, 8192))).all()
