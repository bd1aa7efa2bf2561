"""Causal softmax attention behind one call: grouped queries, sliding window, learnable sink, documents kept apart.

Shapes: B batch, T queries, S keys (S >= T: the keys end where the queries end), H query heads, G key/value heads
(G divides H), K head dim.

    z_ts = scale · q_t·k_s,    a_ts = exp(z_ts) / (exp(sink_h) + sum_l exp(z_tl)),    o_t = sum_s a_ts v_s

over the keys s visible to t: s <= t, t - s < window where a window is given (w tokens, the current one included), the
same document where document_ids are given; the first `first_tokens` keys (of the document) stay visible besides.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.kernels import attention_cpu, attention_cuda
from gridlaw.modules.kernels.attention_rules import Visibility, query_places, visible_mask
from gridlaw.modules.kernels.dispatch import choose, register_kernel
from gridlaw.modules.kernels.reads import note_read


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    sink: Tensor | None = None,
    document_ids: Tensor | None = None,
    first_tokens: int = 0,
    query_positions: Tensor | None = None,
) -> Tensor:
    """Outputs, [B, T, H, K].

    q: queries, [B, T, H, K]
    k, v: keys and values, [B, S, G, K]; S > T means S - T earlier tokens come from a cache
    scale: factor on the scores, K^-1/2 by default
    window: tokens visible, the current one included; None for all
    sink: logits, [H]; None for none
    document_ids: [B, S], equal within a document; None for one document a row
    first_tokens: keys at the start that a window does not hide
    query_positions: [T], ascending, the queries' places among the keys; None for the last T
    """
    if k.shape != v.shape or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        shapes = [tuple(x.shape) for x in (q, k, v)]
        raise BadSetting("shapes of q, k, v", seen=shapes, allowed="[B, T, H, K] and twice [B, S, G, K]")
    if q.shape[2] % k.shape[2]:
        raise BadSetting("num_heads", seen=q.shape[2], allowed=f"a multiple of the {k.shape[2]} key/value heads")
    if k.shape[1] < q.shape[1]:
        raise BadSetting("number of keys", seen=k.shape[1], allowed=f"at least the {q.shape[1]} queries")
    if window is not None and window >= k.shape[1]:
        window = None  # every key is visible anyway
    rules = Visibility(window=window, first_tokens=first_tokens if window is not None else 0)
    function = choose(
        "attention",
        q.device,
        cached=k.shape[1] != q.shape[1],
        documents=document_ids is not None,
        first_tokens=rules.first_tokens > 0,
        half=q.dtype in (torch.float16, torch.bfloat16),
        positions=query_positions is not None,
    )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    note_read(q, k)
    return function(q, k, v, scale, rules, sink, document_ids, query_positions)


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    rules: Visibility,
    sink: Tensor | None = None,
    document_ids: Tensor | None = None,
    query_positions: Tensor | None = None,
) -> Tensor:
    """The definition, with a T × S matrix of scores: the oracle of every other kernel, and the last resort."""
    group = q.shape[2] // k.shape[2]
    q_BHTK = q.transpose(1, 2)
    k_BHSK, v_BHSK = (x.transpose(1, 2).repeat_interleave(group, dim=1) for x in (k, v))
    z_BHTS = torch.matmul(q_BHTK, k_BHSK.transpose(-1, -2)) * scale
    if q.shape[1] > 1 or rules.window is not None or query_positions is not None:
        queries_T = query_places(q, k) if query_positions is None else query_positions
        visible = visible_mask(rules, queries_T, torch.arange(k.shape[1], device=q.device), document_ids)
        z_BHTS = z_BHTS.masked_fill(~visible, -math.inf)
    z_BHTS = z_BHTS.float() if z_BHTS.dtype in (torch.float16, torch.bfloat16) else z_BHTS
    if sink is None:
        a_BHTS = z_BHTS.softmax(-1)
    else:
        sink_BHT1 = sink.to(z_BHTS.dtype)[None, :, None, None].expand(*z_BHTS.shape[:3], 1)
        a_BHTS = torch.cat([z_BHTS, sink_BHT1], -1).softmax(-1)[..., :-1]
    return torch.matmul(a_BHTS.to(v.dtype), v_BHSK).transpose(1, 2)


register_kernel("attention", "torch-cpu-flash", devices=("cpu",))(attention_cpu.attention)
register_kernel(
    "attention",
    "flash-attn",
    devices=("cuda",),
    unavailable=attention_cuda.flash_unavailable,
    unsupported=attention_cuda.flash_unsupported,
)(attention_cuda.flash_attention)
register_kernel("attention", "flex_attention", devices=("cuda",), unavailable=attention_cuda.flex_unavailable)(
    attention_cuda.flex
)
register_kernel("attention", "reference", devices=("cpu", "cuda", "meta"))(attention_reference)
