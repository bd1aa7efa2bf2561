"""Gated delta rule with grouped states, chunked: linear cost in T, hand-written backward.

The recurrence (2606.15378 A.2; Yang et al. 2412.06464), one state of shape [K, V] per group of query heads:

    S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,    o_t = scale * S_t^T q_t,    alpha_t = exp(g_t)

Inside a chunk, with decays d(t, s) and `S` the state before the chunk, the values u_t really written solve
(I + L) u = beta (v - d(t, start) K S), L[t, s] = beta_t d(t, s) k_t.k_s for s < t. One triangular solve per chunk and
*group* (not per query head) gives u = Y_v - Y_k S. It is a solve, never a sum of powers of L: those reach 1e14 for
repeated keys. Everything is then made for all chunks at once, and the only sequential part is
S_{n+1} = A_n S_n + B_n, one small matrix product per chunk.

Shapes: B batch, T time, H query heads, G groups (states), R = H / G query heads per group, K key dim, V value dim,
N chunks, C positions in a chunk. Stacks put the key rows first and the R rows of queries after them: 1 + R.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.kernels import chunks, recurrent_cuda
from gridlaw.modules.kernels.dispatch import choose, register_kernel


def default_chunk_size(time: int, key_dim: int) -> int:
    """Positions per chunk: small states are cheap to hand on, small chunks cheap to fill (measured, docs/log.md)."""
    return max(1, min(16 if key_dim <= 16 else 32, time))


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    document_ids: Tensor | None = None,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs for all positions and the state after the last.

    q: queries, [B, T, H, K]
    k: keys, usually of norm 1, [B, T, G, K]; G divides H, query head h reads state h // (H / G)
    v: values, [B, T, G, V]
    g: log of the decay alpha, <= 0, [B, T, G], best in fp32
    beta: writing strength in [0, 1], [B, T, G]
    scale: factor on q, K^-1/2 by default
    initial_state: [B, G, K, V], zeros by default; belongs to the first document
    document_ids: [B, T]; the state is forgotten where the id changes
    chunk_size: positions per chunk of the torch form; given, that form is used on any device
    Returns o [B, T, H, V] in q's dtype and the state [B, G, K, V] in fp32 (fp64 for fp64 inputs).
    """
    check_shapes(q, k, v, g, beta)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if chunk_size is not None:
        return chunked(q, k, v, g, beta, scale, initial_state, document_ids, chunk_size=chunk_size)
    half = q.dtype in (torch.float16, torch.bfloat16)
    kernel = choose("gated_delta_rule", q.device, documents=document_ids is not None, half=half)
    return kernel(q, k, v, g, beta, scale, initial_state, document_ids)


register_kernel(
    "gated_delta_rule",
    "fla",
    devices=("cuda",),
    unavailable=recurrent_cuda.fla_unavailable,
    unsupported=recurrent_cuda.unsupported,
)(recurrent_cuda.fla_gated_delta_rule)


