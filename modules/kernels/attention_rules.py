"""Which keys a query sees: one definition for all attention kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """window: tokens visible, the current one included, None for all. first_tokens: keys a window never hides."""

    window: int | None = None
    first_tokens: int = 0


def query_places(q: Tensor, k: Tensor) -> Tensor:
    """Where the queries stand among the keys when they are the last ones, [T]; q [B, T, ...], k [B, S, ...]."""
    return torch.arange(k.shape[1] - q.shape[1], k.shape[1], device=q.device)


def visible_mask(rules: Visibility, queries_T: Tensor, keys_S: Tensor, document_ids: Tensor | None = None) -> Tensor:
    """True where query t sees key s: [T, S], or [B, 1, T, S] with document_ids.

    queries_T, keys_S: their places in the sequence. document_ids: [B, whole sequence].
    """
    distance_TS = queries_T[:, None] - keys_S[None, :]
    causal_TS = distance_TS >= 0
    if document_ids is None:
        if rules.window is None:
            return causal_TS
        return causal_TS & ((distance_TS < rules.window) | (keys_S < rules.first_tokens)[None, :])
    query_ids, key_ids = document_ids[:, queries_T], document_ids[:, keys_S]
    visible_BTS = causal_TS & (query_ids[:, :, None] == key_ids[:, None, :])
    if rules.window is not None:
        near = distance_TS < rules.window
        first = position_in_document(document_ids)[:, keys_S] < rules.first_tokens
        visible_BTS = visible_BTS & (near | first[:, None, :])
    return visible_BTS[:, None]


def position_in_document(document_ids: Tensor) -> Tensor:
    """Tokens since the document's first one, [B, S] from document_ids [B, S]."""
    positions = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)
    starts = torch.zeros_like(positions)
    starts[:, 1:] = torch.where(document_ids[:, 1:] != document_ids[:, :-1], positions[:, 1:], 0)
    return positions - starts.cummax(1).values
