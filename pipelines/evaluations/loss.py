"""Held-out loss: mean negative log-likelihood per token, documents never packed together.

A document is cut into consecutive pieces of at most ``context`` targets. Its first token is predicted from an
end-of-document token, as in training; the first token of a later piece from the token before it, which is all of the
past that the piece sees. Every token of a document is so a target exactly once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gridlaw.modules.data.prepare import HeldoutDocument
from gridlaw.modules.data.sampling import window_indices
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.pipelines.evaluations.statistics import Z_95, ratio_standard_error
from gridlaw.platform.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Targets [start, stop) of a document."""

    document: int
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        """Targets."""
        return self.stop - self.start


def cut_pieces(lengths: list[int], *, context: int, max_tokens: int | None) -> list[Piece]:
    """Pieces of documents of these lengths, in order; with ``max_tokens``, a fixed random choice of about so many.

    The choice depends on the lengths alone, so all models are measured on the same tokens.
    """
    pieces = [
        Piece(document=document, start=start, stop=min(start + context, length))
        for document, length in enumerate(lengths)
        for start in range(0, length, context)
    ]
    if max_tokens is None or sum(lengths) <= max_tokens:
        return pieces
    order = window_indices(0, "heldout-loss-1", len(pieces), np.arange(len(pieces)))
    chosen, taken = [], 0
    for index in order.tolist():
        if taken >= max_tokens:
            break
        chosen.append(index)
        taken += pieces[index].num_tokens
    return [pieces[index] for index in sorted(chosen)]


def position_edges(context: int) -> list[int]:
    """Edges of the position buckets: 0, 16, 32, 64, … doubling up to ``context``."""
    edges = [0]
    edge = 16
    while edge < context:
        edges.append(edge)
        edge *= 2
    return [*edges, context]


def heldout_pieces(run: EvaluationRun) -> tuple[int, list[HeldoutDocument], list[Piece]]:
    """(context, documents, pieces) by the settings documents, tokens and context: one choice for all models."""
    settings, prepared = run.settings, run.prepared
    context = settings.context or prepared.context
    if context > run.model_context:
        raise BadInput(
            settings.field("context"), seen=context, allowed=f"at most {run.model_context}, the model's positions"
        )
    documents = [document for document in prepared.heldout_documents[: settings.documents] if len(document.tokens)]
    lengths = [len(document.tokens) for document in documents]
    return context, documents, cut_pieces(lengths, context=context, max_tokens=settings.tokens)


def compute(run: EvaluationRun) -> dict[str, Any]:
    """loss (nats per token), bits_per_byte, loss_stderr over documents; details: loss by position and by document."""
    context, documents, pieces = heldout_pieces(run)
    edges = position_edges(context)
    sums = _piece_sums(run, documents, pieces, edges)
    return _summarise(documents, pieces, edges, sums)


def _piece_sums(
    run: EvaluationRun, documents: list[HeldoutDocument], pieces: list[Piece], edges: list[int]
) -> npt.NDArray[np.float64]:
    """Sum of losses by piece and position bucket, [pieces, buckets], batch by batch, each kept when done."""
    from gridlaw.pipelines.evaluations.scoring import batches_by_length

    sums = np.zeros((len(pieces), len(edges) - 1))
    groups, done = list(batches_by_length([piece.num_tokens for piece in pieces])), 0
    for number, group in enumerate(groups):
        rows = [(documents[pieces[index].document], pieces[index]) for index in group]
        sums[group] = run.parts.get(f"batch-{number}", partial(_batch_sums, run, rows, edges))
        done += len(group)
        run.report(done, len(pieces))
    return sums


def rows_of(
    run: EvaluationRun, rows: list[tuple[HeldoutDocument, Piece]]
) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]]:
    """(inputs, targets) of pieces: a document's first target follows an end-of-document token."""
    inputs, targets = [], []
    for document, piece in rows:
        before = document.tokens[piece.start - 1] if piece.start else run.prepared.end_token_id
        inputs.append(np.concatenate([[before], document.tokens[piece.start : piece.stop - 1]]))
        targets.append(document.tokens[piece.start : piece.stop])
    return inputs, targets


def _batch_sums(run: EvaluationRun, rows: list[tuple[HeldoutDocument, Piece]], edges: list[int]) -> list[list[float]]:
    from gridlaw.pipelines.evaluations.scoring import pad_rows, token_losses

    inputs, targets = rows_of(run, rows)
    losses = token_losses(run.load(), pad_rows(inputs, fill=0), pad_rows(targets, fill=0)).numpy().astype(np.float64)
    lengths = [len(row) for row in targets]
    return [
        [float(row[start:stop][: max(0, length - start)].sum()) for start, stop in pairwise(edges)]
        for row, length in zip(losses, lengths, strict=True)
    ]


def _summarise(
    documents: list[HeldoutDocument], pieces: list[Piece], edges: list[int], sums: npt.NDArray[np.float64]
) -> dict[str, Any]:
    lengths = np.array([piece.num_tokens for piece in pieces])
    counts = np.clip(lengths[:, None] - np.array(edges[:-1]), 0, np.diff(edges))
    owner = np.array([piece.document for piece in pieces])
    by_document: npt.NDArray[Any] = np.bincount(owner, weights=sums.sum(axis=1), minlength=len(documents))
    tokens_by_document: npt.NDArray[Any] = np.bincount(owner, weights=lengths, minlength=len(documents))
    # A document that is measured in part stands for that part of its bytes (exact for bytes and for whole documents).
    sizes = np.array([document.num_bytes for document in documents], dtype=np.float64)
    shares = tokens_by_document / np.array([len(document.tokens) for document in documents])
    seen = tokens_by_document > 0
    total, num_tokens = by_document.sum(), int(lengths.sum())
    error = ratio_standard_error(by_document[seen], tokens_by_document[seen])
    metrics = {"loss": total / num_tokens, "bits_per_byte": total / math.log(2) / (sizes * shares).sum()}
    details: dict[str, Any] = {"documents": int(seen.sum()), "tokens": num_tokens}
    if error is not None:
        metrics["loss_stderr"] = error
        details["loss"] = {"low": float(metrics["loss"] - Z_95 * error), "high": float(metrics["loss"] + Z_95 * error)}
    by_position = [
        {"from": start, "to": stop, "loss": float(part / count), "tokens": int(count)}
        for start, stop, part, count in zip(edges[:-1], edges[1:], sums.sum(axis=0), counts.sum(axis=0), strict=True)
        if count
    ]
    return {
        "metrics": {name: float(value) for name, value in metrics.items()},
        "details": {**details, "by_position": by_position},
        "num_samples": num_tokens,
    }
