"""DuoAttention's gates: the loss against plain autograd, what is trained and what is not, and what becomes of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.generators import ANSWERS
from gridlaw.modules.data.prepare import PreparedData, prepare
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.duo.module import DuoAttention
from gridlaw.modules.models.checkpoint import load_model, save_model
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.training.distillation import Distillation, answer_tokens, binary_gates, duo_layers
from gridlaw.modules.training.fit import fit
from gridlaw.modules.training.json_logger import JsonLinesLogger
from gridlaw.modules.training.settings import DistillSettings

CONTEXT, WINDOW, END = 400, 16, 256
SCALE = resolve_scale(
    {"name": "t", "layers": 2, "d_model": 16, "ffn_dim": 24, "heads": 4, "kv_heads": 2, "head_dim": 8}
)
MARKER = tuple(ANSWERS.encode())


def config(architecture):
    return model_config(resolve_architecture(architecture), SCALE, vocab_size=257, context=CONTEXT)


def lively(model: DecoderLM) -> DecoderLM:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(12)
            if name.endswith("gate"):
                parameter.copy_(torch.tensor([0.9, 0.4]))
    return model


@pytest.fixture(scope="module")
def passkeys(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("passkeys")
    settings = {"documents": 60, "characters": CONTEXT - 1, "passkeys": 2, "words": 2}
    data = {"mixture": [{"source": "generate:passkey", "settings": settings}]}
    declaration = declare(data, base_folder=folder, context=CONTEXT)
    return prepare(declaration, folder / prepared_name(declaration))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(lively(DecoderLM(config("full")).initialise(1)), tmp_path_factory.mktemp("base"))


@pytest.fixture
def job(make_job, passkeys: PreparedData, base: Path):
    def make(name: str, **fields):
        training = {
            "batch_tokens": 4 * CONTEXT,
            "optimizer": {"name": "adamw", "lr": 0.1},
            "schedule": {"warmup_steps": 0},
            "distill": {"l1": 0.5, "full_heads": 0.25},
        }
        made = make_job(name, training=training, start_weights=str(base), **fields)
        model = config(f"duo-{WINDOW}").to_dict()
        return dataclasses.replace(made, model=model, data=str(passkeys.folder), context=CONTEXT)

    return make


def test_windows_hold_a_document_and_its_answers_each(passkeys: PreparedData) -> None:
    windows = torch.from_numpy(passkeys.train_windows(torch.arange(5).numpy()).astype("int64"))[:, :-1]
    is_answer = answer_tokens(windows, MARKER, END)
    for tokens, answer in zip(windows, is_answer, strict=True):
        assert tokens[0] == END
        assert (tokens == END).sum() == 1
        text = bytes(tokens[1:].tolist()).decode()
        assert bytes(tokens[answer].tolist()).decode() == text.partition(ANSWERS)[2]


def test_answers_end_with_their_document_and_a_marker_cut_off_is_none() -> None:
    text = [7, 1, 2, 3, 9, 9, END, 9, 1, 2, 9, 2, 3, END, 1, 2, 3, 8]
    wanted = [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert answer_tokens(torch.tensor([text]), (1, 2, 3), END).int().tolist() == [wanted]
    assert not answer_tokens(torch.tensor([[1, 2]]), (1, 2, 3), END).any()


@pytest.mark.parametrize("marker", [MARKER, None])
def test_loss_and_gradients_are_the_equations(passkeys: PreparedData, marker: tuple[int, ...] | None) -> None:
    model = lively(DecoderLM(config(f"duo-{WINDOW}")).initialise(1)).double()
    twin = lively(DecoderLM(config(f"duo-{WINDOW}")).initialise(1)).double()
    full = DecoderLM(config("full")).double()
    full.load_state_dict(twin.state_dict(), strict=False)
    objective = Distillation(model, DistillSettings(l1=0.3), marker=marker, end_token_id=END)
    tokens = torch.from_numpy(passkeys.train_windows(torch.arange(2).numpy()).astype("int64"))[:, :-1]
    distance, penalty = objective.losses(tokens, model.context_for(tokens), model.hidden)
    (distance + penalty).backward()
    weight = torch.ones(tokens.shape)
    if marker is not None:
        weight = torch.tensor([[float(i > bytes(row[1:].tolist()).index(ANSWERS.encode()) + len(ANSWERS))
                                for i in range(len(row))] for row in tokens])  # fmt: skip
    with torch.no_grad():
        wanted = full.hidden(tokens)
    squares = (twin.hidden(tokens) - wanted).square().mean(-1)
    expected = (squares * weight).sum() / weight.sum()
    gates = [mixer.gate for mixer in duo_layers(twin)]
    expected_penalty = 0.3 * torch.cat(gates).mean()
    theirs = torch.autograd.grad(expected + expected_penalty, gates)
    assert distance.item() == pytest.approx(expected.item(), rel=1e-5)
    assert distance.item() > 1e-4
    assert penalty.item() == pytest.approx(expected_penalty.item(), rel=1e-6)
    for mixer, gradient in zip(duo_layers(model), theirs, strict=True):
        torch.testing.assert_close(mixer.gate.grad, gradient, rtol=1e-4, atol=1e-7)
    assert [name for name, p in model.named_parameters() if p.grad is not None] == [
        f"layers.{layer}.mixer.gate" for layer in range(2)
    ]


def test_only_gates_move_and_the_exported_model_is_binary(job, base: Path, read) -> None:
    asked = job("job", until_step=8, decay_start_step=6, decay_steps=2)
    result = fit(asked, logger=JsonLinesLogger(asked.folder + ".jsonl"))
    assert result.new_weights == tuple(f"layers.{layer}.mixer.gate" for layer in range(2))
    folder = Path(asked.folder) / "model"
    model, weights, before = load_model(folder), load_file(folder / "model.safetensors"), load_file(
        base / "model.safetensors"
    )  # fmt: skip
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert [spec.binary for spec in model.config.mixers()] == [True, True]
    kept = json.loads((folder / "duo_gates.json").read_text())
    learned = torch.tensor(kept["learned"])
    assert learned.min() >= 0
    assert learned.max() < 1  # all started at 1
    full = [torch.nonzero(mixer.gate == 1)[:, 0].tolist() for mixer in duo_layers(model)]
    assert full == [[head for head, is_full in enumerate(row) if is_full] for row in kept["full"]]
    assert sum(map(len, full)) == 1  # a quarter of four heads: the largest gate
    assert learned[torch.tensor(kept["full"])].item() == learned.max()
    rows = read.rows(asked)
    assert rows[0]["loss"] == pytest.approx(0, abs=1e-9)  # gates of 1: nothing to tell apart
    assert rows[0]["auxiliary_loss"] == pytest.approx(0.5)
    assert rows[0]["train_full_ratio"] == 1.0
    assert rows[-1]["loss"] > 1e-6
    assert rows[-1]["train_full_ratio"] < 0.9
    assert all(isinstance(mixer, DuoAttention) for mixer in duo_layers(model))


def test_layers_that_choose_may_stand_beside_gated_ones(job, read) -> None:
    """Their statistics come from the gated pass, the one that is compiled where that is asked."""
    pattern = {"name": "both", "pattern": [f"duo-{WINDOW}", f"switch-{WINDOW}"]}
    asked = dataclasses.replace(job("job", until_step=2), model=config(pattern).to_dict())
    fit(asked, logger=JsonLinesLogger(asked.folder + ".jsonl"))
    rows = read.rows(asked)
    assert [0.0 < row["train_full_ratio"] <= 1.0 for row in rows] == [True] * len(rows)
    model = lively(DecoderLM(config(pattern)).initialise(1))
    objective = Distillation(model, DistillSettings(), marker=None, end_token_id=END)
    passes = []

    def hidden(*given, **more):
        passes.append(more["ctx"])
        return model.hidden(*given, **more)

    tokens = torch.randint(0, 256, (1, 20))
    ctx = model.context_for(tokens)
    objective.losses(tokens, ctx, hidden)
    assert passes == [ctx]
    assert len(model.full_shares(ctx)) == 2


def test_a_run_in_parts_ends_in_the_same_bits(job, read) -> None:
    decay = {"decay_start_step": 6, "decay_steps": 2, "until_step": 8}
    whole, trunk = job("whole", **decay), job("trunk", until_step=3)
    longer = dataclasses.replace(trunk, until_step=6, keep_steps=(6,))
    branch = job("branch", start_checkpoint=str(read.checkpoint(trunk, 6)), **decay)
    for each in (whole, trunk, longer, branch):
        fit(each, logger=JsonLinesLogger(each.folder + ".jsonl"))
    assert read.same(whole, branch)
    parts = {**read.losses(trunk), **read.losses(branch)}
    assert parts == read.losses(whole)
    assert json.loads((Path(whole.folder) / "model/duo_gates.json").read_text()) == json.loads(
        (Path(branch.folder) / "model/duo_gates.json").read_text()
    )


def test_text_without_answers_is_refused(job, prepared) -> None:
    asked = dataclasses.replace(job("job", until_step=2), data=str(prepared.folder), context=prepared.context)
    training = {**asked.training, "batch_tokens": 4 * prepared.context}
    with pytest.raises(BadSetting, match=r"training\.distill\.tokens.*generate:passkey"):
        fit(dataclasses.replace(asked, training=training))


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [[True, False], [False, True]]),
        ({"threshold": 0.1}, [[True, True], [False, True]]),
        ({"threshold": 1.0}, [[False, False], [False, False]]),
        ({"full_heads": 0.25}, [[True, False], [False, False]]),
        ({"full_heads": 0.75}, [[True, True], [False, True]]),
        ({"full_heads": 0.0}, [[False, False], [False, False]]),
        ({"full_heads": 1.0}, [[True, True], [True, True]]),
    ],
)
def test_gates_become_heads(settings: dict[str, float], wanted: list[list[bool]]) -> None:
    assert binary_gates([[0.9, 0.2], [0.0, 0.9]], DistillSettings(**settings)) == wanted
