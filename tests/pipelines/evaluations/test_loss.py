"""Held-out loss against a plain loop, and against being killed."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import loss, scoring
from gridlaw.pipelines.evaluations.run import EvaluationRun, Parts
from gridlaw.platform.errors import BadInput

MakeRun = Callable[..., EvaluationRun]


def loop_over_tokens(model: DecoderLM, prepared: PreparedData, *, documents: int, context: int) -> tuple[Any, Any]:
    """Losses by position in a piece, and bytes: one document and one piece at a time, logits and all."""
    by_position: dict[int, list[float]] = {}
    num_bytes = 0
    for document in prepared.heldout_documents[:documents]:
        tokens = [prepared.end_token_id, *document.tokens.tolist()]
        num_bytes += document.num_bytes
        for start in range(0, len(tokens) - 1, context):
            piece = torch.tensor(tokens[start : start + context + 1])
            with torch.no_grad():
                log_probs = torch.log_softmax(model(piece[None, :-1]).double(), dim=-1)[0]
            for position, target in enumerate(piece[1:].tolist()):
                by_position.setdefault(position, []).append(-log_probs[position, target].item())
    return by_position, num_bytes


@pytest.mark.parametrize("architecture", ["full", "gdn"])
def test_loss_is_what_a_loop_gives(
    make_run: MakeRun, models: Callable[[str], DecoderLM], prepared: PreparedData, architecture: str
) -> None:
    result = loss.compute(make_run({"loss": {"documents": 4}}, architecture=architecture))
    by_position, num_bytes = loop_over_tokens(models(architecture), prepared, documents=4, context=prepared.context)
    every = [value for values in by_position.values() for value in values]
    assert result["num_samples"] == len(every) == num_bytes  # bytes are tokens here
    assert result["metrics"]["loss"] == pytest.approx(np.mean(every), abs=1e-5)
    assert result["metrics"]["bits_per_byte"] == pytest.approx(np.sum(every) / math.log(2) / num_bytes, abs=1e-5)
    for bucket in result["details"]["by_position"]:
        inside = [v for position in range(bucket["from"], bucket["to"]) for v in by_position.get(position, [])]
        assert bucket["tokens"] == len(inside)
        assert bucket["loss"] == pytest.approx(np.mean(inside), abs=1e-5)


def test_batches_do_not_change_the_loss(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def measure(batch_tokens: int) -> dict[str, float]:
        monkeypatch.setattr(scoring.batches_by_length, "__kwdefaults__", {"batch_tokens": batch_tokens})
        parts = Parts(tmp_path_factory.mktemp("parts"), "x")
        return loss.compute(make_run({"loss": {"tokens": 4000}}, parts=parts))["metrics"]

    one_by_one, together = measure(1), measure(10**6)
    for name, value in one_by_one.items():
        assert together[name] == pytest.approx(value, rel=1e-6)


def test_token_limit_is_kept_and_fixed(make_run: MakeRun) -> None:
    result = loss.compute(make_run({"loss": {"tokens": 3000}}))
    assert 3000 <= result["num_samples"] < 3000 + 256
    again = loss.compute(make_run({"loss": {"tokens": 3000}}))
    assert again == result
    assert result["details"]["documents"] > 5  # spread over documents, not their beginning


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    context=st.integers(1, 20),
    max_tokens=st.none() | st.integers(1, 400),
)
def test_pieces_cover_documents_once(lengths: list[int], context: int, max_tokens: int | None) -> None:
    pieces = loss.cut_pieces(lengths, context=context, max_tokens=max_tokens)
    covered = [(piece.document, token) for piece in pieces for token in range(piece.start, piece.stop)]
    assert len(covered) == len(set(covered))
    assert all(0 < piece.num_tokens <= context for piece in pieces)
    if max_tokens is None or max_tokens >= sum(lengths):
        assert len(covered) == sum(lengths)
    else:
        assert max_tokens <= len(covered) < max_tokens + context


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30), batch_tokens=st.integers(1, 200))
def test_batches_hold_every_row_once(lengths: list[int], batch_tokens: int) -> None:
    groups = list(scoring.batches_by_length(lengths, batch_tokens=batch_tokens))
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[row] for row in group) <= batch_tokens


def test_uniform_model_is_at_log_of_the_vocabulary(make_run: MakeRun, models: Callable[[str], DecoderLM]) -> None:
    import copy

    model = copy.deepcopy(models("full"))
    with torch.no_grad():
        model.head.weight.zero_()
    result = loss.compute(make_run({"loss": {"tokens": 2000}}, load=lambda: model))
    assert result["metrics"]["loss"] == pytest.approx(math.log(257), abs=1e-6)
    assert result["metrics"]["loss_stderr"] == pytest.approx(0, abs=1e-6)


def test_killed_evaluation_goes_on(make_run: MakeRun, models: Callable[[str], DecoderLM]) -> None:
    """The first batches are kept; the second attempt runs only what is left, and the numbers are the same."""
    entry = {"loss": {"tokens": 60_000}}
    calls: list[int] = []

    class Killed(Exception):
        pass

    def counting(limit: int) -> Callable[[], DecoderLM]:
        def load() -> DecoderLM:
            calls.append(1)
            if len(calls) > limit:
                raise Killed
            return models("full")

        return load

    first = make_run(entry, load=counting(2))
    with pytest.raises(Killed):
        loss.compute(first)
    assert len(first.parts) == 2
    calls.clear()
    again = dataclasses.replace(first, parts=Parts(first.work_folder, "test"), load=counting(1000))
    resumed = loss.compute(again)
    total = len(again.parts)
    assert len(calls) == total - 2 > 0
    fresh = loss.compute(dataclasses.replace(again, parts=Parts(first.work_folder, "other")))
    assert fresh == resumed


def test_torn_line_is_dropped(make_run: MakeRun) -> None:
    run = make_run({"loss": {"tokens": 40_000}})
    whole = loss.compute(run)
    lines = run.parts.path.read_bytes()
    run.parts.path.write_bytes(lines[:-40])
    parts = Parts(run.work_folder, "test")
    assert len(parts) == len(run.parts) - 1
    assert loss.compute(dataclasses.replace(run, parts=parts)) == whole
    assert run.parts.path.read_bytes() == lines


def test_context_longer_than_the_model_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(BadInput, match=r"evaluate\.loss\.context is 1000; allowed: at most 256, the model's positions"):
        loss.compute(make_run({"loss": {"context": 1000}}))
