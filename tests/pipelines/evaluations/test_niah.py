"""Needle retrieval: scores against plain forward passes, exact chance, and a model that does retrieve."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import niah
from gridlaw.pipelines.evaluations.registry import resolve_evaluation
from gridlaw.pipelines.evaluations.run import EvaluationRun
from gridlaw.platform.errors import BadInput

MakeRun = Callable[..., EvaluationRun]

SMALL = {"niah": {"depths": 3, "lengths": 2, "samples": 3, "candidates": 5}}


@pytest.mark.parametrize("architecture", ["full", "swa-128", "gdn"])
def test_scores_are_those_of_plain_forward_passes(
    make_run: MakeRun, models: Callable[[str], DecoderLM], architecture: str
) -> None:
    """One sample and one candidate at a time, no caches, against the batched and cached way."""
    model, run = models(architecture), make_run(SMALL, architecture=architecture)
    samples = niah.make_samples(run)
    ranks, generated = [], []
    for sample in samples:
        scores = []
        for candidate in sample.candidates:
            tokens = torch.from_numpy(np.concatenate([sample.prompt, candidate]))
            with torch.no_grad():
                log_probs = torch.log_softmax(model(tokens[None, :-1])[0].double(), dim=-1)
            steps = log_probs[len(sample.prompt) - 1 :]
            scores.append(steps.gather(1, tokens[len(sample.prompt) :, None]).sum().item())
        ranks.append(float(np.argmax(scores) == sample.answer))
        tokens = torch.from_numpy(sample.prompt)
        for _ in range(sample.candidates.shape[1]):
            with torch.no_grad():
                tokens = torch.cat([tokens, model(tokens[None])[0, -1].argmax()[None]])
        right = sample.candidates[sample.answer].tolist()
        generated.append(float(tokens[len(sample.prompt) :].tolist() == right))
    result = niah.compute(run)
    assert result["num_samples"] == len(samples) == 18
    assert result["metrics"]["niah_rank_accuracy"] == np.mean(ranks)
    assert result["metrics"]["niah_generate_accuracy"] == np.mean(generated)
    assert np.array_equal(np.array(result["details"]["rank_grid"]), np.reshape(ranks, (2, 3, 3)).mean(axis=2))


class Oracle:
    """Looks the key up in the prompt and says its value: what a perfect model would do, at any depth and length."""

    def __init__(self, prepared: PreparedData) -> None:
        self.vocab_size = prepared.vocab_size
        self.head = torch.nn.Identity()

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])

    def init_cache(self, batch_size: int, max_length: int) -> list[list[int]]:
        return [[] for _ in range(batch_size)]

    def extend_hidden(self, tokens: torch.Tensor, cache: list[list[int]]) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, self.vocab_size)
        for row, history in enumerate(cache):
            for place, token in enumerate(tokens[row].tolist()):
                history.append(token)
                text = bytes(t for t in history if t < 256)
                question = text[text.rfind(b"\nThe key of ") :]
                found = text.find(question)
                if question.startswith(b"\nThe key of ") and found < text.rfind(question):
                    logits[row, place, text[found + len(question)]] = 50.0
        return logits

    extend = extend_hidden


def test_a_perfect_model_scores_everywhere(make_run: MakeRun, prepared: PreparedData) -> None:
    """The samples can be solved: their needle answers their question at every depth and length."""
    result = niah.compute(make_run(SMALL, load=lambda: Oracle(prepared)))
    assert result["metrics"]["niah_rank_accuracy"] == 1
    assert result["metrics"]["niah_generate_accuracy"] == 1
    assert result["metrics"]["niah_rank_sigmas"] > 8


def test_a_model_that_looks_at_nothing_is_at_chance(make_run: MakeRun) -> None:
    """An untrained model over 1,200 samples stays within 3.5 sigma of the stated chance."""
    entry = {"niah": {"depths": 5, "lengths": [120], "samples": 240, "candidates": 4}}
    metrics = niah.compute(make_run(entry))["metrics"]
    assert metrics["niah_rank_chance"] == 0.25
    assert abs(metrics["niah_rank_sigmas"]) < 3.5
    assert metrics["niah_rank_low"] < metrics["niah_rank_accuracy"] < metrics["niah_rank_high"]


def test_ties_count_by_their_share() -> None:
    scores = np.array([[1.0, 1.0, 0.0, 1.0], [0.0, 2.0, 1.0, 1.0], [np.nan, 1.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]])
    hits = niah.ranking_hits(scores, np.array([0, 1, 0, 3]))
    assert hits.tolist() == [1 / 3, 1.0, 0.0, 0.25]


def test_lengths_end_at_the_context(make_run: MakeRun) -> None:
    settings = resolve_evaluation({"niah": {"lengths": 4}}).settings
    assert niah.grid_lengths(settings, context=1000) == [250, 500, 750, 1000]
    assert niah.grid_lengths(resolve_evaluation({"niah": {"lengths": 1}}).settings, context=1000) == [1000]
    assert niah.grid_lengths(resolve_evaluation({"niah": {"lengths": [300, 200]}}).settings, context=1) == [200, 300]
    samples = niah.make_samples(make_run({"niah": {"depths": 2, "lengths": 2, "samples": 1}}))
    assert sorted({sample.length for sample in samples}) == [64, 256]


def test_samples_do_not_depend_on_the_model(make_run: MakeRun) -> None:
    first, second = (
        [sample.prompt.tolist() for sample in niah.examples(make_run(SMALL, architecture=name))]
        for name in ("full", "gdn")
    )
    assert first == second


def test_lengths_beyond_the_model_are_refused(make_run: MakeRun) -> None:
    with pytest.raises(BadInput, match=r"evaluate\.niah\.lengths is 512; allowed: at most 256, the model's positions"):
        niah.compute(make_run({"niah": {"lengths": [512]}}))
    with pytest.raises(BadInput, match=r"evaluate\.niah: needle sample length is 40; allowed: at least"):
        niah.compute(make_run({"niah": {"lengths": [40]}}))
