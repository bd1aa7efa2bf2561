"""Needle in a haystack over a depth × length grid: can the model say a value that stands somewhere in its context?

Two measures of the same samples. Ranking: the answer is the most likely of ``candidates`` values of equal token length;
the right one's place among them is random and independent of all else, so a model that ignores the needle scores
exactly 1 / candidates (a tie counts by its share). Generation: the greedy continuation is the answer, token by token.

Prompts are read once into caches, and every candidate and the generation go on from a copy of these. Needles, values
and haystack are held-out text; a sample's length includes the generated answer.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gridlaw.modules.data.arrow import list_rows, token_lists
from gridlaw.modules.data.needles import (
    NeedleMaker,
    NeedleSample,
    WordPool,
    depth_fractions,
    haystack_of,
    needle_grid,
)
from gridlaw.modules.errors import BadSetting
from gridlaw.pipelines.evaluations.examples import DataRun, kept_examples
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.pipelines.evaluations.settings import NiahSettings
from gridlaw.pipelines.evaluations.statistics import sigmas_above_chance, wilson_interval
from gridlaw.platform.errors import BadInput

if TYPE_CHECKING:
    import torch

    from gridlaw.modules.models.decoder import DecoderLM

MAX_HAYSTACK_TOKENS = 4 * 1024 * 1024
SHORTEST_LENGTH_SHARE = 0.25
"""Where an even spacing of lengths starts, as a share of the longest."""


def grid_lengths(settings: NiahSettings, *, context: int) -> list[int]:
    """Sample lengths in tokens, rising."""
    if isinstance(settings.lengths, tuple):
        lengths = sorted(settings.lengths)
    else:
        longest = settings.max_length or context
        if settings.lengths == 1:
            return [longest]
        spaced = np.linspace(longest * SHORTEST_LENGTH_SHARE, longest, settings.lengths)
        lengths = sorted({round(value) for value in spaced.tolist()})
    return lengths


def make_samples(run: DataRun) -> list[NeedleSample]:
    """The same for every model on these data and settings, shorter ones first."""
    settings, prepared = run.settings, run.prepared
    lengths = grid_lengths(settings, context=prepared.context)
    if lengths[-1] > run.model_context:
        raise BadInput(
            settings.field("lengths"), seen=lengths[-1], allowed=f"at most {run.model_context}, the model's positions"
        )
    documents = prepared.heldout_documents
    maker = NeedleMaker(
        haystack=haystack_of((document.tokens for document in documents), max_tokens=MAX_HAYSTACK_TOKENS),
        words=WordPool((document.text for document in documents), prepared.tokenizer),
        tokenizer=prepared.tokenizer,
    )
    try:
        return needle_grid(
            maker,
            lengths=lengths,
            num_depths=settings.depths,
            samples=settings.samples,
            candidates=settings.candidates,
            seed=settings.seed,
        )
    except BadSetting as error:
        raise BadInput(
            f"evaluate.{settings.name}: {error.field}", seen=error.seen, allowed=error.allowed, hint=error.hint
        ) from error


def examples(run: DataRun) -> list[NeedleSample]:
    """The samples, kept once made."""
    table = kept_examples(run, _make_table)
    columns = {name: list_rows(table[name]) for name in ("prompt", "candidates")}
    numbers = zip(*(table[name].to_pylist() for name in ("answer", "depth", "needle_at")), strict=True)
    return [
        NeedleSample(
            prompt=prompt.astype(np.int64),
            candidates=candidates.astype(np.int64).reshape(run.settings.candidates, -1),
            answer=answer,
            depth=depth,
            needle_at=needle_at,
        )
        for prompt, candidates, (answer, depth, needle_at) in zip(
            columns["prompt"], columns["candidates"], numbers, strict=True
        )
    ]


def _make_table(run: DataRun, folder: Path) -> pa.Table:
    samples, dtype = make_samples(run), run.prepared.tokenizer.dtype
    run.report(len(samples), len(samples))
    return pa.table(
        {
            "prompt": token_lists([sample.prompt for sample in samples], dtype),
            "candidates": token_lists([sample.candidates.ravel() for sample in samples], dtype),
            **{name: [getattr(sample, name) for sample in samples] for name in ("answer", "depth", "needle_at")},
        }
    )


def compute(run: EvaluationRun) -> dict[str, Any]:
    """Accuracies, their intervals and chance; details: the grid of both measures, lengths × depths."""
    from gridlaw.pipelines.evaluations.scoring import BATCH_TOKENS

    samples = examples(run)
    lengths = grid_lengths(run.settings, context=run.prepared.context)
    ranks, generated = np.zeros(len(samples)), np.zeros(len(samples))
    groups = group_samples(samples, batch_tokens=BATCH_TOKENS)
    done = 0
    for number, group in enumerate(groups):
        chosen = [samples[index] for index in group]
        result = run.parts.get(f"batch-{number}", partial(_score, run, chosen))
        ranks[group], generated[group] = result
        done += len(group)
        run.report(done, len(samples))
    return _summarise(run.settings, lengths, ranks, generated)


def _score(run: EvaluationRun, samples: list[NeedleSample]) -> list[list[float]]:
    return score_batch(run.load(), samples)


def group_samples(samples: list[NeedleSample], *, batch_tokens: int) -> list[list[int]]:
    """Samples of equal prompt and answer lengths together: their caches are in step, no padding is needed."""
    kinds: dict[tuple[int, int], list[int]] = {}
    for index, sample in enumerate(samples):
        kinds.setdefault((sample.length, sample.candidates.shape[1]), []).append(index)
    groups = []
    for (length, _), members in sorted(kinds.items()):
        size = max(1, batch_tokens // length)
        groups += [members[start : start + size] for start in range(0, len(members), size)]
    return groups


def score_batch(model: DecoderLM, samples: list[NeedleSample]) -> list[list[float]]:
    """[ranking hits, generation hits] of samples with equal prompt and answer lengths."""
    import torch

    from gridlaw.pipelines.evaluations.scoring import device_of

    prompts = torch.from_numpy(np.stack([sample.prompt for sample in samples])).to(device_of(model))
    candidates = torch.from_numpy(np.stack([sample.candidates for sample in samples])).to(device_of(model))
    answers = np.array([sample.answer for sample in samples])
    with torch.inference_mode():
        cache = model.init_cache(len(samples), prompts.shape[1] + candidates.shape[2])
        # The head is applied to the last place only: logits of a long prompt would not fit.
        logits = model.head(model.extend_hidden(prompts, cache)[:, -1])
        scores = _candidate_scores(model, cache, logits, candidates)
        generation = _greedy(model, cache, logits, candidates.shape[2])
    right = candidates[torch.arange(len(samples)), torch.from_numpy(answers).to(candidates.device)]
    return [ranking_hits(scores, answers).tolist(), (generation == right).all(dim=1).double().tolist()]


def ranking_hits(scores: npt.NDArray[np.float64], answers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """1 where the answer has the highest score alone, 1/k where it shares it with k - 1 others, else 0.

    scores: [samples, candidates]. A score that is not a number counts as the lowest.
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)
    best = scores == scores.max(axis=1, keepdims=True)
    return best[np.arange(len(answers)), answers] / best.sum(axis=1)


