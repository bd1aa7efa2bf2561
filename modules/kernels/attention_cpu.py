"""Attention on the CPU: torch's flash kernel, called block by block, with its own backward.

Cost and memory of a window are linear in T: queries go in blocks, each with the slice of keys it can see. Nothing of
size T × T exists: masks are [block, keys of the block]. The sink uses the kernel's log-sum-exp: with
lse' = logaddexp(lse, sink) the output is out · exp(lse − lse'), the kernel's backward is right when it is given these
two, and d sink = −sum exp(sink − lse') · (d out · out').

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, K head dim; the kernel itself takes [B, H, T, K].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridlaw.modules.kernels.attention_rules import Visibility, query_places, visible_mask

_forward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

MIN_BLOCK, MAX_BLOCK = 64, 256  # queries per call; larger ones compute more masked scores, smaller ones cost calls


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    rules: Visibility,
    sink: Tensor | None = None,
    document_ids: Tensor | None = None,
    query_positions: Tensor | None = None,
) -> Tensor:
    """Outputs [B, T, H, K] of q [B, T, H, K] and k, v [B, S, G, K]; see `attention.attention`."""
    sees_all = rules.window is None and document_ids is None and query_positions is None
    if q.shape[1] == 1 and sees_all and not torch.is_grad_enabled():
        return _one_query(q, k, v, scale, sink)
    return _CpuAttention.apply(q, k, v, sink, document_ids, query_positions, scale, rules)


def _one_query(q: Tensor, k: Tensor, v: Tensor, scale: float, sink: Tensor | None) -> Tensor:
    """Decoding: one token that sees every key. The query heads of a group go as the rows of one head, so that its keys
    and values are read once and not once per query head: decoding takes as long as reading them."""
    num_groups = k.shape[2]
    q_BGRK = q[:, 0].unflatten(1, (num_groups, -1))
    out, lse = _forward_kernel(q_BGRK, k.transpose(1, 2), v.transpose(1, 2), 0.0, False, scale=scale)
    if sink is not None:
        total = torch.logaddexp(lse, sink.to(lse.dtype).view(num_groups, -1))
        out = (out * (lse - total).exp_()[..., None]).to(q.dtype)
    return out.reshape(q.shape)


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Queries start:stop, the keys key_start:key_stop and the `first` keys before them, and which are visible."""

    start: int
    stop: int
    key_start: int
    key_stop: int
    first: int
    is_causal: bool
    mask: Tensor | None

    def keys(self, x_BSGK: Tensor) -> Tensor:
        """This block's slice of keys or values, [B, G, keys, K]: a view, unless first keys are put before it."""
        near = x_BSGK[:, self.key_start : self.key_stop]
        return (torch.cat([x_BSGK[:, : self.first], near], 1) if self.first else near).transpose(1, 2)

    def add_gradient(self, total_BSGK: Tensor, gradient_BGSK: Tensor) -> None:
        """Add the gradient of what `keys` returned."""
        gradient = gradient_BGSK.transpose(1, 2)
        if self.first:
            total_BSGK[:, : self.first] += gradient[:, : self.first]
            gradient = gradient[:, self.first :]
        total_BSGK[:, self.key_start : self.key_stop] += gradient


def _blocks(
    q: Tensor, k: Tensor, rules: Visibility, document_ids: Tensor | None, query_positions: Tensor | None
) -> Iterator[_Block]:
    num_queries, num_keys = q.shape[1], k.shape[1]
    plain = rules.window is None and document_ids is None and query_positions is None
    if plain and (num_queries == num_keys or num_queries == 1):  # one call: all keys, or the kernel's own causal mask
        yield _Block(
            start=0, stop=num_queries, key_start=0, key_stop=num_keys, first=0, is_causal=num_queries > 1, mask=None
        )
        return
    places_T = query_places(q, k) if query_positions is None else query_positions
    shared: dict[tuple[int, int, int], Tensor] = {}
    for start, stop, first_place, last_place in _ranges(rules, places_T, contiguous=query_positions is None):
        key_stop = last_place + 1
        key_start = 0 if rules.window is None else max(0, first_place - rules.window + 1)
        if document_ids is not None and rules.first_tokens:
            key_start = 0  # the first tokens of a document may be anywhere before the window
        first = min(rules.first_tokens, key_start)
        is_causal = (
            key_start == 0
            and (first_place, stop - start) == (0, key_stop)
            and document_ids is None
            and (rules.window is None or rules.window >= key_stop)
        )
        inside = document_ids is None and query_positions is None and key_start >= max(rules.first_tokens, 1)
        shape = (stop - start, key_stop - key_start, first)
        mask = shared.get(shape) if inside else None
        if mask is None and not is_causal:
            keys_S = torch.cat([torch.arange(first), torch.arange(key_start, key_stop)])
            visible = visible_mask(rules, places_T[start:stop], keys_S, document_ids)
            mask = torch.zeros(visible.shape, dtype=q.dtype).masked_fill_(~visible, -math.inf)
            mask = mask if mask.dim() == 4 else mask[None, None]
        if inside and mask is not None:
            shared[shape] = mask  # away from the start all blocks look alike
        yield _Block(
            start=start, stop=stop, key_start=key_start, key_stop=key_stop, first=first, is_causal=is_causal, mask=mask
        )


