"""The CPU attention kernel against the definition, against fla, and by the size of what it makes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from fla.ops.attn.parallel import parallel_attn
from torch import Tensor

import peers  # noqa: F401  (before fla)
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.kernels.attention import attention, attention_reference
from gridlaw.modules.kernels.attention_rules import Visibility, position_in_document, visible_mask
from gridlaw.modules.kernels.dispatch import forced

CASES: list[dict[str, Any]] = [
    {"T": 37},
    {"T": 1, "past": 50},
    {"T": 33, "past": 50},
    {"T": 600, "documents": True, "sink": False},
    {"T": 37, "window": 1},
    {"T": 37, "window": 5, "heads": (4, 1)},
    {"T": 300, "window": 64, "heads": (6, 2)},
    {"T": 300, "window": 70, "documents": True},
    {"T": 1100, "window": 600, "sink": False},
    {"T": 130, "past": 50, "window": 20},
    {"T": 300, "window": 64, "first": 4},
    {"T": 130, "past": 50, "window": 20, "first": 3},
    {"T": 300, "window": 7, "first": 3, "documents": True},
    {"T": 90, "past": 210, "positions": True},
    {"T": 90, "past": 210, "positions": True, "window": 30},
]


def make(
    dtype: torch.dtype = torch.float64, *, T: int, past: int = 0, heads: tuple[int, int] = (4, 2), sink: bool = True,
    documents: bool = False, window: int | None = None, first: int = 0, positions: bool = False, head_dim: int = 16,
    batch_size: int = 2,
) -> tuple[list[Tensor], dict[str, Any], Tensor]:  # fmt: skip
    """q, k, v (and sink) with gradients, the keywords of the call, and a gradient of the output."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    inputs = [
        draw(batch_size, T, heads[0], head_dim),
        draw(batch_size, T + past, heads[1], head_dim),
        draw(batch_size, T + past, heads[1], head_dim),
    ]
    if sink:
        inputs.append(draw(heads[0]))
    options: dict[str, Any] = {"window": window, "first_tokens": first}
    if documents:
        options["document_ids"] = (torch.rand(2, T + past, generator=generator) < 0.03).cumsum(1)
    if positions:
        options["query_positions"] = torch.randperm(T + past, generator=generator)[:T].sort().values
    return [x.requires_grad_() for x in inputs], options, draw(batch_size, T, heads[0], head_dim)


def outputs_and_gradients(inputs: list[Tensor], options: dict[str, Any], d_out: Tensor) -> list[Tensor]:
    out = attention(*inputs[:3], sink=inputs[3] if len(inputs) > 3 else None, **options)
    return [out, *torch.autograd.grad(out, inputs, d_out)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_is_the_definition_forward_and_backward(case: dict[str, Any]) -> None:
    inputs, options, d_out = make(**case)
    fast = outputs_and_gradients(inputs, options, d_out)
    with forced("attention", "reference"):
        slow = outputs_and_gradients(inputs, options, d_out)
    assert len(fast) == len(slow) == len(inputs) + 1
    for ours, theirs in zip(fast, slow, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-11)


def test_definition_by_hand() -> None:
    """Three tokens, one head, window 2, sink 0.5: sums written out."""
    q, k, v = (torch.randn(1, 3, 1, 2, dtype=torch.float64) for _ in range(3))
    sink = torch.tensor([0.5], dtype=torch.float64)
    out = attention_reference(q, k, v, 0.7, Visibility(window=2), sink)
    for t, keys in enumerate(([0], [0, 1], [1, 2])):
        weights = torch.stack([(0.7 * (q[0, t, 0] @ k[0, s, 0])).exp() for s in keys])
        expected = sum(w * v[0, s, 0] for w, s in zip(weights, keys, strict=True)) / (weights.sum() + sink.exp())
        assert torch.allclose(out[0, t, 0], expected)


@pytest.mark.parametrize("head_dim", [4, 12, 46])
def test_head_dims_that_are_no_multiple_of_8_or_below_16(head_dim: int) -> None:
    """fla #22 flash-attention #1347 mamba #345."""
    test_kernel_is_the_definition_forward_and_backward({"T": 37, "window": 9, "head_dim": head_dim})


def test_window_counts_the_current_token() -> None:
    """transformers #39408 flash-attention #1133: a window of w tokens is w tokens, the current one included."""
    places = torch.arange(6)
    mask = visible_mask(Visibility(window=3), places, places)
    assert mask.sum(1).tolist() == [1, 2, 3, 3, 3, 3]
    assert mask[5].tolist() == [False, False, False, True, True, True]


def test_position_in_document() -> None:
    ids = torch.tensor([[7, 7, 3, 3, 3, 7], [1, 2, 2, 2, 2, 2]])
    assert position_in_document(ids).tolist() == [[0, 1, 0, 1, 2, 0], [0, 0, 1, 2, 3, 4]]


FLA_CASES = [*itertools.product((70,), (None, 16, 50), (False, True)), (128, 16, True)]


@pytest.mark.parametrize(("num_tokens", "window", "has_sink"), FLA_CASES)
def test_parity_with_fla(num_tokens: int, window: int | None, has_sink: bool) -> None:
    """fla's Triton kernel in the interpreter, grouped queries, window and sink, gradients included."""
    inputs, options, d_out = make(torch.float32, T=num_tokens, heads=(4, 2), sink=has_sink, window=window, batch_size=1)
    ours = outputs_and_gradients(inputs, options, d_out)
    out = parallel_attn(*inputs[:3], scale=0.25, window_size=window, sink_bias=inputs[3] if has_sink else None)
    theirs = [out, *torch.autograd.grad(out, inputs, d_out)]
    for mine, peer in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, peer, atol=5e-5)


def test_parity_with_fla_runs_every_case() -> None:
    assert len(FLA_CASES) == 7


@pytest.mark.parametrize("window", [None, 32])
def test_bfloat16_is_as_exact_as_a_plain_implementation(window: int | None) -> None:
    inputs, options, d_out = make(T=256, window=window, head_dim=32)
    exact = outputs_and_gradients(inputs, options, d_out)
    low = [x.detach().bfloat16().requires_grad_() for x in inputs]
    ours = outputs_and_gradients(low, options, d_out.bfloat16())
    with forced("attention", "reference"):
        plain = outputs_and_gradients(low, options, d_out.bfloat16())
    for mine, theirs, truth in zip(ours, plain, exact, strict=True):
        assert (mine.double() - truth).norm() <= 2 * (theirs.double() - truth).norm()


def test_mismatched_heads_and_keys_are_refused() -> None:
    q, k = torch.zeros(1, 4, 3, 8), torch.zeros(1, 4, 2, 8)
    with pytest.raises(BadSetting, match="num_heads is 3; allowed: a multiple of the 2"):
        attention(q, k, k)
    with pytest.raises(BadSetting, match="number of keys is 3; allowed: at least the 4"):
        attention(q, k[:, :3, :1], k[:, :3, :1])
    with pytest.raises(BadSetting, match="shapes of q, k, v"):
        attention(q[:, :, :2], k[:0], k[:0])
