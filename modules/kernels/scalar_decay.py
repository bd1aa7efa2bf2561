"""Linear attention with one scalar decay per head, chunked: linear cost in T, hand-written backward.

The recurrence of Lightning attention (fixed decays) and of Mamba-2's SSD (decays from the input), one state of shape
[K, V] per head (2606.15378 A.2; Dao and Gu 2405.21060):

    S_t = gamma_t S_{t-1} + k_t v_t^T,    o_t = scale * S_t^T q_t,    gamma_t = exp(g_t)

Inside a chunk it is attention with decayed scores, made for all chunks at once; the only sequential part is
S_{n+1} = whole_n S_n + added_n, one scaled addition of states per chunk. Fixed decays share one [H, C, C] table.

Shapes: B batch, T time, H heads, K key dim, V value dim, N chunks, C positions in a chunk, M = N B H matrices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.kernels import chunks, recurrent_cuda
from gridlaw.modules.kernels.dispatch import choose, register_kernel


def default_chunk_size(time: int, fixed_decay: bool) -> int:
    """Positions per chunk: the table of decays between them is dear where it comes from the input (docs/log.md)."""
    return max(1, min(32 if fixed_decay else 16, time))


def scalar_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    document_ids: Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs for all positions and the state after the last.

    H is the largest number of heads among q, k and v; the others may have fewer, each shared by neighbouring heads.

    q: queries, [B, T, H or a divisor, K]
    k: keys, [B, T, H or a divisor, K]
    v: values, [B, T, H or a divisor, V]
    g: log of the decay gamma, <= 0: [B, T, H], best in fp32, or fixed decays without gradient, [H]
    scale: factor on q, K^-1/2 by default
    initial_state: [B, H, K, V], zeros by default; belongs to the first document
    document_ids: [B, T]; the state is forgotten where the id changes
    chunk_size: positions per chunk of the torch form; given, that form is used on any device
    Returns o [B, T, H, V] in q's dtype and the state [B, H, K, V] in fp32 (fp64 for fp64 inputs).
    """
    check_shapes(q, k, v, g)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if chunk_size is not None:
        return chunked(q, k, v, g, scale, initial_state, document_ids, chunk_size=chunk_size)
    kernel = choose("scalar_decay", q.device, documents=document_ids is not None, half=_is_half(q))
    return kernel(q, k, v, g, scale, initial_state, document_ids)


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    initial_state: Tensor | None = None,
    document_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mamba-2's S_t = exp(a dt_t) S_{t-1} + b_t (dt_t x_t)^T, o_t = S_t^T c_t; outputs and the state after the last.

    x: inputs, [B, T, H, V]
    dt: step, > 0, [B, T, H], best in fp32
    a: < 0, one per head, [H]
    b, c: what is written and read with, [B, T, H or a divisor, K]
    initial_state: [B, H, K, V], zeros by default; document_ids: [B, T]
    """
    kernel = choose("ssd", x.device, documents=document_ids is not None, half=_is_half(x))
    return kernel(x, dt, a, b, c, initial_state, document_ids)


def _is_half(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


register_kernel(
    "scalar_decay",
    "fla",
    devices=("cuda",),
    unavailable=recurrent_cuda.fla_unavailable,
    unsupported=recurrent_cuda.unsupported,
)(recurrent_cuda.fla_scalar_decay)
register_kernel(
    "ssd",
    "mamba-ssm",
    devices=("cuda",),
    unavailable=recurrent_cuda.mamba_unavailable,
    unsupported=recurrent_cuda.unsupported,
)(recurrent_cuda.mamba_ssd)


@register_kernel("scalar_decay", "torch, chunked", devices=("cpu", "cuda"))
def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float,
    initial_state: Tensor | None, document_ids: Tensor | None, *, chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The form described above; arguments as `scalar_decay`."""
    size = min(chunk_size or default_chunk_size(q.shape[1], g.dim() == 1), q.shape[1])
    segments = chunks.split_segments(document_ids, size)
    return _ScalarDecay.apply(q, k, v, g, initial_state, segments, scale, size)