def _candidate_scores(
    model: DecoderLM, cache: Any, logits_BV: torch.Tensor, candidates_BCA: torch.Tensor
) -> npt.NDArray[np.float64]:
    """Log-likelihood of each candidate after the prompt, [B, C]."""
    import torch

    first = torch.log_softmax(logits_BV.float(), dim=-1).gather(1, candidates_BCA[:, :, 0])
    columns = []
    for index in range(candidates_BCA.shape[1]):
        tokens = candidates_BCA[:, index]
        score = first[:, index].double()
        if tokens.shape[1] > 1:
            following = model.extend(tokens[:, :-1], copy.deepcopy(cache))
            steps = torch.log_softmax(following.float(), dim=-1).gather(2, tokens[:, 1:, None])
            score = score + steps.squeeze(2).double().sum(dim=1)
        columns.append(score)
    return torch.stack(columns, dim=1).cpu().numpy()


def _greedy(model: DecoderLM, cache: Any, logits_BV: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The most likely continuation, token by token, int64 [B, num_tokens]; uses the cache up."""
    import torch

    token = logits_BV.argmax(dim=-1, keepdim=True)
    made = [token]
    for _ in range(num_tokens - 1):
        token = model.extend(token, cache)[:, -1].argmax(dim=-1, keepdim=True)
        made.append(token)
    return torch.cat(made, dim=1)


def _summarise(
    settings: NiahSettings,
    lengths: list[int],
    ranks: npt.NDArray[np.float64],
    generated: npt.NDArray[np.float64],
) -> dict[str, Any]:
    shape = (len(lengths), settings.depths, settings.samples)
    trials, chance = len(ranks), 1 / settings.candidates
    metrics: dict[str, float] = {}
    for name, hits in (("niah_rank", ranks), ("niah_generate", generated)):
        low, high = wilson_interval(float(hits.sum()), trials)
        metrics |= {f"{name}_accuracy": float(hits.mean()), f"{name}_low": low, f"{name}_high": high}
    ranked = {"low": metrics["niah_rank_low"], "high": metrics["niah_rank_high"], "chance": chance}
    metrics["niah_rank_chance"] = chance
    metrics["niah_rank_sigmas"] = sigmas_above_chance(float(ranks.sum()), trials, chance)
    return {
        "metrics": metrics,
        "details": {
            "lengths": lengths,
            "depths": depth_fractions(settings.depths),
            "rank_grid": ranks.reshape(shape).mean(axis=2).tolist(),
            "generate_grid": generated.reshape(shape).mean(axis=2).tolist(),
            "samples_per_cell": settings.samples,
            "chance": chance,
            "niah_rank_accuracy": ranked,
            "niah_generate_accuracy": {"low": metrics["niah_generate_low"], "high": metrics["niah_generate_high"]},
        },
        "num_samples": trials,
    }
