"""From a job to its model, and from a trained model to files for outside use."""

from __future__ import annotations

import functools
from pathlib import Path

from torch.utils.checkpoint import checkpoint

from gridlaw.modules.catalog import flops_per_token
from gridlaw.modules.models.checkpoint import load_weights, save_model, transfer_weights
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.training.job import FitJob

FORWARDS_PER_TRAINING_STEP = 3
"""Forward, and twice that for the backward pass; recomputation is not counted."""


def model(job: FitJob, *, begins: bool) -> tuple[DecoderLM, list[str], list[str]]:
    """The job's model with initial values from its seed, and with its ``start_weights`` if it begins now.

    begins: whether the run is at its beginning; else all weights come from a checkpoint.
    Returns the model, the names that ``start_weights`` did not give, and those of it that found no place.
    """
    config = ModelConfig.from_dict(job.model)
    built = DecoderLM(config)
    built.initialise(job.seed)
    if job.activation_checkpointing:
        checkpoint_activations(built)
    if job.start_weights is None or not begins:
        return built, [], []
    given = transfer_weights(built, load_weights(job.start_weights), where="start_weights")
    return built, list(given.new), list(given.unused)


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


def export(trained: DecoderLM, folder: Path) -> Path:
    """Write ``model.safetensors`` and ``config.json`` to ``folder``."""
    save_model(trained, folder)
    return folder
