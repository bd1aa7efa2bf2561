"""The share of full attention against counting gates one token at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations import routing
from gridlaw.pipelines.evaluations.loss import heldout_pieces
from gridlaw.pipelines.evaluations.niah import make_samples
from gridlaw.pipelines.evaluations.registry import resolve_evaluation
from gridlaw.pipelines.evaluations.run import EvaluationRun, Parts
from gridlaw.pipelines.evaluations.settings import RoutingNeedles
from gridlaw.platform.errors import BadInput

MakeRun = Callable[..., EvaluationRun]
Models = Callable[[str], DecoderLM]
WINDOW = 64
SWITCH = f"swiattn-{WINDOW}"


def gates_and_losses(model: DecoderLM, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Gates [T, L] and next-token losses [T] of one row: each token decoded by itself."""
    cache = model.init_cache(1, len(tokens))
    gates, losses = [], []
    for place in range(len(tokens) - 1):
        ctx = model.context_for(tokens[None, place : place + 1], position=place)
        logits = model.extend(tokens[None, place : place + 1], cache, ctx=ctx)[0, 0]
        gates.append(torch.stack([ctx.outputs[layer]["gate"][0, 0] for layer in sorted(ctx.outputs)]))
        losses.append(torch.nn.functional.cross_entropy(logits, tokens[place + 1]))
    return torch.stack(gates), torch.stack(losses)


@torch.no_grad()
def test_held_out_shares_are_the_gates_counted_one_by_one(
    make_run: MakeRun, models: Models, prepared: PreparedData
) -> None:
    run = make_run({"routing": {"tokens": 300, "context": 80}}, architecture=SWITCH)
    result = routing.compute(run)
    gates, losses, positions = [], [], []
    _, documents, pieces = heldout_pieces(run)
    for piece in pieces:
        tokens = torch.tensor([prepared.end_token_id, *documents[piece.document].tokens.tolist()])
        own_gates, own_losses = gates_and_losses(models(SWITCH), tokens[piece.start : piece.stop + 1])
        gates.append(own_gates)
        losses.append(own_losses)
        positions.append(torch.arange(len(own_losses)))
    gate, loss, position = (torch.cat(each).numpy() for each in (gates, losses, positions))
    assert 0.05 < gate.mean() < 0.95
    assert result["num_samples"] == len(loss)
    assert result["metrics"]["full_ratio"] == pytest.approx(gate.mean(), abs=1e-6)
    for layer in range(2):
        assert result["metrics"][f"full_ratio/{layer}"] == pytest.approx(gate[:, layer].mean(), abs=1e-6)
    for key, values in (("by_position", position), ("by_loss", loss)):
        rows = result["details"][key]
        assert sum(row["tokens"] for row in rows) == len(loss)
        assert len(rows) > 1
        for row in rows:
            inside = (values >= row["from"]) & (values < row["to"])
            assert row["tokens"] == inside.sum()
            assert row["by_layer"] == pytest.approx(gate[inside].mean(0).tolist(), abs=1e-6)
            assert row["full_ratio"] == pytest.approx(gate[inside].mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("architecture", "by_layer"),
    [("full", [1.0, 1.0]), ("swa-only-32", [0.0, 0.0]), ("swa-32", [0.0, 1.0]), ("gdn", [0.0, 1.0]),
     ("swa-32-headwise", [0.5, 0.5])],
)  # fmt: skip
def test_fixed_patterns_count_without_running_the_model(
    make_run: MakeRun, models: Models, architecture: str, by_layer: list[float]
) -> None:
    def never() -> DecoderLM:
        raise AssertionError("nothing is to be measured")

    config = models(architecture).config.to_dict()
    result = routing.compute(make_run("routing", model_config=config, load=never))
    assert result["details"]["by_layer"] == by_layer
    assert result["metrics"]["full_ratio"] == np.mean(by_layer)


