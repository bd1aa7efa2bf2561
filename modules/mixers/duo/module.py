"""DuoAttention's gated heads: per KV head, gate · full + (1 − gate) · streaming (arXiv 2410.10819).

A streaming head sees the first tokens of its document and a window of recent ones. While gates are learned, both
branches are computed; binarised, every head computes and keeps only what it needs.
Shapes: B batch, T tokens, H query heads, G key/value heads, K head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.mixers.duo.spec import DuoSpec
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.mixers.softmax_module import FullCache, SoftmaxMixer, WindowCache
from gridlaw.modules.scale import Scale

ALL_FULL = "duo_all_full"  # option of ForwardContext: True makes every head full, whatever its gate


class DuoAttention(SoftmaxMixer):
    """gate: one number per KV head, 1 at first (all heads full), clamped to [0, 1] with its gradient passed through."""

    spec: DuoSpec

    def __init__(self, spec: DuoSpec, scale: Scale) -> None:
        super().__init__(spec, scale)
        self.gate = nn.Parameter(torch.ones(scale.num_kv_heads))

    def gates(self) -> Tensor:
        """The gates in use, [G]."""
        if self.spec.binary:
            return (self.gate > 0.5).to(self.gate.dtype)
        return self.gate + (self.gate.clamp(0, 1) - self.gate).detach()

    def full_share(self, outputs: dict[str, Tensor]) -> Tensor:
        """Mean of the gates in use: the share of KV heads with full attention once binarised."""
        return self.gates().detach().mean()

    def _full(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, document_ids: Tensor | None) -> Tensor:
        return attention(q, k, v, sink=sink, document_ids=document_ids)

    def _streaming(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, document_ids: Tensor | None) -> Tensor:
        window, first = self.spec.window, self.spec.first_tokens
        if q.shape[1] > 1:
            return attention(q, k, v, window=window, first_tokens=first, sink=sink, document_ids=document_ids)
        near = max(0, k.shape[1] - window)  # one token: what it sees is cut out, and nothing is masked
        if near <= first:
            return attention(q, k, v, sink=sink)
        seen_k, seen_v = (torch.cat([x[:, :first], x[:, near:]], 1) for x in (k, v))
        return attention(q, seen_k, seen_v, sink=sink)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, document_ids: Tensor | None) -> Tensor:
        full = self._full(q, k, v, self.sink, document_ids)
        streaming = self._streaming(q, k, v, self.sink, document_ids)
        gate_H1 = self.gates().repeat_interleave(self.num_heads // self.num_kv_heads)[:, None].to(full.dtype)
        return streaming + gate_H1 * (full - streaming)

    def _split(self) -> tuple[Tensor, Tensor]:
        """Indices of the full and of the streaming KV heads, binarised."""
        is_full = self.gate > 0.5
        return torch.nonzero(is_full)[:, 0], torch.nonzero(~is_full)[:, 0]

    def _heads_of(self, groups: Tensor) -> Tensor:
        size = self.num_heads // self.num_kv_heads
        return (groups[:, None] * size + torch.arange(size, device=groups.device)).flatten()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: ForwardContext) -> Tensor:
        if ctx.options.get(ALL_FULL):
            return self._full(q, k, v, self.sink, ctx.document_ids)
        if not self.spec.binary:
            return self._mix(q, k, v, ctx.document_ids)
        out = torch.zeros_like(q)
        for groups, branch in zip(self._split(), (self._full, self._streaming), strict=True):
            if len(groups):
                heads = self._heads_of(groups)
                sink = None if self.sink is None else self.sink[heads]
                part = branch(q[:, :, heads], k[:, :, groups], v[:, :, groups], sink, ctx.document_ids)
                out = out.index_copy(2, heads, part)
        return out

    def init_state(
        self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype
    ) -> dict[str, Any]:
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        if not self.spec.binary:
            return {"full": FullCache(batch_size, max_length, self.num_kv_heads, self.head_dim, **kind)}
        full, streaming = self._split()
        window, first = min(self.spec.window, max_length), min(self.spec.first_tokens, max_length)
        return {
            "full": FullCache(batch_size, max_length, len(full), self.head_dim, **kind),
            "first": FullCache(batch_size, first, len(streaming), self.head_dim, **kind),
            "window": WindowCache(batch_size, window, len(streaming), self.head_dim, **kind),
        }

    def extend(self, x_BTD: Tensor, state: dict[str, Any], ctx: ForwardContext) -> Tensor:
        q, k, v = self.project(x_BTD, ctx)
        if not self.spec.binary:
            keys, values = state["full"].append(k, v)
            return self.output(self._mix(q, keys, values, None))
        full, streaming = self._split()
        out = torch.empty_like(q)
        if len(full):
            heads = self._heads_of(full)
            keys, values = state["full"].append(k[:, :, full], v[:, :, full])
            out[:, :, heads] = self._full(q[:, :, heads], keys, values, self._sink_of(heads), None)
        if len(streaming):
            heads = self._heads_of(streaming)
            out[:, :, heads] = self._stream(q[:, :, heads], k[:, :, streaming], v[:, :, streaming], heads, state)
        return self.output(out)

    def _sink_of(self, heads: Tensor) -> Tensor | None:
        return None if self.sink is None else self.sink[heads]

    def _stream(self, q: Tensor, k: Tensor, v: Tensor, heads: Tensor, state: dict[str, Any]) -> Tensor:
        """T further tokens of the streaming heads: those kept from the start, those in the ring, the new ones.

        Leaving out what lies between the first tokens and the ring changes no distance that the window looks at, and
        the first tokens stay the first.
        """
        first, ring = state["first"], state["window"]
        num_first = min(first.length, max(0, ring.length - ring.window))  # the others are still in the ring
        ring_k, ring_v = ring.in_order()
        keys = torch.cat([first.k[:, :num_first], ring_k, k.to(ring_k.dtype)], 1)
        values = torch.cat([first.v[:, :num_first], ring_v, v.to(ring_v.dtype)], 1)
        room = min(first.k.shape[1] - first.length, k.shape[1])
        if room > 0:
            first.append(k[:, :room], v[:, :room])
        ring.write(k, v)
        return self._streaming(q, keys, values, self._sink_of(heads), None)
