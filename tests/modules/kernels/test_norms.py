"""Norms of head vectors against torch's, with their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gridlaw.modules.kernels.norms import l2_norm, rms_norm


def compare(ours: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(ours, wanted)
    d = torch.randn_like(ours)
    for a, b in zip(*(torch.autograd.grad(y, leaves, d) for y in (ours, wanted)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(2, 3, 4, 12), (5, 46), (1, 1, 1)])
def test_rms_norm_is_torch_s(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(shape[-1], dtype=torch.float64, requires_grad=True)
    compare(rms_norm(x, weight, eps=1e-3), F.rms_norm(x, shape[-1:], weight, 1e-3), [x, weight])
    compare(rms_norm(x, eps=1e-3), F.rms_norm(x, shape[-1:], None, 1e-3), [x])


def test_l2_norm_is_its_formula() -> None:
    x = torch.randn(2, 3, 4, 12, dtype=torch.float64, requires_grad=True)
    compare(l2_norm(x), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt(), [x])


def test_a_zero_vector_stays_zero_with_a_finite_gradient() -> None:
    x = torch.zeros(2, 8, requires_grad=True)
    for norm in (l2_norm, rms_norm):
        y = norm(x)
        assert not y.any()
        assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def test_bf16_is_normed_in_fp32_and_comes_back_as_bf16() -> None:
    x = torch.randn(4, 64).bfloat16().requires_grad_()
    y = rms_norm(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, rms_norm(x.float()).bfloat16(), atol=0, rtol=0)
    assert torch.autograd.grad(y.sum(), x)[0].dtype == torch.bfloat16
