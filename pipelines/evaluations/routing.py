"""Where a model takes full attention: by layer, position and token loss on held-out text, and while answering needles.

``full_ratio`` is the mean over layers and held-out tokens. Layers with a fixed pattern count with their fixed share
(full 1, window 0, half of the heads 0.5, recurrent 0), so that static hybrids stand in the same table; a model of such
layers alone is not run at all. For a layer that chooses (switch) it is the share of tokens that took its full branch;
for duo it is the share of KV heads. The token at a place decides by itself, so its loss is that of the next token.

Needles are answered as in decoding: the prompt is read into a cache and the answer generated greedily; the prompt's
last token and all generated ones but the last are counted, since they predict the answer's tokens. The needle is near
if the window of the prompt's last token holds all of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gridlaw.modules.data.needles import NeedleSample, depth_fractions
from gridlaw.modules.data.prepare import HeldoutDocument
from gridlaw.modules.models.config import ModelConfig
from gridlaw.pipelines.evaluations.loss import Piece, heldout_pieces, position_edges, rows_of
from gridlaw.pipelines.evaluations.niah import group_samples, make_samples
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.pipelines.evaluations.settings import RoutingNeedles
from gridlaw.pipelines.evaluations.statistics import Z_95, ratio_standard_error

if TYPE_CHECKING:
    from gridlaw.modules.models.decoder import DecoderLM

Floats = npt.NDArray[np.float64]
LOSS_EDGES = (0.0, 0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 1e9)
"""Bins of the next token's loss, nats."""


def compute(run: EvaluationRun) -> dict[str, Any]:
    """full_ratio and full_ratio/LAYER, with full_ratio_near and _far of the needles; details: what figures show."""
    config = ModelConfig.from_dict(run.model_config)
    fixed = [spec.fixed_full_ratio(config.scale) for spec in config.mixers()]
    if all(share is not None for share in fixed):
        by_layer = [float(share) for share in fixed if share is not None]
        run.report(1, 1)
        return _result(by_layer, {"fixed": True}, num_samples=0)
    context, documents, pieces = heldout_pieces(run)
    needle_groups = _needle_groups(run)
    sums = _heldout(run, documents, pieces, position_edges(context), len(needle_groups))
    by_layer, details, error = _summarise(documents, pieces, position_edges(context), sums)
    result = _result(by_layer, details, num_samples=sum(piece.num_tokens for piece in pieces))
    metrics, mean = result["metrics"], result["metrics"]["full_ratio"]
    if error is not None:
        metrics["full_ratio_stderr"] = error
        bounds = {"low": max(0.0, mean - Z_95 * error), "high": min(1.0, mean + Z_95 * error)}
        result["details"]["full_ratio"] = bounds
    if needle_groups:
        window = min(window for spec in config.mixers() if (window := getattr(spec, "window", None)) is not None)
        result["details"]["needles"], answering = _needles(run, needle_groups, window)
        metrics |= answering
    return result


def _result(by_layer: list[float], details: dict[str, Any], *, num_samples: int) -> dict[str, Any]:
    metrics = {"full_ratio": float(np.mean(by_layer))}
    metrics |= {f"full_ratio/{layer}": share for layer, share in enumerate(by_layer)}
    return {"metrics": metrics, "details": {"by_layer": by_layer, **details}, "num_samples": num_samples}


# Held-out text


def _heldout(
    run: EvaluationRun, documents: list[HeldoutDocument], pieces: list[Piece], edges: list[int], more: int
) -> dict[str, Floats]:
    """Sums of shares over tokens: by piece and layer, by position and layer, by loss and layer, and tokens by loss."""
    from gridlaw.pipelines.evaluations.scoring import batches_by_length

    layers = len(run.model_config["layers"])
    bins = len(LOSS_EDGES) - 1
    sums = {
        "piece": np.zeros((len(pieces), layers)),
        "position": np.zeros((len(edges) - 1, layers)),
        "loss": np.zeros((bins, layers)),
        "loss_tokens": np.zeros(bins),
    }
    groups = list(batches_by_length([piece.num_tokens for piece in pieces]))
    for number, group in enumerate(groups):
        rows = [(documents[pieces[index].document], pieces[index]) for index in group]
        part = run.parts.get(f"batch-{number}", partial(_batch, run, rows, edges))
        sums["piece"][group] = part["piece"]
        for key in ("position", "loss", "loss_tokens"):
            sums[key] += part[key]
        run.report(number + 1, len(groups) + more)
    return sums


def _batch(run: EvaluationRun, rows: list[tuple[HeldoutDocument, Piece]], edges: list[int]) -> dict[str, Any]:
    from gridlaw.pipelines.evaluations.scoring import device_of, pad_rows, token_losses

    model = run.load()
    inputs, targets = (pad_rows(each, fill=0) for each in rows_of(run, rows))
    ctx = model.context_for(inputs.to(device_of(model)))
    losses_BT = token_losses(model, inputs, targets, ctx=ctx).numpy()
    shares_BTL = _shares(model, ctx, inputs.shape)
    lengths = np.array([piece.num_tokens for _, piece in rows])
    is_token_BT = np.arange(inputs.shape[1]) < lengths[:, None]
    shares_BTL[~is_token_BT] = 0.0
    bin_BT = np.clip(np.digitize(losses_BT, LOSS_EDGES) - 1, 0, len(LOSS_EDGES) - 2)
    by_loss = [shares_BTL[(bin_BT == each) & is_token_BT].sum(0).tolist() for each in range(len(LOSS_EDGES) - 1)]
    return {
        "piece": shares_BTL.sum(1).tolist(),
        "position": [shares_BTL[:, start:stop].sum((0, 1)).tolist() for start, stop in pairwise(edges)],
        "loss": by_loss,
        "loss_tokens": np.bincount(bin_BT[is_token_BT], minlength=len(LOSS_EDGES) - 1).tolist(),
    }