@torch.no_grad()
def test_a_router_that_is_sure_and_gates_of_heads(make_run: MakeRun, models: Models, tmp_path: Path) -> None:
    for bias, expected in ((100.0, 1.0), (-100.0, 0.0)):
        model = copy.deepcopy(models(SWITCH))
        for layer in model.blocks():
            layer.mixer.router.bias.fill_(bias)
        entry = {"routing": {"tokens": 2000, "needles": {"lengths": [128], "depths": 2, "samples": 1}}}
        own = {"load": lambda model=model: model, "parts": Parts(tmp_path, str(bias))}
        metrics = routing.compute(make_run(entry, architecture=SWITCH, **own))["metrics"]
        ratios = {key: value for key, value in metrics.items() if key.startswith("full_ratio") and "stderr" not in key}
        assert {"full_ratio", "full_ratio/0", "full_ratio_answering", "full_ratio_near", "full_ratio_far"} <= set(
            ratios
        )
        assert set(ratios.values()) == {expected}
    duo = copy.deepcopy(models("duo-32"))
    for layer, gates in zip(duo.blocks(), ([1.0, 0.0], [0.0, 0.0]), strict=True):
        layer.mixer.gate.copy_(torch.tensor(gates))
    metrics = routing.compute(make_run({"routing": {"tokens": 500}}, architecture="duo-32", load=lambda: duo))[
        "metrics"
    ]
    assert (metrics["full_ratio/0"], metrics["full_ratio/1"], metrics["full_ratio"]) == (0.5, 0.0, 0.25)


@torch.no_grad()
def test_needles_are_counted_while_the_answer_is_generated(make_run: MakeRun, models: Models) -> None:
    needles = {"lengths": [90, 130], "depths": 2, "samples": 1}
    run = make_run({"routing": {"tokens": 500, "needles": needles}}, architecture=SWITCH)
    details = routing.compute(run)["details"]["needles"]
    assert (details["lengths"], details["depths"]) == ([90, 130], [0.0, 1.0])
    model = models(SWITCH)
    samples = make_samples(make_run("niah", settings=RoutingNeedles.read(needles)))
    expected = np.zeros((2, 2, 1))
    for index, sample in enumerate(samples):
        prompt = torch.from_numpy(sample.prompt)[None]
        new = model.generate_greedy(prompt, sample.candidates.shape[1])
        gates, _ = gates_and_losses(model, torch.cat([prompt, new], 1)[0])
        expected[np.unravel_index(index, expected.shape)] = gates[len(sample.prompt) - 1 :].mean()
    assert np.array(details["full_ratio_grid"]) == pytest.approx(expected.mean(2), abs=1e-6)
    near = np.array(details["near_grid"])
    assert near[:, 1].min() == 1.0  # at the end of the haystack the needle is inside the window
    assert near[:, 0].max() == 0.0


def test_settings_are_checked_and_filled_in() -> None:
    filled = resolve_evaluation({"routing": {"needles": {"depths": 3}}}).settings_dict()
    assert filled["needles"] == {**RoutingNeedles().to_dict(), "depths": 3}
    assert resolve_evaluation("routing").settings_dict()["needles"] is None
    with pytest.raises(BadInput, match=r"evaluate\.routing\.needles\.depth.*Did you mean depths"):
        resolve_evaluation({"routing": {"needles": {"depth": 3}}})
    with pytest.raises(BadInput, match=r"evaluate\.routing\.needles\.samples is 0"):
        resolve_evaluation({"routing": {"needles": {"samples": 0}}})


def test_positions_beyond_the_model_are_refused(make_run: MakeRun) -> None:
    with pytest.raises(BadInput, match=r"evaluate\.routing\.context is 1000; allowed: at most 256"):
        routing.compute(make_run({"routing": {"context": 1000}}, architecture=SWITCH))


def test_needles_that_do_not_fit_are_refused_by_their_own_name(make_run: MakeRun) -> None:
    with pytest.raises(BadInput, match=r"evaluate\.routing\.needles: needle sample length is 40; allowed: at least"):
        routing.compute(make_run({"routing": {"needles": {"lengths": [40]}}}, architecture=SWITCH))
