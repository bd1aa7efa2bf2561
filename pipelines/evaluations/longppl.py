"""LongPPL: perplexity over key tokens only, those that a long context makes predictable (PAPERS.md A.5).

Pooled over the texts: exp(sum of key tokens' losses / number of key tokens); texts with fewer than ``min_key_tokens``
are dropped and counted. No key token at all is an outcome (``no key tokens``), not a number. With a small evaluator of
the same grid, as in the quickstart, this is the method but not the paper's metric, whose evaluator is Llama-3.1-8B.

What the run's ``inputs`` may hold: evaluator_model (folder of the evaluating point's model), evaluator_data (its
prepared data, for its tokenizer; the evaluated model's when left out), evaluator_name (what stands for it in file
names, its fingerprint), corpus ({identity, location} of the settings' source), shared_folder (where key token files
lie, by content, for all points; this evaluation's own folder when left out).

Against the package ``longppl`` 0.3.0: same key tokens and same value, except that it counts a key token at the very
start of a text as the last token (here it has no loss and is left out), joins only slices that touch exactly, and
returns None without key tokens.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gridlaw.modules.data.prepare import open_prepared
from gridlaw.modules.data.sources import read_documents, resolve_source
from gridlaw.modules.data.tokenizers import Tokenizer
from gridlaw.pipelines.evaluations.key_tokens import KeyTokenFile, Slices, find_key_tokens, tokens_inside
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.pipelines.evaluations.settings import LongpplSettings
from gridlaw.pipelines.evaluations.statistics import Z_95, ratio_standard_error
from gridlaw.platform.errors import BadInput

NO_KEY_TOKENS = "no key tokens"


def compute(run: EvaluationRun) -> dict[str, Any]:
    """longppl, ppl of the same texts' tokens, counts; details say the outcome and the interval."""
    settings = run.settings
    length = settings.max_length or min(run.prepared.context, run.model_context)
    if length > run.model_context:
        raise BadInput(
            settings.field("max_length"), seen=length, allowed=f"at most {run.model_context}, the model's positions"
        )
    if settings.context >= length:
        raise BadInput(
            settings.field("context"),
            seen=settings.context,
            allowed=f"below the length of the texts, {length} tokens: a short context",
        )
    texts = make_texts(run, length)
    slices = shared_key_tokens(run, texts)
    sums = _text_sums(run, texts, slices, length)
    return _summarise(settings, sums)


def make_texts(run: EvaluationRun, length: int) -> list[str]:
    """Texts of at most ``length`` tokens of the evaluated model's tokenizer."""
    settings, tokenizer = run.settings, run.prepared.tokenizer
    texts: list[str] = []
    for document in _documents(run):
        for text in cut_text(document, tokenizer, length=length, split=settings.split):
            if len(texts) == settings.documents:
                return texts
            texts.append(text)
    if not texts:
        raise BadInput(settings.field("corpus"), seen=settings.corpus, allowed="at least one text")
    return texts


def cut_text(text: str, tokenizer: Tokenizer, *, length: int, split: bool) -> list[str]:
    """The first ``length`` tokens of a text; with ``split``, the further runs of so many tokens, too."""
    _, offsets = tokenizer.encode_with_offsets(text)
    if len(offsets) <= length:
        return [text]
    # Cut where a token starts a character of its own: a character of several tokens stays whole.
    starts = [0]
    while split and starts[-1] + length < len(offsets):
        starts.append(starts[-1] + length)
    ends = [*starts[1:], len(offsets)] if split else [length]
    return [
        text[int(offsets[start, 0]) : int(offsets[end, 0]) if end < len(offsets) else len(text)]
        for start, end in zip(starts, ends, strict=True)
    ]


def _documents(run: EvaluationRun) -> list[str]:
    settings = run.settings
    if settings.corpus is None:
        return [document.text for document in run.prepared.heldout_documents]
    given = run.inputs.get("corpus")
    if given is None:
        entry = {"source": settings.corpus, "text_column": settings.text_column}
        identity, location = resolve_source(entry, base_folder=Path.cwd(), field="evaluate.longppl")
    else:
        identity, location = given["identity"], given["location"]
    return list(read_documents(identity, location))