@register_kernel("ssd", "torch, chunked", devices=("cpu", "cuda"))
def chunked_ssd(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, initial_state: Tensor | None, document_ids: Tensor | None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The step goes into the values and, through a, into the gates; arguments as `ssd`."""
    out, state = scalar_decay(
        c, b, x * dt[..., None], a * dt, scale=1.0, initial_state=initial_state, document_ids=document_ids
    )
    return out.to(x.dtype), state


def scalar_decay_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One position: q, k [B, H or a divisor, K], v [B, H or a divisor, V], g [B, H] or [H], state [B, H, K, V]."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    heads, dtype = state.shape[1], state.dtype
    query, key, value = (x.to(dtype).repeat_interleave(heads // x.shape[1], 1) for x in (q, k, v))
    state = state * g.to(dtype).exp()[..., None, None] + key[..., :, None] @ value[..., None, :]
    return ((query * scale)[..., None, :] @ state)[..., 0, :].to(q.dtype), state


def check_shapes(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> None:
    """Refuses shapes that would broadcast into something else."""
    heads = max(x.shape[2] for x in (q, k, v))
    if q.shape[1] < 1:
        raise BadSetting("sequence length", seen=q.shape[1], allowed="at least 1 token")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if heads % x.shape[2]:
            raise BadSetting(f"heads of {name}", seen=x.shape[2], allowed=f"a divisor of {heads}")
    if tuple(g.shape) not in ((heads,), (*q.shape[:2], heads)):
        raise BadSetting("shape of g", seen=tuple(g.shape), allowed=f"{(heads,)} or {(*q.shape[:2], heads)}")


class _ScalarDecay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None,
        segments: Tensor | None, scale: float, size: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        with torch.autocast(q.device.type, enabled=False):
            return _forward(ctx, q, k, v, g, initial_state, segments, scale, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor | None, d_state: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return (*_backward(ctx, d_o, d_state), None, None, None)


def _per_head(x: Tensor, heads: int, size: int, dtype: torch.dtype) -> Tensor:
    """x: [B, T, H or a divisor, D] → contiguous [N, B, H, C, D]."""
    x = chunks.split(x, size, dtype)
    shared = heads // x.shape[2]
    if shared > 1:
        x = x.unsqueeze(3).expand(-1, -1, -1, shared, -1, -1).flatten(2, 3)
    return x.contiguous()


def _forward(
    ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial_state: Tensor | None,
    segments: Tensor | None, scale: float, size: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, time, _, key_dim = q.shape
    heads, value_dim = max(x.shape[2] for x in (q, k, v)), v.shape[-1]
    dtype = chunks.compute_dtype(q, k, v, g)
    q_c, k_c, v_c = (_per_head(x, heads, size, dtype) for x in (q, k, v))
    fixed = g.dim() == 1
    log_gate = chunks.split(g.expand(1, time, heads) if fixed else g, size, torch.float64)
    decay = chunks.decays(log_gate, segments, dtype, same_gates=fixed)
    num_chunks = k_c.shape[0]
    q_m, k_m, v_m = (x.flatten(0, 2) for x in (q_c, k_c, v_c))

    scores = torch.bmm(q_m, k_m.mT).mul_(scale).view(num_chunks, batch, heads, size, size).mul_(decay.between)
    k_end = (k_c * decay.to_end[..., None]).flatten(0, 2)
    added = torch.bmm(k_end.mT, v_m).view(num_chunks, batch, heads, key_dim, value_dim)
    states = k_c.new_empty(num_chunks + 1, batch, heads, key_dim, value_dim)
    if initial_state is None:
        states[0].zero_()
    else:
        states[0].copy_(initial_state)
    per_chunk = states.unbind(0)
    for n, (kept, new) in enumerate(zip(decay.whole[..., None, None].unbind(0), added.unbind(0), strict=True)):
        torch.addcmul(new, kept, per_chunk[n], out=per_chunk[n + 1])
    out = torch.bmm(scores.flatten(0, 2), v_m)
    q_start = (q_c * (decay.from_start * scale)[..., None]).flatten(0, 2)
    out.baddbmm_(q_start, states[:-1].flatten(0, 2))

    ctx.save_for_backward(
        q_c, k_c, v_c, scores, k_end, q_start, states,
        decay.from_start, decay.to_end, decay.whole, decay.between,
    )  # fmt: skip
    ctx.scale, ctx.dtypes, ctx.heads = scale, [x.dtype for x in (q, k, v, g)], [x.shape[2] for x in (q, k, v)]
    ctx.time, ctx.fixed = time, fixed
    ctx.state_dtype = None if initial_state is None else initial_state.dtype
    ctx.set_materialize_grads(False)
    return chunks.join(out.view_as(v_c), time, q.dtype), states[-1].clone()


def _backward(ctx: Any, d_o: Tensor | None, d_state: Tensor | None) -> tuple[Tensor | None, ...]:
    q_c, k_c, v_c, scores, k_end, q_start, states, *factors = ctx.saved_tensors
    decay = chunks.Decays(from_start=factors[0], to_end=factors[1], whole=factors[2], between=factors[3])
    size, before = q_c.shape[3], states[:-1]
    q_m, k_m, v_m = (x.flatten(0, 2) for x in (q_c, k_c, v_c))
    d_out = torch.zeros_like(v_m) if d_o is None else chunks.split(d_o, size, v_c.dtype).reshape(v_m.shape)

    d_states = _states_backward(torch.bmm(q_start.mT, d_out).view_as(before), decay.whole, d_state, states)
    d_after = d_states[1:]
    d_q_start = torch.bmm(d_out, before.flatten(0, 2).mT).view_as(q_c)
    d_k_end = torch.bmm(v_m, d_after.flatten(0, 2).mT).view_as(k_c)
    d_v = torch.bmm(scores.flatten(0, 2).mT, d_out).baddbmm_(k_end, d_after.flatten(0, 2)).view_as(v_c)
    d_scores = torch.bmm(d_out, v_m.mT).view_as(scores)
    pairs = None if ctx.fixed else chunks.gate_pairs(scores, d_scores)
    d_scores = d_scores.mul_(decay.between).flatten(0, 2)
    d_q = torch.bmm(d_scores, k_m).view_as(q_c).addcmul_(d_q_start, decay.from_start[..., None]).mul_(ctx.scale)
    d_k = torch.baddbmm(d_k_end.mul(decay.to_end[..., None]).flatten(0, 2), d_scores.mT, q_m, alpha=ctx.scale).view_as(
        k_c
    )

    d_g = None
    if pairs is not None:
        d_log = chunks.log_gate_gradient(
            decay,
            d_from_start=(d_q_start * q_c).sum(-1) * ctx.scale,
            d_to_end=(d_k_end * k_c).sum(-1),
            d_whole=(d_after * before).sum((-2, -1)),
            pair_rows=pairs.sum(-1),
            pair_columns=pairs.sum(-2),
        )
        d_g = chunks.join(d_log, ctx.time, ctx.dtypes[3])
    d_q, d_k, d_v = (
        chunks.join(_sum_shared(d, count), ctx.time, dtype)
        for d, count, dtype in zip((d_q, d_k, d_v), ctx.heads, ctx.dtypes[:3], strict=True)
    )
    return d_q, d_k, d_v, d_g, None if ctx.state_dtype is None else d_states[0].to(ctx.state_dtype)


def _sum_shared(d: Tensor, heads: int) -> Tensor:
    """d: [N, B, H, C, D] → [N, B, heads, C, D], summed over the heads that shared one."""
    return d if d.shape[2] == heads else d.unflatten(2, (heads, -1)).sum(3)


def _states_backward(local: Tensor, whole: Tensor, d_state: Tensor | None, states: Tensor) -> Tensor:
    """Gradients of the states before every chunk and after the last, [N + 1, B, H, K, V]."""
    d_states = torch.empty_like(states)
    if d_state is None:
        d_states[-1].zero_()
    else:
        d_states[-1].copy_(d_state)
    per_chunk, kept, locals_ = d_states.unbind(0), whole[..., None, None].unbind(0), local.unbind(0)
    for n in range(len(locals_) - 1, -1, -1):
        torch.addcmul(locals_[n], kept[n], per_chunk[n + 1], out=per_chunk[n])
    return d_states
