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
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        rms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, rms)
        return (wide * rms).mul_(weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rms = ctx.saved_tensors
        wide, d_wide = (t if t.dtype == torch.float64 else t.float() for t in (x, d_y))
        normed = wide * rms
        d_weight = (d_wide * normed).flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        d_normed = d_wide * weight
        along = (d_normed * normed).sum(-1, keepdim=True).div_(x.shape[-1])
        return d_normed.sub_(normed.mul_(along)).mul_(rms).to(x.dtype), d_weight, None
