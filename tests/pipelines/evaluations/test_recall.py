"""Associative recall: exact samples, scores as plain forward passes give them, chance, and a model that recalls."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gridlaw.modules.data.embedded import python_library_texts
from gridlaw.modules.data.needles import WordPool, haystack_of
from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.data.tokenizers import BytesTokenizer
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import recall
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.platform.errors import BadInput

MakeRun = Callable[..., EvaluationRun]
SMALL = {"recall": {"pairs": 4, "samples": 5, "length": 200}}


@pytest.fixture(scope="module")
def maker() -> recall.RecallMaker:
    texts, tokenizer = python_library_texts()[:20], BytesTokenizer()
    haystack = haystack_of((tokenizer.encode(text) for text in texts), max_tokens=10**6)
    return recall.RecallMaker(haystack, WordPool(texts, tokenizer), tokenizer)


@given(length=st.integers(200, 700), pairs=st.integers(2, 8), seed=st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_any_sample_holds_its_pairs(maker: recall.RecallMaker, length: int, pairs: int, seed: int) -> None:
    sample = maker.make(length=length, pairs=pairs, rng=np.random.default_rng(seed))
    assert len(sample.prompt) + sample.questions.shape[1] + 1 == length
    assert len(set(sample.values.tolist())) == pairs
    text = maker.tokenizer.decode(sample.prompt)
    for question, value, distance in zip(sample.questions, sample.values, sample.distances, strict=True):
        line = maker.tokenizer.decode([*question, value]) + "\n"
        assert text.count(line) == 1
        # From the value in the text to the place after the question where it is asked for.
        assert sample.prompt[length - 1 - distance] == value
    assert (np.diff(sample.distances) < 0).all()


@pytest.mark.parametrize("architecture", ["full", "gdn"])
def test_scores_are_those_of_plain_forward_passes(
    make_run: MakeRun, models: Callable[[str], DecoderLM], architecture: str
) -> None:
    run, model = make_run(SMALL, architecture=architecture), models(architecture)
    ranked, top = [], []
    for sample in recall.make_samples(run):
        for pair, question in enumerate(sample.questions):
            tokens = torch.from_numpy(np.concatenate([sample.prompt, question]))
            with torch.no_grad():
                logits = model(tokens[None])[0, -1]
            ranked.append(float(logits[torch.from_numpy(sample.values)].argmax().item() == pair))
            top.append(float(logits.argmax().item() == sample.values[pair]))
    result = recall.compute(run)
    assert result["num_samples"] == len(ranked) == 20
    assert result["metrics"]["recall_accuracy"] == np.mean(ranked)
    assert result["metrics"]["recall_generate_accuracy"] == np.mean(top)
    distances = [row["distance"] for row in result["details"]["by_distance"]]
    assert distances == sorted(distances)
    assert np.mean([row["accuracy"] for row in result["details"]["by_distance"]]) == pytest.approx(np.mean(ranked))


class Oracle:
    """Says what followed the same line before."""

    def __init__(self, prepared: PreparedData) -> None:
        self.vocab_size, self.head = prepared.vocab_size, torch.nn.Identity()

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])

    def init_cache(self, batch_size: int, max_length: int) -> list[list[int]]:
        return [[] for _ in range(batch_size)]

    def extend_hidden(self, tokens: torch.Tensor, cache: list[list[int]]) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, self.vocab_size)
        for row, history in enumerate(cache):
            history += tokens[row].tolist()
            text = bytes(token for token in history if token < 256)
            line = text[text.rfind(b"\n") :]
            if (found := text.find(line)) < text.rfind(line):
                logits[row, -1, text[found + len(line)]] = 9.0
        return logits


def test_a_perfect_model_recalls_at_every_distance(make_run: MakeRun, prepared: PreparedData) -> None:
    result = recall.compute(make_run(SMALL, load=lambda: Oracle(prepared)))
    assert result["metrics"]["recall_accuracy"] == result["metrics"]["recall_generate_accuracy"] == 1
    assert all(row["accuracy"] == 1 for row in result["details"]["by_distance"])


def test_a_model_that_looks_at_nothing_is_at_chance(make_run: MakeRun) -> None:
    metrics = recall.compute(make_run({"recall": {"pairs": 5, "samples": 200, "length": 150}}))["metrics"]
    assert metrics["recall_chance"] == 0.2
    assert abs(metrics["recall_sigmas"]) < 3.5


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"length": 1000}, r"evaluate\.recall\.length is 1000; allowed: at most 256"),
        ({"length": 30}, "recall length is 30; allowed: "),
        ({"pairs": 63}, "recall pairs is 63; allowed: at most 62"),
    ],
)
def test_impossible_settings(make_run: MakeRun, entry: dict[str, int], message: str) -> None:
    with pytest.raises((BadInput, ValueError), match=message):
        recall.compute(make_run({"recall": entry}))
