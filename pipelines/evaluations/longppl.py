"""LongPPL: perplexity over key tokens only, those that a long context makes predictable (PAPERS.md A.5).

Pooled over the texts: exp(sum of key tokens' losses / number of key tokens); texts with fewer than ``min_key_tokens``
are dropped and counted. No key token at all is an outcome (``no key tokens``), not a number. With a small evaluator of
the same grid, as in the quickstart, this is the method but not the paper's metric, whose evaluator is Llama-3.1-8B.

Against the package ``longppl`` 0.3.0: same key tokens and same value, except that it counts a key token at the very
start of a text as the last token (here it has no loss and is left out), joins only slices that touch exactly, and
returns None without key tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gridlaw.modules.data.arrow import list_rows, token_lists
from gridlaw.modules.data.prepare import open_prepared
from gridlaw.modules.data.sources import read_documents, resolve_source
from gridlaw.modules.data.tokenizers import Tokenizer
from gridlaw.pipelines.evaluations.examples import DataRun, kept_examples
from gridlaw.pipelines.evaluations.key_tokens import KeyTokenFile, Slices, find_key_tokens, tokens_inside
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.pipelines.evaluations.settings import LongpplSettings
from gridlaw.pipelines.evaluations.statistics import Z_95, ratio_standard_error
from gridlaw.platform.errors import BadInput

NO_KEY_TOKENS = "no key tokens"
KEY_TOKENS_FILE = "key-tokens.jsonl"

Example = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Tokens of a text for the evaluated model, and the places of its key tokens' losses: token t's loss is at t - 1."""


def compute(run: EvaluationRun) -> dict[str, Any]:
    """longppl, ppl of the same texts' tokens, counts; details say the outcome and the interval."""
    return _summarise(run.settings, _text_sums(run, examples(run)))


def examples(run: DataRun) -> list[Example]:
    """The texts as the evaluated model reads them, with their key tokens; kept once made."""
    table = kept_examples(run, _make_table)
    tokens, keys = (list_rows(table[name]) for name in ("tokens", "keys"))
    return [(own.astype(np.int64), key) for own, key in zip(tokens, keys, strict=True)]


def _make_table(run: DataRun, folder: Path) -> pa.Table:
    settings, tokenizer = run.settings, run.prepared.tokenizer
    settings.check_context(run.model_context if settings.max_length else run.context)
    length = settings.length(run.context)
    texts = make_texts(run, length)
    slices = key_slices(run, texts, folder)
    rows, keys = [], []
    for text, own in zip(texts, slices, strict=True):
        tokens, offsets = tokenizer.encode_with_offsets(text)
        rows.append(tokens[:length])
        # The first token of a text has no loss.
        keys.append(np.array([at - 1 for at in tokens_inside(offsets[:length], own) if at > 0], dtype=np.int64))
    return pa.table({"tokens": token_lists(rows, tokenizer.dtype), "keys": token_lists(keys, np.dtype(np.int64))})


def make_texts(run: DataRun, length: int) -> list[str]:
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


def _documents(run: DataRun) -> Iterator[str]:
    settings, given = run.settings, run.inputs.corpus
    if settings.corpus is None:
        return (document.text for document in run.prepared.heldout_documents)
    if given is None:
        entry = {"source": settings.corpus, "text_column": settings.text_column}
        identity, location = resolve_source(entry, base_folder=Path.cwd(), field="evaluate.longppl")
    else:
        identity, location = given["identity"], given["location"]
    return read_documents(identity, location)


def key_slices(run: DataRun, texts: list[str], folder: Path) -> list[Slices]:
    """Key slices of each text: found by the evaluator and kept in ``folder``, or looked up in a file that has them."""
    settings, evaluator = run.settings, run.inputs.evaluator
    thresholds = settings.thresholds
    if evaluator.get("file"):
        return KeyTokenFile.read_shared(Path(evaluator["file"]), thresholds).lookup(texts, settings.field("evaluator"))
    identity = evaluator.get("identity", settings.evaluator)
    made_by = {"evaluator": identity, "revision": settings.evaluator_revision, **thresholds}
    file = KeyTokenFile(folder / KEY_TOKENS_FILE, made_by)
    opened: list[Any] = []

    def find(some: list[str]) -> list[Slices]:
        if not opened:
            opened.append(_evaluator(run))
        return find_key_tokens(opened[0], some, **thresholds)

    return file.complete(texts, find, report=run.report)


def _evaluator(run: DataRun) -> Any:
    from gridlaw.pipelines.evaluations.evaluators import open_evaluator

    settings, given = run.settings, run.inputs.evaluator
    if settings.evaluator_point is not None and given.get("folder") is None:
        raise BadInput(
            settings.field("evaluator"),
            seen=settings.evaluator,
            allowed="a finished point, a folder or a Hugging Face model",
            hint="Run the grid that has this point, or name a folder",
        )
    data = given.get("data")
    evaluator = open_evaluator(
        settings.evaluator,
        revision=settings.evaluator_revision,
        folder=given.get("folder") or settings.evaluator_path,
        tokenizer=(open_prepared(Path(data)) if data else run.prepared).tokenizer,
        device=run.device,
    )
    settings.check_evaluator_context(evaluator.max_length)
    return evaluator


def _text_sums(run: EvaluationRun, texts: list[Example]) -> npt.NDArray[np.float64]:
    """Per text: sum of key losses, key tokens, sum of all losses, all predicted tokens: [texts, 4]."""
    from gridlaw.pipelines.evaluations.scoring import batches_by_length

    sums = np.zeros((len(texts), 4))
    usable = [index for index, (tokens, _) in enumerate(texts) if len(tokens) > 1]
    done = 0
    for number, group in enumerate(batches_by_length([len(texts[index][0]) for index in usable])):
        chosen = [usable[at] for at in group]
        sums[chosen] = run.parts.get(f"batch-{number}", partial(_batch_sums, run, [texts[at] for at in chosen]))
        done += len(group)
        run.report(done, len(usable))
    return sums


def _batch_sums(run: EvaluationRun, texts: list[Example]) -> list[list[float]]:
    from gridlaw.pipelines.evaluations.evaluators import OwnEvaluator

    model = OwnEvaluator(run.load(), run.prepared.tokenizer)
    losses = model.losses([tokens for tokens, _ in texts])
    return [
        [float(own[keys].sum(dtype=np.float64)), len(keys), float(own.sum(dtype=np.float64)), len(own)]
        for own, (_, keys) in zip(losses, texts, strict=True)
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
