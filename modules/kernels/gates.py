"""Norms of head vectors, in fp32 whatever the inputs are."""

from __future__ import annotations

from torch import Tensor

L2_EPS = 1e-6  # inside the root, as in the peers' kernels: a zero vector stays zero with a finite gradient


def l2_norm(x: Tensor, *, eps: float = L2_EPS) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last dim, in x's dtype."""
    wide = x if x.itemsize >= 4 else x.float()
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean x^2 + eps) · weight over the last dim, in x's dtype."""
    wide = x if x.itemsize >= 4 else x.float()
    normed = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (normed if weight is None else normed * weight).to(x.dtype)
