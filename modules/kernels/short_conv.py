"""Short causal depthwise convolution over time, without bias: y_t = sum_j w_j x_{t - (J - 1) + j}, j = 0..J-1.

Shapes: B batch, T time, C channels, J kernel length (a few). A sum of J shifted products: faster here than a grouped
convolution, and documents are kept apart by masking what is shifted.
"""

from __future__ import annotations

import torch
from torch import Tensor


def short_conv(
    x: Tensor, weight: Tensor, *, before: Tensor | None = None, document_ids: Tensor | None = None
) -> Tensor:
    """Outputs [B, T, C].

    x: [B, T, C]
    weight: one kernel per channel, the last element for the current position, [C, J]
    before: the J - 1 inputs before the first of x, [B, J - 1, C]; zeros by default
    document_ids: [B, T]; inputs of other documents count as zeros (those `before` belong to the first document)
    """
    taps = weight.unbind(1)
    time, reach = x.shape[1], len(taps) - 1
    if before is None:
        before = x.new_zeros(x.shape[0], reach, x.shape[2])
    padded = torch.cat((before.to(x.dtype), x), 1)
    out = x * taps[-1]
    for back in range(1, len(taps)):
        shifted = padded[:, reach - back : reach - back + time]
        if document_ids is not None:
            shifted = shifted * _same_document(document_ids, back)[..., None]
        out = out + shifted * taps[-1 - back]
    return out


def inputs_to_keep(x: Tensor, before: Tensor) -> Tensor:
    """The last J - 1 inputs after x [B, T, C] follows `before` [B, J - 1, C]: what the next call needs."""
    return torch.cat((before, x.to(before.dtype)), 1)[:, x.shape[1] :]


def _same_document(document_ids: Tensor, back: int) -> Tensor:
    """Whether position t and t - back are in one document, with none starting between them, [B, T]."""
    changes = torch.zeros_like(document_ids)
    changes[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    number = changes.cumsum(1)
    earlier = torch.zeros_like(number)
    earlier[:, back:] = number[:, :-back]
    return number == earlier