def _ranges(rules: Visibility, places_T: Tensor, *, contiguous: bool) -> Iterator[tuple[int, int, int, int]]:
    """Queries start:stop of each block, and the places of its first and last one.

    A block spans at most its size in places, too, so that scattered queries with a window get short slices of keys.
    """
    num_queries = places_T.shape[0]
    size = MAX_BLOCK if rules.window is None else max(MIN_BLOCK, min(rules.window, MAX_BLOCK))
    if contiguous:
        offset = int(places_T[0])
        for start in range(0, num_queries, size):
            stop = min(start + size, num_queries)
            yield start, stop, offset + start, offset + stop - 1
        return
    places = places_T.tolist()
    start = 0
    for index in range(1, num_queries + 1):
        too_many = index - start >= size
        if index == num_queries or too_many or (rules.window is not None and places[index] - places[start] >= size):
            yield start, index, places[start], places[index - 1]
            start = index


def _forward(blocks: list[_Block], q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs [B, H, T, K] and log-sum-exp [B, H, T] without a sink."""
    outputs, logsumexps = [], []
    for block in blocks:
        out, lse = _forward_kernel(
            q[:, block.start : block.stop].transpose(1, 2), block.keys(k), block.keys(v), 0.0, block.is_causal,
            attn_mask=block.mask, scale=scale,
        )  # fmt: skip
        outputs.append(out)
        logsumexps.append(lse)
    if len(outputs) == 1:
        return outputs[0], logsumexps[0]
    return torch.cat([out.transpose(1, 2) for out in outputs], 1).transpose(1, 2), torch.cat(logsumexps, 2)


class _CpuAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, document_ids: Tensor | None,
        query_positions: Tensor | None, scale: float, rules: Visibility,
    ) -> Tensor:  # fmt: skip
        blocks = list(_blocks(q, k, rules, document_ids, query_positions))
        out_BHTK, lse_BHT = _forward(blocks, q, k, v, scale)
        if sink is not None:
            total_BHT = torch.logaddexp(lse_BHT, sink.to(lse_BHT.dtype)[None, :, None])
            out_BHTK = (out_BHTK * (lse_BHT - total_BHT).exp_()[..., None]).to(q.dtype)
            lse_BHT = total_BHT
        ctx.save_for_backward(q, k, v, sink, document_ids, query_positions, out_BHTK, lse_BHT)
        ctx.scale, ctx.rules = scale, rules
        return out_BHTK.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sink, document_ids, query_positions, out_BHTK, lse_BHT = ctx.saved_tensors
        d_out_BHTK = d_out.transpose(1, 2)
        blocks = list(_blocks(q, k, ctx.rules, document_ids, query_positions))
        d_q, d_k, d_v = _backward_blocks(blocks, q, k, v, d_out_BHTK, out_BHTK, lse_BHT, ctx.scale)
        d_sink = None
        if sink is not None and ctx.needs_input_grad[3]:
            dot_BHT = (d_out_BHTK * out_BHTK).sum(-1, dtype=lse_BHT.dtype)
            share_BHT = (sink.to(lse_BHT.dtype)[None, :, None] - lse_BHT).exp_()
            d_sink = -(share_BHT * dot_BHT).sum((0, 2)).to(sink.dtype)
        return d_q, d_k, d_v, d_sink, None, None, None, None


def _backward_blocks(
    blocks: list[_Block], q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [B, T, H, K] and k, v [B, S, G, K]; d_out and out are [B, H, T, K], lse is [B, H, T]."""
    gradients_q = []
    d_k = d_v = q.new_empty(0)
    is_whole = len(blocks) == 1 and blocks[0].key_stop - blocks[0].key_start == k.shape[1]
    if not is_whole:  # sums over blocks in float32 at least
        d_k, d_v = (torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v))
    for block in blocks:
        rows = slice(block.start, block.stop)
        block_q, block_k, block_v = _backward_kernel(
            d_out[:, :, rows], q[:, rows].transpose(1, 2), block.keys(k), block.keys(v), out[:, :, rows],
            lse[:, :, rows], 0.0, block.is_causal, attn_mask=block.mask, scale=scale,
        )  # fmt: skip
        gradients_q.append(block_q.transpose(1, 2))
        if is_whole:
            return gradients_q[0], block_k.transpose(1, 2), block_v.transpose(1, 2)
        block.add_gradient(d_k, block_k)
        block.add_gradient(d_v, block_v)
    return torch.cat(gradients_q, 1), d_k.to(k.dtype), d_v.to(v.dtype)
