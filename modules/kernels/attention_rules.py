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


def visible_mask(
    rules: Visibility,
    num_queries: int,
    num_keys: int,
    document_ids: Tensor | None = None,
    *,
    query_range: tuple[int, int] | None = None,
    key_positions: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """True where query t sees key s: [T, S], or [B, 1, T, S] with document_ids [B, num_keys].

    Queries are the last num_queries of the num_keys positions. query_range cuts out some of them (counted from the
    first query); key_positions, [S], picks keys.
    """
    start, stop = query_range or (0, num_queries)
    offset = num_keys - num_queries
    queries_T = torch.arange(offset + start, offset + stop, device=device)
    keys_S = torch.arange(num_keys, device=device) if key_positions is None else key_positions
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
