"""SwiGLU feed-forward network: down(SiLU(gate(x)) · up(x)), no biases."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class SwiGLU(nn.Module):
    """Shazeer, arXiv 2002.05202. Three matrices of d_model × ffn_dim."""

    hidden_matrices: ClassVar[tuple[str, ...]] = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, d_model: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, ffn_dim, bias=False)
        self.up_proj = nn.Linear(d_model, ffn_dim, bias=False)
        self.down_proj = nn.Linear(ffn_dim, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] → [B, T, D]."""
        return self.down_proj(_GatedSiLU.apply(self.gate_proj(x_BTD), self.up_proj(x_BTD)))


class _GatedSiLU(torch.autograd.Function):
    """SiLU(gate) · up, keeping only its two inputs."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        d_up = F.silu(gate).mul_(d_out)
        d_gate = torch.ops.aten.silu_backward(d_out * up, gate)
        return d_gate, d_up
