"""What the chunked recurrences share: cutting time into chunks, and decays between positions of one chunk.

Shapes: B batch, T time, N chunks, C positions in a chunk, H heads (or groups of heads).

Decays are products of gates in (0, 1]. They are kept as sums of logs and only differences that are <= 0 are ever
exponentiated, so nothing overflows. The running sum is made in fp64 and split into a coarse and a fine fp32 part: with
strong gates the sum grows to thousands, where one fp32 number could no longer tell neighbouring positions apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST_DECAY = 1e-30  # of fp32's 1e-38, so that products with ordinary numbers stay normal, too


@dataclass(frozen=True, kw_only=True)
class Decays:
    """Decay factors of every chunk.

    from_start: what is left at position t of the state before the chunk, gate of t included, [N, B, H, C]
    to_end: what is left at the chunk's end of what was written at s, [N, B, H, C]
    whole: what is left at the chunk's end of the state before it, [N, B, H]
    between: what is left at t of what was written at s; 0 for s > t, 1 for s = t, [N, B, H, C, C] as [t, s]
    """

    from_start: Tensor
    to_end: Tensor
    whole: Tensor
    between: Tensor


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """fp64 if any input is fp64, else fp32: states and gates are never kept in less."""
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def split(x: Tensor, chunk_size: int, dtype: torch.dtype) -> Tensor:
    """x: [B, T, H, ...] → [N, B, H, C, ...], a view where it can be, zeros after the end of time."""
    time = x.shape[1]
    num_chunks = -(-time // chunk_size)
    x = x.to(dtype)
    if num_chunks * chunk_size != time:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, num_chunks * chunk_size - time))
    x = x.unflatten(1, (num_chunks, chunk_size))
    return x.transpose(0, 1).transpose(2, 3)


def join(x: Tensor, time: int, dtype: torch.dtype) -> Tensor:
    """x: [N, B, H, C, ...] → contiguous [B, T, H, ...]: the inverse of `split`."""
    x = x.transpose(2, 3).transpose(0, 1).to(dtype)
    return x.flatten(1, 2)[:, :time].contiguous()


def split_segments(document_ids: Tensor | None, chunk_size: int) -> Tensor | None:
    """document_ids: [B, T] → number of document starts seen so far in the chunk, [N, B, 1, C].

    A document starts where the id differs from the one before it. Position 0 of the sequence starts none: an initial
    state belongs to the first document.
    """
    if document_ids is None:
        return None
    starts = torch.zeros_like(document_ids, dtype=torch.int32)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    batch, time = starts.shape
    num_chunks = -(-time // chunk_size)
    starts = F.pad(starts, (0, num_chunks * chunk_size - time)).view(batch, num_chunks, 1, chunk_size)
    return starts.transpose(0, 1).cumsum(-1, dtype=torch.int32)


def decays(
    log_gate_NBHC: Tensor, segment_NB1C: Tensor | None, dtype: torch.dtype, *, same_gates: bool = False
) -> Decays:
    """Decay factors from the log of the gate that is applied before position t is written, <= 0.

    segment: from `split_segments`, or None
    same_gates: every chunk has the gates of the first (but for padding, which writes nothing): `between` is then made
        once and has N = 1, unless there are segments.
    """
    total = _running_sum(log_gate_NBHC)
    last = total[..., -1:]
    from_start, to_end, whole = (_factor(x.clone()).to(dtype) for x in (total, last - total, last[..., 0]))
    between = _between(total[:1] if same_gates else total, dtype)
    if segment_NB1C is not None:
        last_segment = segment_NB1C[..., -1:]
        from_start = from_start * (segment_NB1C == 0)
        to_end = to_end * (segment_NB1C == last_segment)
        whole = whole * (last_segment[..., 0] == 0)
        between = between * (segment_NB1C[..., :, None] == segment_NB1C[..., None, :])
    return Decays(from_start=from_start, to_end=to_end, whole=whole, between=between)


def _running_sum(x: Tensor, *, from_end: bool = False) -> Tensor:
    """Running sums over the last dim in fp64, by a product with a triangle of ones.

    torch refuses cumsum of floats on CUDA where algorithms must be deterministic, as they must in training.
    """
    ones = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.float64, device=x.device)
    return x.double() @ (ones.tril_() if from_end else ones.triu_())


def _between(total: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(total_t - total_s) for s <= t, else 0, [..., t, s]: masked before the exponential, which cannot overflow."""
    chunk_size = total.shape[-1]
    coarse = total.to(dtype)
    between = coarse[..., :, None] - coarse[..., None, :]
    if dtype != torch.float64:
        fine = (total - coarse).to(dtype)
        between += fine[..., :, None] - fine[..., None, :]
    future = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=total.device).triu_(1)
    return _factor(between.masked_fill_(future, float("-inf")))


def _factor(log_decay: Tensor) -> Tensor:
    """exp, with 0 for what is too small to matter, in place.

    Left alone, strong decays would be subnormal numbers, with which a CPU multiplies a hundred times slower.
    """
    return torch.threshold_(log_decay.exp_(), SMALLEST_DECAY, 0.0)


def gate_pairs(scores: Tensor, d_scores: Tensor) -> Tensor:
    """scores * d_scores without the diagonal, [..., C, C]: what every pair adds to the gates between its positions.

    A position's own score has no gate in it. Left in, it would cancel only up to rounding, which drowns the gradient
    of gates that forget nearly everything.
    """
    pairs = scores * d_scores
    pairs.diagonal(dim1=-2, dim2=-1).zero_()
    return pairs


def log_gate_gradient(
    decay: Decays, d_from_start: Tensor, d_to_end: Tensor, d_whole: Tensor, pair_rows: Tensor, pair_columns: Tensor
) -> Tensor:
    """Gradient of the log gates, [N, B, H, C], from gradients of the factors in `decay`.

    pair_rows, pair_columns: sums over s and over t of between * d_between, [N, B, H, C].
    """
    to_end = decay.to_end * d_to_end
    d_total = pair_rows - pair_columns + decay.from_start * d_from_start - to_end
    d_total[..., -1] += to_end.sum(-1) + decay.whole * d_whole
    return _running_sum(d_total, from_end=True).to(d_total.dtype)
