"""What all softmax mixers share in torch: projections, rotation, sink, and caches of keys and values.

Shapes: B batch, T tokens, S cached tokens, D model width, H query heads, G key/value heads, K head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.mixers.module_base import ForwardContext, Mixer
from gridlaw.modules.mixers.softmax_spec import SoftmaxSpec
from gridlaw.modules.models.rope import rotate, side_by_side
from gridlaw.modules.scale import Scale


class SoftmaxMixer(Mixer):
    """Projections of grouped-query attention; a subclass says which keys are seen and which are kept."""

    spec: SoftmaxSpec

    def __init__(self, spec: SoftmaxSpec, scale: Scale) -> None:
        super().__init__(spec)
        self.num_heads, self.num_kv_heads, self.head_dim = scale.num_heads, scale.num_kv_heads, scale.head_dim
        self.q_proj = nn.Linear(scale.d_model, scale.inner_dim, bias=False)
        self.k_proj = nn.Linear(scale.d_model, scale.kv_dim, bias=False)
        self.v_proj = nn.Linear(scale.d_model, scale.kv_dim, bias=False)
        self.o_proj = nn.Linear(scale.inner_dim, scale.d_model, bias=False)
        has_sink = spec.resolved(scale).sink
        self.sink = nn.Parameter(torch.zeros(scale.num_heads)) if has_sink else None

    def init_parameter(
        self, name: str, parameter: Tensor, generator: torch.Generator, *, std: float, num_layers: int
    ) -> None:
        if name == "sink":
            parameter.zero_()
        else:
            super().init_parameter(name, parameter, generator, std=std, num_layers=num_layers)

    def project(self, x_BTD: Tensor, ctx: ForwardContext) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, H, K], k and v [B, T, G, K], rotated where the spec says so.

        One matrix product of the three weights side by side; they stay three parameters. With rotation the features of
        q and k are in the order of `side_by_side`, here and in caches.
        """
        q_weight, k_weight, v_weight = self.q_proj.weight, self.k_proj.weight, self.v_proj.weight
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        if not self.spec.uses_rope:
            qkv = F.linear(x_BTD, torch.cat([q_weight, k_weight, v_weight]))
        else:
            pairs = [side_by_side(weight, self.head_dim) for weight in (q_weight, k_weight)]
            qkv = F.linear(x_BTD, torch.cat([*pairs, v_weight]))
            qkv = rotate(qkv, ctx.turns(heads[0] + heads[1], heads[2]))
        q, k, v = qkv.unflatten(-1, (-1, self.head_dim)).split(heads, 2)
        return q, k, v

    def output(self, o_BTHK: Tensor) -> Tensor:
        """The output projection, [B, T, D]."""
        return self.o_proj(o_BTHK.flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: ForwardContext) -> Tensor:
        """Outputs [B, T, H, K] of the whole sequence."""
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, ctx: ForwardContext) -> Tensor:
        q, k, v = self.project(x_BTD, ctx)
        return self.output(self.attend(q, k, v, ctx))


class FullCache:
    """Keys and values of all tokens so far, [B, max_length, G, K] each; one write per token.

    In memory a head's tokens lie side by side, so that decoding reads them in one go; what is handed out are views.
    """

    def __init__(
        self, batch_size: int, max_length: int, num_kv_heads: int, head_dim: int,
        *, device: torch.device | str, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        shape = (batch_size, num_kv_heads, max_length, head_dim)
        self.k = torch.zeros(shape, device=device, dtype=dtype).transpose(1, 2)
        self.v = torch.zeros(shape, device=device, dtype=dtype).transpose(1, 2)
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write [B, T, G, K] more; all keys and values so far, [B, S, G, K], as views."""
        stop = self.length + k.shape[1]
        if stop > self.k.shape[1]:
            raise cache_full(stop, self.k.shape[1])
        self.k[:, self.length : stop] = k
        self.v[:, self.length : stop] = v
        self.length = stop
        return self.k[:, :stop], self.v[:, :stop]


class WindowCache:
    """Keys and values of the last `window` tokens in a ring, [B, window, G, K] each: constant in the text's length."""

    def __init__(
        self, batch_size: int, window: int, num_kv_heads: int, head_dim: int,
        *, device: torch.device | str, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.window = window
        shape = (batch_size, window, num_kv_heads, head_dim)
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, sink: Tensor | None, scale: float | None = None) -> Tensor:
        """Outputs of T further tokens, q [B, T, H, K], which are then kept.

        One token writes its slot and looks at all filled slots, whatever their order. Several look at what is kept,
        put in order, and at each other.
        """
        if k.shape[1] == 1:
            self.write(k, v)
            filled = min(self.length, self.window)
            return attention(q, self.k[:, :filled], self.v[:, :filled], scale=scale, sink=sink)
        past_k, past_v = self.in_order()
        all_k, all_v = torch.cat([past_k, k.to(past_k.dtype)], 1), torch.cat([past_v, v.to(past_v.dtype)], 1)
        out = attention(q, all_k, all_v, window=self.window, scale=scale, sink=sink)
        self.write(k, v)
        return out

    def in_order(self) -> tuple[Tensor, Tensor]:
        """What is kept, oldest first, [B, min(length, window), G, K] each."""
        if self.length < self.window:
            return self.k[:, : self.length], self.v[:, : self.length]
        oldest = self.length % self.window
        return torch.roll(self.k, -oldest, 1), torch.roll(self.v, -oldest, 1)

    def write(self, k: Tensor, v: Tensor) -> None:
        """Keep T further tokens, [B, T, G, K] each, in place of the oldest."""
        num_new = k.shape[1]
        keep = min(num_new, self.window)
        start = self.length + num_new - keep
        slots = torch.arange(start, start + keep, device=k.device) % self.window
        if keep == 1:  # the usual case: no index tensors
            slot = start % self.window
            self.k[:, slot], self.v[:, slot] = k[:, -1], v[:, -1]
        else:
            self.k[:, slots] = k[:, -keep:].to(self.k.dtype)
            self.v[:, slots] = v[:, -keep:].to(self.v.dtype)
        self.length += num_new


def cache_full(needed: int, max_length: int) -> BadSetting:
    """The error for a cache used beyond its length."""
    return BadSetting(
        "cache length", seen=needed, allowed=f"at most {max_length} tokens",
        hint="Make it longer: init_cache(batch_size, max_length)",
    )  # fmt: skip
