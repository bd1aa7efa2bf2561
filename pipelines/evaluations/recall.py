"""Multi-query associative recall by distance: which value stood beside this key? (Arora et al. 2023, arXiv 2312.04927)

Lines ``\\n key value`` stand evenly spread over held-out text; at its end each key is asked for by itself, from a copy
of the caches, so no answer can be found by excluding earlier ones. Values are different within a text and assigned to
keys at random: a model that does not connect key and value ranks the right one of ``pairs`` first in 1 / pairs of the
cases, exactly, also if it knows which values occurred. Such a model
answers alike for all keys of a text, so exactly one of them is right: its spread is below the binomial one, and the
interval and the sigmas told are on the wide side. Beside the ranking, the most likely token of the whole
vocabulary is compared. The same lines are what ``generate:mqar`` trains on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gridlaw.modules.data.arrow import list_rows, token_lists
from gridlaw.modules.data.generators import VALUES
from gridlaw.modules.data.needles import WordPool, haystack_of
from gridlaw.modules.data.tokenizers import Tokenizer
from gridlaw.modules.errors import BadSetting
from gridlaw.pipelines.evaluations.examples import DataRun, kept_examples
from gridlaw.pipelines.evaluations.niah import MAX_HAYSTACK_TOKENS, ranking_hits
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.pipelines.evaluations.statistics import sigmas_above_chance, wilson_interval

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RecallSample:
    """prompt [T]; questions [pairs, Q], each to be put after the prompt; values [pairs], the last token of each value;
    distances [pairs], tokens from a value to where it is asked for. Key i's value is values[i].
    """

    prompt: Ids
    questions: Ids
    values: Ids
    distances: Ids


class RecallMaker:
    """Makes samples; all keys have one token length, all values differ in their last token only."""

    def __init__(self, haystack: npt.NDArray[Any], words: WordPool, tokenizer: Tokenizer) -> None:
        self.haystack, self.words, self.tokenizer = haystack, words, tokenizer
        groups: dict[tuple[int, ...], list[int]] = {}
        for tokens in tokenizer.encode_many([" " + value for value in VALUES]):
            groups.setdefault(tuple(tokens[:-1].tolist()), []).append(int(tokens[-1]))
        self.prefix, self.values = max(groups.items(), key=lambda item: len(item[1]))

    def make(self, *, length: int, pairs: int, rng: np.random.Generator) -> RecallSample:
        """A text whose prompt, question and answer are exactly ``length`` tokens."""
        if pairs > len(self.values):
            raise BadSetting("recall pairs", seen=pairs, allowed=f"at most {len(self.values)}, values of one form")
        newline = self.tokenizer.encode("\n")
        keys = self.words.draw(pairs, rng)
        values = rng.choice(self.values, size=pairs, replace=False)
        questions = np.stack([np.concatenate([newline, key, self.prefix]) for key in keys]).astype(np.int64)
        line = questions.shape[1] + 1
        num_filler = length - 1 - pairs * (line + len(newline)) - line
        if not 0 <= num_filler <= len(self.haystack):
            raise BadSetting(
                "recall length",
                seen=length,
                allowed=f"{length - num_filler} to {length - num_filler + len(self.haystack)} tokens",
                hint="Change length or pairs",
            )
        start = int(rng.integers(len(self.haystack) - num_filler + 1))
        filler = np.array_split(self.haystack[start : start + num_filler], pairs)
        tokens, ends = [np.array([self.tokenizer.end_token_id])], []
        for question, value, straw in zip(questions, values, filler, strict=True):
            tokens.append(np.append(question, value))
            ends.append(sum(map(len, tokens)) - 1)
            tokens += [newline, straw]
        prompt = np.concatenate(tokens).astype(np.int64)
        assert len(prompt) + line == length, f"recall sample of {len(prompt) + line} tokens, {length} asked for"
        return RecallSample(prompt=prompt, questions=questions, values=values, distances=length - 1 - np.array(ends))


def make_samples(run: DataRun) -> list[RecallSample]:
    """The same samples for every model on these data and settings."""
    settings, prepared = run.settings, run.prepared
    settings.check_context(run.model_context)
    length = settings.length or run.context
    documents = prepared.heldout_documents
    maker = RecallMaker(
        haystack_of((document.tokens for document in documents), max_tokens=MAX_HAYSTACK_TOKENS),
        WordPool((document.text for document in documents), prepared.tokenizer),
        prepared.tokenizer,
    )
    return [
        maker.make(length=length, pairs=settings.pairs, rng=np.random.default_rng([settings.seed, number]))
        for number in range(settings.samples)
    ]


def examples(run: DataRun) -> list[RecallSample]:
    """The samples, kept once made."""
    table = kept_examples(run, _make_table)
    columns = {name: list_rows(table[name]) for name in ("prompt", "questions", "values", "distances")}
    return [
        RecallSample(
            prompt=prompt.astype(np.int64),
            questions=questions.astype(np.int64).reshape(run.settings.pairs, -1),
            values=values.astype(np.int64),
            distances=distances,
        )
        for prompt, questions, values, distances in zip(*columns.values(), strict=True)
    ]


def _make_table(run: DataRun, folder: Path) -> pa.Table:
    samples, dtype = make_samples(run), run.prepared.tokenizer.dtype
    run.report(len(samples), len(samples))
    tokens = {name: [getattr(sample, name).ravel() for sample in samples] for name in ("prompt", "questions", "values")}
    return pa.table(
        {
            **{name: token_lists(rows, dtype) for name, rows in tokens.items()},
            "distances": token_lists([sample.distances for sample in samples], np.dtype(np.int64)),
        }
    )


def compute(run: EvaluationRun) -> dict[str, Any]:
    """Accuracy by ranking and by the most likely token, intervals, chance; details: by distance."""
    from gridlaw.pipelines.evaluations.scoring import BATCH_TOKENS

    samples = examples(run)
    size = max(1, BATCH_TOKENS // len(samples[0].prompt))
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    hits: list[list[list[float]]] = []
    for number, group in enumerate(groups):
        hits += run.parts.get(f"batch-{number}", partial(_score_batch, run, group))
        run.report(len(hits), len(samples))
    return _summarise(samples, np.array(hits))


def _score_batch(run: EvaluationRun, samples: list[RecallSample]) -> list[list[list[float]]]:
    """[samples, pairs, (ranking hit, top token hit)]."""
    import torch

    from gridlaw.pipelines.evaluations.scoring import device_of

    model = run.load()
    device = device_of(model)
    prompts = torch.from_numpy(np.stack([sample.prompt for sample in samples])).to(device)
    questions = torch.from_numpy(np.stack([sample.questions for sample in samples])).to(device)
    values = torch.from_numpy(np.stack([sample.values for sample in samples])).to(device)
    columns = []
    with torch.inference_mode():
        cache = model.init_cache(len(samples), prompts.shape[1] + questions.shape[2])
        model.extend_hidden(prompts, cache)
        for pair in range(questions.shape[1]):
            hidden = model.extend_hidden(questions[:, pair], copy.deepcopy(cache))
            logits = model.head(hidden[:, -1])
            scores = logits.gather(1, values).double().cpu().numpy()
            ranked = ranking_hits(scores, np.full(len(samples), pair))
            top = (logits.argmax(dim=1) == values[:, pair]).double().cpu().numpy()
            columns.append(np.stack([ranked, top], axis=1))
    result: list[list[list[float]]] = np.stack(columns, axis=1).tolist()
    return result


def _summarise(samples: list[RecallSample], hits: npt.NDArray[np.float64]) -> dict[str, Any]:
    num_samples, pairs, _ = hits.shape
    trials, chance = num_samples * pairs, 1 / pairs
    metrics: dict[str, float] = {}
    for index, name in enumerate(("recall", "recall_generate")):
        low, high = wilson_interval(float(hits[:, :, index].sum()), trials)
        metrics |= {f"{name}_accuracy": float(hits[:, :, index].mean()), f"{name}_low": low, f"{name}_high": high}
    metrics["recall_chance"] = chance
    metrics["recall_sigmas"] = sigmas_above_chance(float(hits[:, :, 0].sum()), trials, chance)
    distances = np.mean([sample.distances for sample in samples], axis=0)
    by_distance = []
    for pair in np.argsort(distances).tolist():
        low, high = wilson_interval(float(hits[:, pair, 0].sum()), num_samples)
        by_distance.append(
            {
                "distance": float(distances[pair]),
                "accuracy": float(hits[:, pair, 0].mean()),
                "low": low,
                "high": high,
                "generate_accuracy": float(hits[:, pair, 1].mean()),
            }
        )
    interval = {"low": metrics["recall_low"], "high": metrics["recall_high"], "chance": chance}
    return {
        "metrics": metrics,
        "details": {"by_distance": by_distance, "samples_per_distance": num_samples, "recall_accuracy": interval},
        "num_samples": trials,
    }
