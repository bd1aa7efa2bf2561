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
    groups = k.shape[2]
    queries, k, v, alpha, beta = q.to(dtype) * scale, k.to(dtype), v.to(dtype), g.to(dtype).exp(), beta.to(dtype)
    state = k.new_zeros(*k.shape[::2], k.shape[3], v.shape[3]) if initial_state is None else initial_state.to(dtype)
    outputs = []
    for t in range(q.shape[1]):
        key, value, strength = k[:, t, :, :, None], v[:, t, :, None, :], beta[:, t, :, None, None]
        state = state * _kept(document_ids, t) * alpha[:, t, :, None, None]
        state = state - strength * key @ (key.mT @ state) + strength * key @ value
        outputs.append((queries[:, t].unflatten(1, (groups, -1)) @ state).flatten(1, 2))
    return torch.stack(outputs, 1).to(q.dtype), state
