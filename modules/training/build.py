"""From a job to its model, and from a trained model to files for outside use."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.checkpoint import checkpoint

from gridlaw.modules.catalog import flops_per_token
from gridlaw.modules.data.generators import ANSWERS
from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.models.checkpoint import load_weights, save_model, transfer_weights
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.models.weights import Transfer
from gridlaw.modules.training.checkpoint_files import write_json
from gridlaw.modules.training.distillation import Distillation, binarised, binary_gates
from gridlaw.modules.training.job import FitJob, FitResult
from gridlaw.modules.training.settings import TrainingSettings

FORWARDS_PER_TRAINING_STEP = 3
"""Forward, and twice that for the backward pass; recomputation is not counted."""
MODEL_FOLDER, TRANSFER_FILE = "model", "transfer.json"

GATES_FILE = "duo_gates.json"
"""Beside an exported model whose gates were learned: the gates before they were binarised, and which heads are full."""


def model(job: FitJob, *, begins: bool) -> tuple[DecoderLM, Transfer]:
    """The job's model with initial values from its seed, and with its ``start_weights`` if it begins now.

    begins: whether the run is at its beginning; else all weights come from a checkpoint. Returns besides what was taken
    over of ``start_weights``, then or at the beginning.
    """
    built = DecoderLM(ModelConfig.from_dict(job.model))
    built.initialise(job.seed)
    transfer = Transfer(transferred=(), new=(), unused=())
    if job.start_weights is not None:
        transfer = _begin(built, job) if begins else _kept_transfer(Path(job.folder))
    if job.activation_checkpointing:
        checkpoint_activations(built)
    return built, transfer


def _begin(built: DecoderLM, job: FitJob) -> Transfer:
    assert job.start_weights is not None, "a job without start_weights takes nothing over"
    transfer = transfer_weights(built, load_weights(job.start_weights), where="start_weights")
    write_json(Path(job.folder) / TRANSFER_FILE, transfer.to_dict())
    return transfer


def _kept_transfer(folder: Path) -> Transfer:
    try:
        kept = json.loads((folder / TRANSFER_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:  # begun by an earlier version
        kept = {"transferred": (), "new": (), "unused": ()}
    return Transfer(**{name: tuple(names) for name, names in kept.items()})


def adopt(model: Mapping[str, Any], *, seed: int, start_weights: str, folder: Path) -> FitResult:
    """Another model's weights under a new architecture, exported without training: what a budget of 0 means.

    model: ``ModelConfig.to_dict()``. seed: of parameters that ``start_weights`` (a folder with model.safetensors) does
    not give. folder: where ``model/`` is written.
    """
    started = time.perf_counter()
    built = DecoderLM(ModelConfig.from_dict(model)).initialise(seed)
    transfer = transfer_weights(built, load_weights(start_weights), where="start_weights")
    (folder / MODEL_FOLDER).mkdir(exist_ok=True)  # ``save_model`` would make all above it, a vanished store, too
    save_model(built, folder / MODEL_FOLDER)
    return FitResult(
        steps=0,
        tokens=0,
        executed_steps=0,
        executed_now=0,
        resumed_from=0,
        final_loss=None,
        checkpoint=str(folder / MODEL_FOLDER),
        seconds=time.perf_counter() - started,
        tokens_per_second=0.0,
        micro_batch=0,
        transferred_weights=transfer.transferred,
        new_weights=transfer.new,
        dropped_weights=transfer.unused,
    )


def checkpoint_activations(built: DecoderLM) -> None:
    """Let every layer keep its input alone and compute its activations again in the backward pass.

    Not reentrant, so that what a layer leaves in the forward context takes part in the backward pass, too.
    """
    for layer in built.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def training_flops_per_token(job: FitJob) -> float:
    """FLOPs of forward and backward per token at the job's context."""
    config = ModelConfig.from_dict(job.model)
    return FORWARDS_PER_TRAINING_STEP * flops_per_token(config, job.context, training=True)


def distillation(built: DecoderLM, settings: TrainingSettings, prepared: PreparedData) -> Distillation | None:
    """The job's objective where it is not the language-model loss; freezes what it does not train."""
    if settings.distill is None:
        return None
    marker = tuple(prepared.tokenizer.encode(ANSWERS).tolist()) if settings.distill.tokens == "answers" else None
    return Distillation(built, settings.distill, marker=marker, end_token_id=prepared.end_token_id)


def export(trained: DecoderLM, folder: Path, *, settings: TrainingSettings) -> Path:
    """Write ``model.safetensors`` and ``config.json`` to ``folder``; learned gates are binarised and kept beside it.

    The folder is made in a folder that is there: one that is gone with its store is never made again.
    """
    folder.mkdir(exist_ok=True)
    if settings.distill is not None:
        trained, gates = binarised(trained, settings.distill)
        write_json(folder / GATES_FILE, {"learned": gates, "full": binary_gates(gates, settings.distill)})
    save_model(trained, folder)
    return folder
