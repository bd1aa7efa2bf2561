"""Norms of head vectors, in fp32 whatever the inputs are, with backwards that keep few tensors and make few passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

L2_EPS = 1e-6  # inside the root, as in the peers' kernels: a zero vector stays zero with a finite gradient


def l2_norm(x: Tensor, *, eps: float = L2_EPS) -> Tensor:
    """x / sqrt(sum x² + eps) over the last dim, in x's dtype."""
    return _Norm.apply(x, None, 1.0, eps)


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean x² + eps) · weight over the last dim, in x's dtype."""
    return _Norm.apply(x, weight, x.shape[-1], eps)


class _Norm(torch.autograd.Function):
    """n = x r with r = (|x|² / size + eps)^-1/2, y = n · weight; d_x = r (d_n − n (n · d_n) / size)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, size: float, eps: float) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        r = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(size).add_(eps).rsqrt_()
        normed = wide * r
        ctx.save_for_backward(normed, r, weight)
        ctx.size, ctx.dtype = size, x.dtype
        return (normed if weight is None else normed * weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        normed, r, weight = ctx.saved_tensors
        d_y = d_y.to(normed.dtype)
        products, d_weight = d_y * normed, None
        with torch.autocast(d_y.device.type, enabled=False):  # sums as matrix-vector products, in full precision
            along = products @ (products.new_ones(products.shape[-1]) if weight is None else weight.to(normed.dtype))
        if weight is not None:
            d_weight = products.flatten(0, -2).sum(0).to(weight.dtype)
            d_y = d_y * weight
        d_x = torch.addcmul(d_y, normed, along[..., None], value=-1 / ctx.size).mul_(r)
        return d_x.to(ctx.dtype), d_weight, None, None