def _shares(model: DecoderLM, ctx: Any, shape: tuple[int, ...]) -> Floats:
    """Share of full attention per token and layer, [B, T, L]."""
    shares = [share.double().cpu().expand(shape).numpy() for share in model.full_shares(ctx)]
    return np.stack(shares, axis=-1).astype(np.float64)


def _summarise(
    documents: list[HeldoutDocument], pieces: list[Piece], edges: list[int], sums: dict[str, Floats]
) -> tuple[list[float], dict[str, Any], float | None]:
    lengths = np.array([piece.num_tokens for piece in pieces])
    owner = np.array([piece.document for piece in pieces])
    by_document: Any = np.bincount(owner, weights=sums["piece"].mean(1), minlength=len(documents))
    tokens: Any = np.bincount(owner, weights=lengths, minlength=len(documents))
    seen = tokens > 0
    counts = np.clip(lengths[:, None] - np.array(edges[:-1]), 0, np.diff(edges)).sum(0)
    return (
        (sums["piece"].sum(0) / lengths.sum()).tolist(),
        {
            "documents": int(seen.sum()),
            "tokens": int(lengths.sum()),
            "by_position": _bins(edges, counts, sums["position"]),
            "by_loss": _bins(LOSS_EDGES, sums["loss_tokens"], sums["loss"]),
        },
        ratio_standard_error(by_document[seen], tokens[seen]),
    )


def _bins(edges: Any, counts: Any, sums: Floats) -> list[dict[str, Any]]:
    """Bins that hold tokens, with the mean share over layers and by layer."""
    return [
        {
            "from": start, "to": stop, "tokens": int(count),
            "full_ratio": float(row.mean() / count), "by_layer": (row / count).tolist(),
        }
        for (start, stop), count, row in zip(pairwise(edges), counts, sums, strict=True)
        if count
    ]  # fmt: skip


# Needles


def _needle_groups(run: EvaluationRun) -> list[tuple[list[int], list[NeedleSample]]]:
    """(indices, samples) that are answered together; none where no needles are asked for."""
    from gridlaw.pipelines.evaluations.scoring import BATCH_TOKENS

    if run.settings.needles is None:
        return []
    samples = make_samples(replace(run, settings=RoutingNeedles.read(run.settings.needles)))
    groups = group_samples(samples, batch_tokens=BATCH_TOKENS)
    return [(group, [samples[index] for index in group]) for group in groups]


def _needles(
    run: EvaluationRun, groups: list[tuple[list[int], list[NeedleSample]]], window: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Details (grids, lengths × depths) and metrics."""
    settings = RoutingNeedles.read(run.settings.needles)
    lengths = sorted({sample.length for _, samples in groups for sample in samples})
    count = sum(len(group) for group, _ in groups)
    shares = np.zeros((count, len(run.model_config["layers"])))
    hits, is_near = np.zeros(count), np.zeros(count, dtype=bool)
    for number, (group, samples) in enumerate(groups):
        part = run.parts.get(f"needles-{number}", partial(_answer, run, samples))
        shares[group], hits[group] = part["shares"], part["hits"]
        is_near[group] = [len(sample.prompt) - sample.needle_at <= window for sample in samples]
        run.report(number + 1, len(groups))
    shape = (len(lengths), settings.depths, settings.samples)
    mean = shares.mean(1)
    details = {
        "lengths": lengths,
        "depths": depth_fractions(settings.depths),
        "samples_per_cell": settings.samples,
        "window": window,
        "full_ratio_grid": mean.reshape(shape).mean(2).tolist(),
        "answered_grid": hits.reshape(shape).mean(2).tolist(),
        "near_grid": is_near.reshape(shape).mean(2).tolist(),
        "by_layer": shares.mean(0).tolist(),
    }
    metrics = {"full_ratio_answering": float(mean.mean()), "routing_answered": float(hits.mean())}
    for name, chosen in (("near", is_near), ("far", ~is_near)):
        if chosen.any():
            metrics[f"full_ratio_{name}"] = float(mean[chosen].mean())
    return details, metrics


def _answer(run: EvaluationRun, samples: list[NeedleSample]) -> dict[str, Any]:
    """Shares by sample and layer while the answer is generated, and whether it is right."""
    import torch

    from gridlaw.pipelines.evaluations.scoring import device_of

    model = run.load()
    prompts = torch.from_numpy(np.stack([sample.prompt for sample in samples])).to(device_of(model))
    answers = np.stack([sample.candidates[sample.answer] for sample in samples])
    cache = model.init_cache(len(samples), prompts.shape[1] + answers.shape[1])
    tokens, taken, made = prompts, [], []
    with torch.inference_mode():
        for _ in range(answers.shape[1]):
            ctx = model.context_for(tokens, position=cache.length)
            hidden = model.extend_hidden(tokens, cache, ctx=ctx)
            taken.append(_shares(model, ctx, tokens.shape)[:, -1])
            tokens = model.head(hidden[:, -1:]).argmax(-1)
            made.append(tokens)
    right = (torch.cat(made, 1).cpu().numpy() == answers).all(1)
    return {"shares": np.mean(taken, axis=0).tolist(), "hits": right.astype(float).tolist()}