def shared_key_tokens(run: EvaluationRun, texts: list[str]) -> list[Slices]:
    """Key slices of each text, found once per evaluator, thresholds and texts and kept in a file."""
    settings = run.settings
    made_by = {
        "evaluator": run.inputs.get("evaluator_name", settings.evaluator),
        "revision": settings.evaluator_revision,
        **{name: getattr(settings, name) for name in ("context", "slide", "alpha", "beta")},
    }
    name = hashlib.sha256(json.dumps([made_by, texts], sort_keys=True).encode()).hexdigest()[:24]
    folder = Path(run.inputs.get("shared_folder") or run.work_folder)
    file = KeyTokenFile(folder / f"key-tokens-{name}.jsonl", made_by)
    opened: list[Any] = []

    def find(some: list[str]) -> list[Slices]:
        if not opened:
            opened.append(_evaluator(run))
        thresholds = {"alpha": settings.alpha, "beta": settings.beta}
        return find_key_tokens(opened[0], some, context=settings.context, slide=settings.slide, **thresholds)

    return file.complete(texts, find, report=run.report)


def _evaluator(run: EvaluationRun) -> Any:
    from gridlaw.pipelines.evaluations.evaluators import open_evaluator

    settings, own = run.settings, run.inputs.get("evaluator_model")
    if settings.evaluator_point is not None and own is None:
        raise BadInput(
            settings.field("evaluator"),
            seen=settings.evaluator,
            allowed="a finished point, a folder or a Hugging Face model",
            hint="Run the grid that has this point, or name a folder",
        )
    data = run.inputs.get("evaluator_data")
    evaluator = open_evaluator(
        settings.evaluator,
        revision=settings.evaluator_revision,
        own_model=own,
        tokenizer=(open_prepared(Path(data)) if data else run.prepared).tokenizer,
        device=run.device,
    )
    if settings.context + settings.slide > evaluator.max_length:
        raise BadInput(
            settings.field("context"),
            seen=f"{settings.context} + {settings.slide} (slide)",
            allowed=f"at most {evaluator.max_length}, the evaluator's positions",
        )
    return evaluator


def _text_sums(run: EvaluationRun, texts: list[str], slices: list[Slices], length: int) -> npt.NDArray[np.float64]:
    """Per text: sum of key losses, key tokens, sum of all losses, all predicted tokens: [texts, 4]."""
    from gridlaw.pipelines.evaluations.scoring import batches_by_length

    encoded = [run.prepared.tokenizer.encode_with_offsets(text) for text in texts]
    rows = [tokens[:length] for tokens, _ in encoded]
    # Token t's loss is at t - 1; the first token has none.
    keys = [
        [at - 1 for at in tokens_inside(offsets[:length], own) if at > 0]
        for (_, offsets), own in zip(encoded, slices, strict=True)
    ]
    sums = np.zeros((len(texts), 4))
    usable = [index for index, row in enumerate(rows) if len(row) > 1]
    for number, group in enumerate(batches_by_length([len(rows[index]) for index in usable])):
        chosen = [usable[at] for at in group]
        sums[chosen] = run.parts.get(
            f"batch-{number}", partial(_batch_sums, run, [rows[at] for at in chosen], [keys[at] for at in chosen])
        )
    return sums


def _batch_sums(run: EvaluationRun, rows: list[npt.NDArray[Any]], keys: list[list[int]]) -> list[list[float]]:
    from gridlaw.pipelines.evaluations.evaluators import OwnEvaluator

    model = OwnEvaluator(run.load(), run.prepared.tokenizer)
    losses = model.losses([row.astype(np.int64) for row in rows])
    return [
        [float(own[key].sum(dtype=np.float64)), len(key), float(own.sum(dtype=np.float64)), len(own)]
        for own, key in zip(losses, keys, strict=True)
    ]


def _summarise(settings: LongpplSettings, sums: npt.NDArray[np.float64]) -> dict[str, Any]:
    enough = sums[:, 1] >= settings.min_key_tokens
    kept = sums[enough]
    metrics: dict[str, float] = {
        "longppl_key_tokens": float(kept[:, 1].sum()),
        "longppl_texts": float(enough.sum()),
        "longppl_texts_dropped": float((~enough).sum()),
    }
    if sums[:, 3].sum():
        metrics["longppl_ppl"] = float(np.exp(sums[:, 2].sum() / sums[:, 3].sum()))
    details: dict[str, Any] = {"outcome": NO_KEY_TOKENS}
    if len(kept):
        log_value = kept[:, 0].sum() / kept[:, 1].sum()
        metrics["longppl"] = float(np.exp(log_value))
        details = {"outcome": "measured", "key_tokens_per_text": float(kept[:, 1].mean())}
        error = ratio_standard_error(kept[:, 0], kept[:, 1])
        if error is not None:
            low, high = np.exp([log_value - Z_95 * error, log_value + Z_95 * error])
            details["longppl"] = {"low": float(low), "high": float(high)}
    return {"metrics": metrics, "details": details, "num_samples": int(enough.sum())}
