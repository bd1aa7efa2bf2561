"""From a job to its model, and from a trained model to files for outside use."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gridlaw.modules.catalog import flops_per_token
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.training.job import FitJob

FORWARDS_PER_TRAINING_STEP = 3
"""Forward, and twice that for the backward pass; recomputation is not counted."""


def model(job: FitJob, *, load_weights: bool) -> tuple[DecoderLM, list[str], list[str]]:
    """The job's model with initial values from its seed, and with its ``start_weights`` if it begins now.

    load_weights: whether the run is at its beginning; else the weights come from a checkpoint.
    Returns the model, the names that ``start_weights`` did not give, and those of it that found no place.
    """
    config = ModelConfig.from_dict(job.model)
    built = DecoderLM(config)
    built.initialise(job.seed)
    if job.activation_checkpointing:
        checkpoint_activations(built)
    if job.start_weights is None or not load_weights:
        return built, [], []
    new, dropped = transfer(built, Path(job.start_weights))
    return built, new, dropped


def checkpoint_activations(built: DecoderLM) -> None:
    """Let every layer keep its input alone and compute its activations again in the backward pass.

    Not reentrant, so that what a layer leaves in the forward context takes part in the backward pass, too.
    """
    for layer in built.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def transfer(target: nn.Module, folder: Path) -> tuple[list[str], list[str]]:
    """Copy the weights of ``folder/model.safetensors`` into ``target`` by name and shape.

    Returns (new, dropped): names of ``target`` that keep their initial values, and names of the file that were not
    used. BadSetting if there is no such file or nothing in it fits.
    """
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    if not path.is_file():
        raise BadSetting("start_weights", seen=str(folder), allowed="a folder with model.safetensors")
    given = load_file(path)
    own = target.state_dict()
    fitting = {name: weight for name, weight in given.items() if name in own and own[name].shape == weight.shape}
    if not fitting:
        raise BadSetting(
            "start_weights",
            seen=str(path),
            allowed="weights of which some fit this model by name and shape",
            hint=f"It has e.g. {', '.join(sorted(given)[:3])}; the model has {', '.join(sorted(own)[:3])}",
        )
    with torch.no_grad():
        for name, weight in fitting.items():
            own[name].copy_(weight)
    return sorted(own.keys() - fitting.keys()), sorted(given.keys() - fitting.keys())


def training_flops_per_token(job: FitJob) -> float:
    """FLOPs of forward and backward per token at the job's context."""
    config = ModelConfig.from_dict(job.model)
    return FORWARDS_PER_TRAINING_STEP * flops_per_token(config, job.context, training=True)


def export(trained: DecoderLM, folder: Path) -> Path:
    """Write ``model.safetensors`` and ``config.json`` to ``folder``."""
    from gridlaw.modules.models.checkpoint import save_model

    save_model(trained, folder)
    return folder
