"""Next-token cross-entropy from hidden states, without ever holding all logits.

At 73,448 words and 16K tokens the logits alone take 4.8 GB in fp32, and their gradient as much again. Here the tokens
are taken in chunks: each chunk's logits are made, reduced to losses and turned into gradients at once, so that one
chunk of logits is all that exists at any time (as in Liger's fused linear cross-entropy, Hsu et al. 2024, arXiv
2410.10989). The gradients are made in the forward pass and scaled in the backward one.

B batch, T positions, D width, V vocabulary; N = B·T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PLAIN_UP_TO_LOGITS = 1 << 24
"""At most this many logits (64 MiB in fp32) are made at once: below it the plain loss is the faster one."""


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Mean of the token losses, and these; gradients are made chunk by chunk in ``forward``, for the mean alone."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, chunk: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        needs_hidden, needs_head = ctx.needs_input_grad[:2]
        head_low = head_VD.to(dtype)
        grad_hidden = torch.empty_like(hidden_ND) if needs_hidden else None
        # fp32, since the chunks' contributions are added up.
        grad_head = torch.zeros(head_VD.shape, dtype=torch.float32, device=head_VD.device) if needs_head else None
        losses_N = torch.empty(targets_N.shape, dtype=torch.float32, device=hidden_ND.device)
        for start in range(0, hidden_ND.shape[0], chunk):
            rows = slice(start, start + chunk)
            hidden_low = hidden_ND[rows].to(dtype)
            logits = (hidden_low @ head_low.T).float()
            lse = torch.logsumexp(logits, dim=-1, keepdim=True)
            index = targets_N[rows, None]
            losses_N[rows] = (lse - logits.gather(-1, index)).squeeze(-1)
            if grad_hidden is None and grad_head is None:
                continue
            # d loss / d logits = softmax - one_hot, in the place of the logits.
            logits.sub_(lse).exp_()
            logits.scatter_add_(-1, index, torch.full_like(index, -1, dtype=logits.dtype))
            grad_logits = logits.to(dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = (grad_logits @ head_low).to(grad_hidden.dtype)
            if grad_head is not None:
                grad_head += grad_logits.T @ hidden_low
        ctx.save_for_backward(grad_hidden, grad_head)
        ctx.head_dtype, ctx.num_tokens = head_VD.dtype, targets_N.numel()
        ctx.mark_non_differentiable(losses_N)
        return losses_N.mean(), losses_N

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_head = ctx.saved_tensors
        scale = grad_outputs[0] / ctx.num_tokens
        hidden = None if grad_hidden is None else grad_hidden * scale
        head = None if grad_head is None else (grad_head * scale).to(ctx.head_dtype)
        return hidden, head, None, None, None


def chunked_cross_entropy(
    hidden_BTD: Tensor, head_VD: Tensor, targets_BT: Tensor, *, chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of ``targets_BT`` under logits ``hidden_BTD @ head_VD.T``, never all logits at once.

    chunk_tokens: tokens whose logits exist at a time. Matrix products run in autocast's type where autocast is on.
    Returns the mean, and the losses of the tokens, [B, T] without gradients; both in nats, fp32.
    """
    device = hidden_BTD.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_BTD.dtype
    with torch.autocast(device, enabled=False):
        mean, losses_N = _ChunkedCrossEntropy.apply(
            hidden_BTD.flatten(0, -2), head_VD, targets_BT.flatten(), chunk_tokens, dtype
        )
    return mean, losses_N.view_as(targets_BT)


def cross_entropy(hidden_BTD: Tensor, head_VD: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Mean next-token cross-entropy and the tokens' losses, [B, T] without gradients; both in nats, fp32.

    The plain one while the logits are few, ``chunked_cross_entropy`` beyond.
    """
    num_logits = targets_BT.numel() * head_VD.shape[0]
    if num_logits <= PLAIN_UP_TO_LOGITS:
        logits = F.linear(hidden_BTD, head_VD).flatten(0, -2).float()
        losses_N = F.cross_entropy(logits, targets_BT.flatten(), reduction="none")
        return losses_N.mean(), losses_N.detach().view_as(targets_BT)
    chunk = max(1, PLAIN_UP_TO_LOGITS // head_VD.shape[0])
    return chunked_cross_entropy(hidden_BTD, head_VD, targets_BT, chunk_tokens=chunk)
