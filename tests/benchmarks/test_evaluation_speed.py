"""How much quicker evaluation is than one example at a time. Prints; asserts that nothing got lost, not a number of
seconds.

    pytest -m slow -s tests/benchmarks/test_evaluation_speed.py
"""

import importlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.prepare import PreparedData, prepare
from gridlaw.modules.data.tokenizers import BytesTokenizer
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import longppl, niah
from gridlaw.pipelines.evaluations.evaluators import OwnEvaluator
from gridlaw.pipelines.evaluations.key_tokens import find_key_tokens
from gridlaw.pipelines.evaluations.registry import resolve_evaluation
from gridlaw.pipelines.evaluations.run import EvaluationRun, Parts

package = importlib.import_module("longppl.longppl")  # the PyPI package, not our module of that name

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
    hits, plain = timed(lambda: needles_one_by_one(model, niah.make_samples(run)))
    print(f"\nniah: {plain:.1f} s one by one, {quick:.1f} s here: {plain / quick:.1f} times")
    assert result["metrics"]["niah_rank_accuracy"] == pytest.approx(np.mean(hits), abs=1 / len(hits))


class AsHuggingFace:
    """One of our models behind the little of transformers' interface that the package ``longppl`` uses."""

    device = torch.device("cpu")

    def __init__(self, model: DecoderLM) -> None:
        self.model, self.bytes = model, BytesTokenizer()

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(input_ids))

    def tokenizer(self, text: str, **_: Any) -> dict[str, torch.Tensor]:
        tokens, offsets = self.bytes.encode_with_offsets(text)
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        return {"input_ids": ids, "offset_mapping": torch.from_numpy(offsets)[None]}


class OneByOne(OwnEvaluator):
    """Every row a forward pass of its own, all of its losses."""

    def losses(self, rows: Any, *, skip: int = 0) -> Any:
        return [super(OneByOne, self).losses([row])[0][skip:] for row in rows]


def test_longppl(prepared: PreparedData, model: DecoderLM, tmp_path: Path) -> None:
    """One row at a time, as the package does it, and here; each with one evaluated model and with three."""
    thresholds = {"context": 128, "slide": 32, "alpha": -0.05, "beta": -20.0}
    entry = {"longppl": {"evaluator": "a/b/c", **thresholds, "split": True, "documents": 60}}
    texts = longppl.make_texts(run_of(entry, prepared, model, tmp_path), CONTEXT)
    encode = prepared.tokenizer.encode_with_offsets

    def here(name: str, evaluator: OwnEvaluator) -> tuple[float, float]:
        """(seconds of finding, seconds of scoring one model); the values are compared by the tests beside this."""
        run = run_of(entry, prepared, model, tmp_path / name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(longppl, "_evaluator", lambda run: evaluator)
            _, finding = timed(lambda: longppl.examples(run))
        result, scoring = timed(lambda: longppl.compute(run))
        values.append(result["metrics"]["longppl"])
        return finding, scoring

    def by_package() -> float:
        shim, total, count = AsHuggingFace(model), 0.0, 0
        for text in texts:
            found = package.compute_longppl(
                text,
                shim,
                shim,
                shim.tokenizer,
                shim.tokenizer,
                trunc_len=128,
                sliding_window=32,
                alpha=-0.05,
                beta=-20.0,
            )
            if found["n_key_token"] and found["n_key_token"] >= 10:
                total, count = total + math.log(found["longppl"]) * found["n_key_token"], count + found["n_key_token"]
        return math.exp(total / count)

    values: list[float] = []
    finding, scoring = here("here", OwnEvaluator(model, prepared.tokenizer))
    _, plain_finding = timed(
        lambda: [find_key_tokens(OneByOne(model, prepared.tokenizer), [text], **thresholds) for text in texts]
    )
    rows = [encode(text)[0].astype(np.int64) for text in texts]
    _, plain_scoring = timed(lambda: OneByOne(model, prepared.tokenizer).losses(rows))
    value, theirs = timed(by_package)
    assert values[0] == pytest.approx(value, rel=1e-4)
    print(f"\nlongppl, CPU seconds: finding {finding:.2f} here, {plain_finding:.2f} row by row; ", end="")
    print(f"scoring {scoring:.2f} here, {plain_scoring:.2f} row by row; the package {theirs:.2f} a model")
    for models in (1, 3, 27):
        ours = finding + models * scoring
        plain = models * (plain_finding + plain_scoring)
        print(f"{models} models: {plain / ours:.1f} times row by row, {models * theirs / ours:.1f} times the package")
