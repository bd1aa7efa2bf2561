"""Rotary positions: tables of angles, YaRN for longer contexts, and the rotation itself.

Features are paired as (i, i + K/2), the convention of Llama's published code, so that its weights mean the same here.
Shapes: B batch, T tokens, H heads, K head dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def inverse_frequencies(head_dim: int, base: float, scaling: Mapping[str, Any] | None = None) -> tuple[Tensor, float]:
    """Angle per token of every pair, [K/2] in float64, and the factor on cos and sin (YaRN's attention scale, else 1).

    YaRN (arXiv 2309.00071, equations 17 to 22): slow pairs are stretched by the factor, fast ones kept, a ramp between.
    beta_fast, beta_slow: turns within the original context beyond and below which a pair is kept and stretched.
    """
    half = head_dim // 2
    plain = base ** (-torch.arange(half, dtype=torch.float64) * 2 / head_dim)
    if scaling is None:
        return plain, 1.0
    factor, original = float(scaling["factor"]), float(scaling["original_context"])

    def pair_of(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_of(float(scaling["beta_fast"]))), 0)
    high = min(math.ceil(pair_of(float(scaling["beta_slow"]))), head_dim - 1)
    ramp = ((torch.arange(half, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    attention = scaling["attention_factor"]
    return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1.0 if attention is None else attention


class RotaryTables(nn.Module):
    """cos and sin by position, made once per device and grown when longer text comes; not part of a checkpoint."""

    def __init__(self, head_dim: int, base: float, *, scaling: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.head_dim, self.base, self.scaling = head_dim, base, scaling
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def forward(self, position: int, num_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin of positions position … position + num_tokens − 1, each [T, K/2] in float32."""
        stop = position + num_tokens
        if device not in self._tables or self._tables[device][0].shape[0] < stop:
            length = 1 << max(stop - 1, 1).bit_length()  # doubled, so that decoding does not make tables every step
            frequencies, factor = inverse_frequencies(self.head_dim, self.base, self.scaling)
            angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
            tables = (angles.cos() * factor, angles.sin() * factor)
            self._tables[device] = (tables[0].float().to(device), tables[1].float().to(device))
        cos, sin = self._tables[device]
        return cos[position:stop], sin[position:stop]


def side_by_side(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of a projection's weight, [heads · K, D], so ordered that the two features of a pair are neighbours.

    Scores do not change when queries and keys are reordered alike, and neighbours can be turned as one complex number:
    five times faster on a CPU than slices of a few features.
    """
    return weight.view(-1, 2, head_dim // 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def turns(cos_TK: Tensor, sin_TK: Tensor, num_turned: int, num_kept: int) -> Tensor:
    """Complex factors of a token's heads side by side, [T, heads · K/2]: the angle for num_turned heads, then 1."""
    turn_TK = torch.complex(cos_TK, sin_TK)
    ones_TK = torch.ones_like(turn_TK)
    return torch.cat([turn_TK.repeat(1, num_turned), ones_TK.repeat(1, num_kept)], 1)


def rotate(x_BTF: Tensor, turns_TF: Tensor) -> Tensor:
    """Turn every pair of neighbours by its factor (from `turns`); same shape and dtype, x_BTF is [B, T, heads · K]."""
    return _Rotate.apply(x_BTF, turns_TF)


def _turn(x: Tensor, factors: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    pairs = torch.view_as_complex(wide.contiguous().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors.to(pairs.dtype)).flatten(-2).to(x.dtype)


class _Rotate(torch.autograd.Function):
    """Its gradient is the rotation by the opposite angle, so nothing but the factors is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return _turn(x, factors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return _turn(d_out, factors.conj().resolve_conj()), None
