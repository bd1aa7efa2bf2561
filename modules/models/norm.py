"""RMSNorm computed in float32 whatever the input's precision, with a backward that keeps one number per token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) · weight over the last dimension; the weight starts at 1."""

    def __init__(self, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., dim] → same shape and dtype."""
        return _RMSNorm.apply(x, self.weight, self.eps)


class _RMSNorm(torch.autograd.Function):
    """With n = 1 / rms and g = dy · x: d weight = sum_t n_t g_t, dx = n dy·weight − x n³ (g·weight) / dim."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).mul_(weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        dim = x.shape[-1]
        wide, d_wide = (t.reshape(-1, dim).to(inverse.dtype) for t in (x, d_y))
        inverse, wide_weight = inverse.reshape(-1, 1), weight.to(inverse.dtype)
        with torch.autocast(x.device.type, enabled=False):  # sums as matrix-vector products, in full precision
            products = d_wide * wide
            d_weight = torch.mv(products.T, inverse[:, 0]).to(weight.dtype)
            along = torch.mv(products, wide_weight)[:, None].mul_(inverse).mul_(inverse).mul_(inverse).div_(-dim)
            d_x = (d_wide * wide_weight).mul_(inverse).addcmul_(wide, along)
        return d_x.view(x.shape).to(x.dtype), d_weight, None
