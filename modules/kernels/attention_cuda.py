"""Attention on CUDA: flash-attn 2 where it is installed and takes the call, flex_attention otherwise.

Both give the log-sum-exp, so the sink is the same algebra as on the CPU (see attention_cpu). Head dims that flash-attn
does not take (no multiple of 8) are padded with zeros and sliced after. Nothing here runs without a CUDA device.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridlaw.modules.kernels.attention_rules import Visibility, position_in_document, query_places
from gridlaw.modules.kernels.dispatch import missing_package

flash_unavailable = missing_package("flash_attn.flash_attn_interface")


def flash_unsupported(
    *,
    cached: bool = False,
    documents: bool = False,
    first_tokens: bool = False,
    half: bool = True,
    positions: bool = False,
) -> str | None:
    """Why flash-attn cannot do a call: it takes half precision, and no masks but causal and window."""
    if documents:
        return "takes no document mask"
    if positions:
        return "takes no scattered queries"
    if first_tokens:
        return "takes no first tokens beside a window"
    return None if half else "takes float16 and bfloat16 only"


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    rules: Visibility,
    sink: Tensor | None = None,
    document_ids: Tensor | None = None,
    query_positions: Tensor | None = None,
) -> Tensor:
    """Outputs [B, T, H, K]; its causal mask is aligned at the end of the keys, as ours is."""
    assert document_ids is None, "the dispatch sends documents elsewhere"
    assert query_positions is None, "the dispatch sends scattered queries elsewhere"
    head_dim = q.shape[-1]
    if head_dim % 8:
        q, k, v = (F.pad(x, (0, 8 - head_dim % 8)) for x in (q, k, v))
    return _FlashAttention.apply(q, k, v, sink, scale, rules)[..., :head_dim]


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, scale: float, rules: Visibility
    ) -> Tensor:
        from flash_attn.flash_attn_interface import _flash_attn_forward

        q, k, v = (x.contiguous() for x in (q, k, v))
        window_left = -1 if rules.window is None else rules.window - 1
        out, lse_BHT, *_ = _flash_attn_forward(
            q, k, v, 0.0, scale, causal=True, window_size_left=window_left, window_size_right=0, softcap=0.0,
            alibi_slopes=None, return_softmax=False,
        )  # fmt: skip
        if sink is not None:
            total_BHT = torch.logaddexp(lse_BHT, sink.float()[None, :, None])
            out = (out * (lse_BHT - total_BHT).exp().transpose(1, 2)[..., None]).to(q.dtype)
            lse_BHT = total_BHT
        ctx.save_for_backward(q, k, v, sink, out, lse_BHT)
        ctx.scale, ctx.window_left = scale, window_left
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from flash_attn.flash_attn_interface import _flash_attn_backward

        q, k, v, sink, out, lse_BHT = ctx.saved_tensors
        d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        d_out = d_out.contiguous()
        _flash_attn_backward(
            d_out, q, k, v, out, lse_BHT, d_q, d_k, d_v, 0.0, ctx.scale, causal=True,
            window_size_left=ctx.window_left, window_size_right=0, softcap=0.0, alibi_slopes=None, deterministic=True,
        )  # fmt: skip
        d_sink = None
        if sink is not None:
            dot_BHT = (d_out.float() * out.float()).sum(-1).transpose(1, 2)
            d_sink = -((sink.float()[None, :, None] - lse_BHT).exp() * dot_BHT).sum((0, 2)).to(sink.dtype)
        return d_q, d_k, d_v, d_sink, None, None


def flex_unavailable() -> str | None:
    """Why flex_attention cannot run: it needs Triton on the device."""
    return missing_package("triton")() or (None if torch.cuda.is_available() else "no CUDA device")


@functools.cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    rules: Visibility,
    sink: Tensor | None = None,
    document_ids: Tensor | None = None,
    query_positions: Tensor | None = None,
) -> Tensor:
    """Outputs [B, T, H, K]; blocks that no query sees are skipped, so a window costs linear time."""
    from torch.nn.attention.flex_attention import create_block_mask

    places = query_places(q, k) if query_positions is None else query_positions
    position = None if document_ids is None else position_in_document(document_ids)

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = places[query] - key
        seen = distance >= 0
        if rules.window is not None:
            first = key if position is None else position[b, key]
            seen = seen & ((distance < rules.window) | (first < rules.first_tokens))
        if document_ids is not None:
            seen = seen & (document_ids[b, places[query]] == document_ids[b, key])
        return seen

    batch = None if document_ids is None else q.shape[0]
    block_mask = create_block_mask(visible, batch, None, q.shape[1], k.shape[1], device=q.device)
    out_BHTK, lse_BHT = _compiled_flex()(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=block_mask, scale=scale,
        enable_gqa=q.shape[2] != k.shape[2], return_lse=True,
    )  # fmt: skip
    if sink is not None:
        out_BHTK = (out_BHTK * torch.sigmoid(lse_BHT - sink.float()[None, :, None])[..., None]).to(q.dtype)
    return out_BHTK.transpose(1, 2)
