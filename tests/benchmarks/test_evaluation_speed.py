"""How much quicker evaluation is than one example at a time. Prints; asserts that nothing got lost, not a number of
seconds.

    pytest -m slow -s tests/benchmarks/test_evaluation_speed.py
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.prepare import PreparedData, prepare
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import longppl, niah
from gridlaw.pipelines.evaluations.evaluators import OwnEvaluator
from gridlaw.pipelines.evaluations.key_tokens import find_key_tokens
from gridlaw.pipelines.evaluations.registry import resolve_evaluation
from gridlaw.pipelines.evaluations.run import EvaluationRun, Parts

pytestmark = pytest.mark.slow

CONTEXT = 512


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    declaration = declare({}, base_folder=Path("."), context=CONTEXT)
    return prepare(declaration, tmp_path_factory.mktemp("data") / prepared_name(declaration))


@pytest.fixture(scope="module")
def model() -> DecoderLM:
    torch.set_num_threads(1)
    config = model_config(resolve_architecture("full"), resolve_scale("n2"), vocab_size=257, context=CONTEXT)
    return DecoderLM(config).initialise(0).eval()


def run_of(entry: dict[str, Any], prepared: PreparedData, model: DecoderLM, folder: Path) -> EvaluationRun:
    return EvaluationRun(
        settings=resolve_evaluation(entry).settings,
        prepared=prepared,
        parts=Parts(folder, "benchmark"),
        work_folder=folder,
        model_folder=folder,
        model_config=model.config.to_dict(),
        load=lambda: model,
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    return work(), time.process_time() - started


@torch.no_grad()
def needles_one_by_one(model: DecoderLM, samples: list[Any]) -> list[float]:
    """Each candidate by a forward pass of its own, the answer by passes that start over with each token."""
    hits = []
    for sample in samples:
        scores = []
        for candidate in sample.candidates:
            tokens = torch.from_numpy(np.concatenate([sample.prompt, candidate]))
            steps = torch.log_softmax(model(tokens[None, :-1])[0], dim=-1)[len(sample.prompt) - 1 :]
            scores.append(steps.gather(1, tokens[len(sample.prompt) :, None]).sum().item())
        hits.append(float(np.argmax(scores) == sample.answer))
        tokens = torch.from_numpy(sample.prompt)
        for _ in range(sample.candidates.shape[1]):
            tokens = torch.cat([tokens, model(tokens[None])[0, -1].argmax()[None]])
    return hits


def test_needles(prepared: PreparedData, model: DecoderLM, tmp_path: Path) -> None:
    entry = {"niah": {"depths": 5, "lengths": 2, "samples": 6}}
    run = run_of(entry, prepared, model, tmp_path)
    result, quick = timed(lambda: niah.compute(run))
    hits, plain = timed(lambda: needles_one_by_one(model, niah.make_samples(run)[1]))
    print(f"\nniah: {plain:.1f} s one by one, {quick:.1f} s here: {plain / quick:.1f} times")
    assert result["metrics"]["niah_rank_accuracy"] == pytest.approx(np.mean(hits), abs=1 / len(hits))


class OneByOne(OwnEvaluator):
    """Every row a forward pass of its own."""

    def losses(self, rows: Any) -> Any:
        return [super(OneByOne, self).losses([row])[0] for row in rows]


def test_longppl(prepared: PreparedData, model: DecoderLM, tmp_path: Path) -> None:
    settings = {"evaluator": "a/b/c", "context": 128, "slide": 32, "alpha": -0.05, "beta": -20.0, "split": True}
    run = run_of({"longppl": {**settings, "documents": 60}}, prepared, model, tmp_path)
    texts = longppl.make_texts(run, CONTEXT)
    thresholds = {"context": 128, "slide": 32, "alpha": -0.05, "beta": -20.0}
    (own, plain_model) = (kind(model, prepared.tokenizer) for kind in (OwnEvaluator, OneByOne))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(longppl, "_evaluator", lambda run: own)
        result, quick = timed(lambda: longppl.compute(run))

    def one_by_one() -> float:
        total, count = 0.0, 0
        for text in texts:
            find_key_tokens(plain_model, [text], **thresholds)
            plain_model.losses([plain_model.encode(text)[0]])
        for line in run.parts.path.read_text().splitlines():
            for key_sum, num, *_ in __import__("json").loads(line)["result"]:
                total, count = total + key_sum, count + int(num)
        return math.exp(total / count)

    value, plain = timed(one_by_one)
    print(f"\nlongppl: {plain:.1f} s one by one, {quick:.1f} s here: {plain / quick:.1f} times")
    assert result["metrics"]["longppl"] == pytest.approx(value, rel=0.1)