@register_kernel("gated_delta_rule", "torch, chunked", devices=("cpu", "cuda"))
def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float,
    initial_state: Tensor | None, document_ids: Tensor | None, *, chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The form described above; arguments as `gated_delta_rule`."""
    size = min(chunk_size or default_chunk_size(q.shape[1], q.shape[3]), q.shape[1])
    segments = chunks.split_segments(document_ids, size)
    return _GatedDelta.apply(q, k, v, g, beta, initial_state, segments, scale, size)


def gated_delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One position: q [B, H, K], k [B, G, K], v [B, G, V], g and beta [B, G], state [B, G, K, V] → o, new state."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = state.dtype
    key = k.to(dtype)[..., None, :]
    state = state * g.to(dtype).exp()[..., None, None]
    written = (v.to(dtype)[..., None, :] - key @ state) * beta.to(dtype)[..., None, None]
    state = state + key.mT @ written
    rows = q.to(dtype).unflatten(1, (k.shape[1], -1)) * scale
    return (rows @ state).flatten(1, 2).to(q.dtype), state


def check_shapes(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> None:
    """Refuses shapes that would broadcast into something else."""
    groups = k.shape[2]
    if q.shape[2] % groups:
        raise BadSetting(
            "num_heads", seen=q.shape[2], allowed=f"a multiple of the {groups} states", hint="Give heads that divide"
        )
    if q.shape[1] < 1:
        raise BadSetting("sequence length", seen=q.shape[1], allowed="at least 1 token")
    lead = (*q.shape[:2], groups)
    for name, x, shape in (
        ("k", k, (*lead, q.shape[3])),
        ("v", v, (*lead, v.shape[-1])),
        ("g", g, lead),
        ("beta", beta, lead),
    ):
        if tuple(x.shape) != shape:
            raise BadSetting(f"shape of {name}", seen=tuple(x.shape), allowed=str(shape))


class _GatedDelta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None,
        segments: Tensor | None, scale: float, size: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        with torch.autocast(q.device.type, enabled=False):
            return _forward(ctx, q, k, v, g, beta, initial_state, segments, scale, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_o: Tensor | None, d_state: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return (*_backward(ctx, d_o, d_state), None, None, None)


def _solve(lower: Tensor, right: Tensor, *, transposed: bool = False) -> Tensor:
    """(I + L)^-1 right, or (I + L)^-T right, of the strict lower part L of `lower`; [..., C, D], contiguous.

    It solves from the right side for the transposes: the solver works by columns, so it takes and gives these rows
    as they lie, without two copies that transpose.
    """
    matrix = lower if transposed else lower.mT
    return torch.linalg.solve_triangular(matrix, right.mT, upper=not transposed, left=False, unitriangular=True).mT


def _forward(
    ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None,
    segments: Tensor | None, scale: float, size: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, time, heads, key_dim = q.shape
    groups, value_dim = v.shape[2:]
    dtype = chunks.compute_dtype(q, k, v, g, beta)
    k_c = chunks.split(k, size, dtype).contiguous()
    v_c = chunks.split(v, size, dtype)
    beta_c = chunks.split(beta, size, dtype)[..., None]
    decay = chunks.decays(chunks.split(g, size, torch.float64), segments, dtype)
    num_chunks = k_c.shape[0]
    matrices = num_chunks * batch * groups

    stack = k_c.new_empty(num_chunks, batch, groups, 1 + heads // groups, size, key_dim)
    torch.mul(k_c, beta_c, out=stack[:, :, :, 0])
    queries = chunks.split(q.unflatten(2, (groups, -1)), size, dtype).transpose(3, 4)
    torch.mul(queries, scale, out=stack[:, :, :, 1:])
    scores = torch.bmm(stack.view(matrices, -1, key_dim), k_c.view(matrices, size, key_dim).mT)
    scores = scores.view(*stack.shape[:-1], size).mul_(decay.between[:, :, :, None])
    right = k_c.new_empty(*k_c.shape[:-1], value_dim + key_dim)
    torch.mul(v_c, beta_c, out=right[..., :value_dim])
    torch.mul(stack[:, :, :, 0], decay.from_start[..., None], out=right[..., value_dim:])
    solved = _solve(scores[:, :, :, 0], right)

    solved_v, solved_k = solved.reshape(matrices, size, -1).split((value_dim, key_dim), -1)
    k_end = (k_c * decay.to_end[..., None]).view(matrices, size, -1).mT
    transition = torch.bmm(k_end, solved_k).neg_()
    transition.diagonal(dim1=-2, dim2=-1).add_(decay.whole.view(matrices, 1))
    transition = transition.view(num_chunks, batch * groups, key_dim, key_dim)
    states = k_c.new_empty(num_chunks + 1, batch * groups, key_dim, value_dim)
    if initial_state is None:
        states[0].zero_()
    else:
        states[0].copy_(initial_state.reshape(batch * groups, key_dim, value_dim))
    torch.bmm(k_end, solved_v, out=states[1:].view(matrices, key_dim, value_dim))
    per_chunk = states.unbind(0)
    for n, step in enumerate(transition.unbind(0)):
        per_chunk[n + 1].baddbmm_(step, per_chunk[n])

    read = scores.view(matrices, -1, size)[:, size:]
    reader = stack[:, :, :, 1:] * decay.from_start[:, :, :, None, :, None]
    reader = reader.view(matrices, -1, key_dim).baddbmm_(read, solved_k, alpha=-1)
    out = torch.bmm(read, solved_v).baddbmm_(reader, states[:-1].view(matrices, key_dim, value_dim))
    out = out.view(num_chunks, batch, groups, -1, size, value_dim).transpose(3, 4)
    ctx.save_for_backward(
        k_c, v_c, beta_c, stack, scores, solved, reader, transition, states,
        decay.from_start, decay.to_end, decay.whole, decay.between,
    )  # fmt: skip
    ctx.scale, ctx.dtypes = scale, tuple(x.dtype for x in (q, k, v, g, beta))
    ctx.time, ctx.state_dtype = time, None if initial_state is None else initial_state.dtype
    ctx.set_materialize_grads(False)
    return (
        chunks.join(out, time, q.dtype).view(batch, time, heads, value_dim),
        states[-1].view(batch, groups, key_dim, value_dim).clone(),
    )


def _backward(ctx: Any, d_o: Tensor | None, d_state: Tensor | None) -> tuple[Tensor | None, ...]:
    k_c, v_c, beta_c, stack, scores, solved, reader, transition, states, *factors = ctx.saved_tensors
    decay = chunks.Decays(from_start=factors[0], to_end=factors[1], whole=factors[2], between=factors[3])
    num_chunks, batch, groups, rows, size, key_dim = stack.shape
    value_dim = v_c.shape[-1]
    matrices = num_chunks * batch * groups
    before = states[:-1].view(matrices, key_dim, value_dim)

    # d_right and d_read stacked like `stack`: key rows first.
    d_stack = k_c.new_empty(num_chunks, batch, groups, rows, size, value_dim + key_dim)
    if d_o is None:
        d_stack[:, :, :, 1:, :, :value_dim] = 0
    else:
        d_out = chunks.split(d_o.unflatten(2, (groups, -1)), size, k_c.dtype).transpose(3, 4)
        d_stack[:, :, :, 1:, :, :value_dim] = d_out
    d_read = d_stack.view(matrices, -1, value_dim + key_dim)[:, size:]
    d_out = d_read[..., :value_dim]
    d_reader = torch.bmm(d_out, before.mT)
    d_after = _states_backward(reader, d_out, transition, d_state, states)
    d_before, d_after = d_after[0], d_after[1:].reshape(matrices, key_dim, value_dim)
    torch.neg(d_reader, out=d_read[..., value_dim:])

    # through added = to_end K^T solved and transition = whole I - to_end K^T solved_k
    d_added = torch.cat((d_after, torch.bmm(d_after, before.mT).neg_()), -1)
    d_whole = (d_after * before).sum((-2, -1)).view(decay.whole.shape)
    solved_m = solved.reshape(matrices, size, -1)
    k_end = (k_c * decay.to_end[..., None]).view(matrices, size, key_dim)
    d_k_end = torch.bmm(solved_m, d_added.mT).view_as(k_c)
    d_solved = torch.bmm(k_end, d_added)
    d_solved.baddbmm_(scores.view(matrices, -1, size)[:, size:].mT, d_read)
    d_right = _solve(scores[:, :, :, 0], d_solved.view_as(solved), transposed=True)
    torch.neg(d_right, out=d_stack[:, :, :, 0])

    d_scores = torch.bmm(d_stack.view(matrices, -1, value_dim + key_dim), solved_m.mT).view(scores.shape)
    d_scores[:, :, :, 0].diagonal(dim1=-2, dim2=-1).zero_()
    pairs = chunks.gate_pairs(scores, d_scores)
    d_scores.mul_(decay.between[:, :, :, None])
    d_scores = d_scores.view(matrices, -1, size)
    d_rows = torch.bmm(d_scores, k_c.view(matrices, size, key_dim)).view(stack.shape)
    d_k = torch.bmm(d_scores.mT, stack.view(matrices, -1, key_dim)).view_as(k_c)

    from_start, to_end = decay.from_start[..., None], decay.to_end[..., None]
    d_reader = d_reader.view(*stack.shape[:3], rows - 1, size, key_dim)
    d_from_start = (d_right[..., value_dim:] * stack[:, :, :, 0]).sum(-1)
    d_from_start += (d_reader * stack[:, :, :, 1:]).sum((3, 5))
    d_q = d_rows[:, :, :, 1:].addcmul_(d_reader, from_start[:, :, :, None])
    d_k_beta = d_rows[:, :, :, 0].addcmul_(d_right[..., value_dim:], from_start)
    d_beta = (d_k_beta * k_c).sum(-1) + (d_right[..., :value_dim] * v_c).sum(-1)
    d_to_end = (d_k_end * k_c).sum(-1)
    d_k.addcmul_(d_k_end, to_end).addcmul_(d_k_beta, beta_c)
    d_v = d_right[..., :value_dim] * beta_c
    d_g = chunks.log_gate_gradient(
        decay, d_from_start, d_to_end, d_whole, pair_rows=pairs.sum((3, 5)), pair_columns=pairs.sum((3, 4))
    )
    q_type, k_type, v_type, g_type, beta_type = ctx.dtypes
    d_q = chunks.join(d_q.transpose(3, 4) * ctx.scale, ctx.time, q_type).flatten(2, 3)
    d_initial = None
    if ctx.state_dtype is not None:
        d_initial = d_before.view(batch, groups, key_dim, value_dim).to(ctx.state_dtype)
    return (
        d_q, chunks.join(d_k, ctx.time, k_type), chunks.join(d_v, ctx.time, v_type),
        chunks.join(d_g, ctx.time, g_type), chunks.join(d_beta, ctx.time, beta_type), d_initial,
    )  # fmt: skip


def _states_backward(
    reader: Tensor, d_out: Tensor, transition: Tensor, d_state: Tensor | None, states: Tensor
) -> Tensor:
    """Gradients of the states before every chunk and after the last, [N + 1, B G, K, V]."""
    d_states = torch.empty_like(states)
    if d_state is None:
        d_states[-1].zero_()
    else:
        d_states[-1].copy_(d_state.reshape(states.shape[1:]))
    torch.bmm(reader.mT, d_out, out=d_states[:-1].view(reader.shape[0], *states.shape[2:]))
    per_chunk, transitions = d_states.unbind(0), transition.mT.unbind(0)
    for n in range(len(transitions) - 1, -1, -1):
        per_chunk[n].baddbmm_(transitions[n], per_chunk[n + 1])
    return d_states
