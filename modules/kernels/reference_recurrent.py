"""Recurrences as they are written, one position after the other: the oracles of the fast forms. Slow on purpose.

Shapes: B batch, T time, H query heads, G groups of heads that share a state, K key dim, V value dim. fp32, or fp64 for
fp64 inputs. Gradients come from autograd. `document_ids` [B, T]: the state is forgotten where the id changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gridlaw.modules.kernels.chunks import compute_dtype


def _kept(document_ids: Tensor | None, t: int) -> Tensor | float:
    """1 where position t goes on with the document of t - 1, else 0, [B, 1, 1, 1]."""
    if document_ids is None or t == 0:
        return 1.0
    return (document_ids[:, t] == document_ids[:, t - 1])[:, None, None, None]


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float | None = None,
    initial_state: Tensor | None = None, document_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t q_t (2606.15378 A.2), S as [K, V].

    Arguments and results as `gridlaw.modules.kernels.gated_delta.gated_delta_rule`.
    """
    dtype = compute_dtype(q, k, v, g, beta)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q_wide, k, v, g, beta = (x.to(dtype) for x in (q, k, v, g, beta))
    state = k.new_zeros(*k.shape[::2], k.shape[3], v.shape[3]) if initial_state is None else initial_state.to(dtype)
    outputs = []
    for t in range(q.shape[1]):
        state = state * _kept(document_ids, t)
        out, state = gated_delta_step(q_wide[:, t] * scale, k[:, t], v[:, t], g[:, t], beta[:, t], state)
        outputs.append(out)
    return torch.stack(outputs, 1).to(q.dtype), state


def gated_delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One position: q [B, H, K] with its scale, k [B, G, K], v [B, G, V], g and beta [B, G], state [B, G, K, V].

    Every product that touches the state is a matrix product, so that a FLOP counter sees the count that
    `flops_per_token` states: decay, prediction, erasing and writing, 2 K V each per state; 2 K V per query head.
    """
    batch, groups, key_dim = k.shape
    value_dim = v.shape[-1]
    key, value, strength = k.reshape(-1, key_dim, 1), v.reshape(-1, 1, value_dim), beta.reshape(-1, 1, 1)
    state = torch.bmm(state.reshape(-1, key_dim * value_dim, 1), g.exp().reshape(-1, 1, 1))
    state = state.view(-1, key_dim, value_dim)
    predicted = torch.bmm(key.mT, state)
    state = state - torch.bmm(strength * key, predicted) + torch.bmm(strength * key, value)
    out = torch.bmm(q.reshape(batch * groups, -1, key_dim), state)
    return out.view(batch, -1, value_dim), state.view(batch, groups, key_dim, value_dim)


def scalar_decay(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float | None = None,
    initial_state: Tensor | None = None, document_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """S_t = gamma_t S_{t-1} + v_t k_t^T, o_t = S_t q_t (2606.15378 A.2, lightning and mamba2), S as [K, V].

    Arguments and results as `gridlaw.modules.kernels.scalar_decay.scalar_decay`.
    """
    dtype = compute_dtype(q, k, v, g)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    heads = max(x.shape[2] for x in (q, k, v))
    q_wide, k, v = (x.to(dtype).repeat_interleave(heads // x.shape[2], 2) for x in (q, k, v))
    g = g.to(dtype).expand(*q.shape[:2], heads)
    state = k.new_zeros(*k.shape[::2], k.shape[3], v.shape[3]) if initial_state is None else initial_state.to(dtype)
    outputs = []
    for t in range(q.shape[1]):
        state = state * _kept(document_ids, t)
        out, state = scalar_decay_step(q_wide[:, t] * scale, k[:, t], v[:, t], g[:, t], state)
        outputs.append(out)
    return torch.stack(outputs, 1).to(q.dtype), state


def scalar_decay_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One position: q with its scale and k [B, H, K], v [B, H, V], g [B, H], state [B, H, K, V] → o, new state.

    Writing and reading are matrix products of 2 K V per head; the decay counts nothing (as `flops_per_token`).
    """
    state = state * g.exp()[..., None, None] + torch.matmul(k[..., :, None], v[..., None, :])
    return torch.matmul(q[..., None, :], state)[..., 0, :], state
