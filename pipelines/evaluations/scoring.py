"""Token losses of a model without gradients, batched by length, never with all logits of a large vocabulary at once.

B rows, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from gridlaw.modules.mixers.module_base import ForwardContext
    from gridlaw.modules.models.decoder import DecoderLM

MAX_LOGITS = 1 << 24
"""At most this many logits exist at once (64 MiB in fp32)."""

BATCH_TOKENS = 16 * 1024
"""Padded tokens of one forward pass, on a CPU a good size for small and large models alike."""


SHORTEST_SHARE = 0.75


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's parameters are."""
    return next(model.parameters()).device


def batches_by_length(lengths: Sequence[int], *, batch_tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices of rows grouped so that a group's rows × longest row stays within ``batch_tokens``, longest first.

    A row longer than that is a group of its own. No row is shorter than SHORTEST_SHARE of its group's longest, so
    little is spent on padding.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    group: list[int] = []
    for row in order:
        longest = lengths[group[0]] if group else 0
        if group and ((len(group) + 1) * longest > batch_tokens or lengths[row] < SHORTEST_SHARE * longest):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def pad_rows(rows: Sequence[npt.NDArray[np.integer]], *, fill: int) -> Tensor:
    """Rows of different lengths as int64 [B, longest], filled on the right: causal models never look there."""
    padded = np.full((len(rows), max(len(row) for row in rows)), fill, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded)


@torch.inference_mode()
def token_losses(
    model: DecoderLM, inputs_BT: Tensor, targets_BT: Tensor, *, ctx: ForwardContext | None = None
) -> Tensor:
    """Negative log-likelihood of each target given the inputs up to its place, nats, fp32 [B, T'], on the CPU.

    inputs_BT: int64 [B, T]. targets_BT: int64 [B, T'], T' <= T: of the last T' places; target t is predicted from the
    inputs up to its place. ctx: of these inputs, to read what the mixers leave in it.
    """
    device, wanted = device_of(model), targets_BT.shape[1]
    last = None if wanted == inputs_BT.shape[1] else wanted
    hidden_ND = model.hidden(inputs_BT.to(device), ctx=ctx, last=last).flatten(0, 1)
    targets_N = targets_BT.to(device).flatten()
    head_VD = model.head.weight
    chunk = max(1, MAX_LOGITS // head_VD.shape[0])
    losses = [
        F.cross_entropy((hidden_ND[at : at + chunk] @ head_VD.T).float(), targets_N[at : at + chunk], reduction="none")
        for at in range(0, len(targets_N), chunk)
    ]
    return torch.cat(losses).view(targets_BT.shape).cpu()
