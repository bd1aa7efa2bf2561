"""Small models of every architecture, for tests: one row per architecture, weights that make every part matter."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gridlaw.modules.catalog import Architecture, model_config, resolve_architecture
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.scale import Scale

WINDOW = 16
VOCAB_SIZE = 61

# Every registered architecture, at a window that a short test text crosses. A new one is one row here.
ARCHITECTURES: dict[str, str | Mapping[str, Any]] = {
    "full": "full",
    "swa-128": f"swa-{WINDOW}",
    "swa-512": "swa-19",
    "swa-2048": "swa-1",
    "lightning": "lightning",
    "mamba2": "mamba2",
    "gdn": "gdn",
    "gdn-conv": "gdn-conv",
    "swa-128-1to3": f"swa-{WINDOW}-1to3",
    "swa-128-headwise": f"swa-{WINDOW}-headwise",
    "swa-128-nope": f"swa-{WINDOW}-nope",
    "swiattn": f"swiattn-{WINDOW}",
    "sh-3to1": f"sh-3to1-{WINDOW}",
    "sh-6to1": f"sh-6to1-{WINDOW}",
    "swa-only": f"swa-only-{WINDOW}",
    "duo": f"duo-{WINDOW}",
    "duo, binary": {"name": "duo-binary", "of": f"duo-{WINDOW}", "binary": True},
    "no sink, no rope": {"name": "bare", "pattern": ["swa-9-nosink-nope", "full-nosink-nope", "switch-9-nosink"]},
}


def tiny_architecture(name: str) -> Architecture:
    """The architecture of a row of the table, or of any entry of a grid file."""
    return resolve_architecture(ARCHITECTURES.get(name, name))


def tiny_scale(num_layers: int = 2) -> Scale:
    """Four query heads in two groups of head dim 8."""
    return Scale(
        name="tiny", num_layers=num_layers, d_model=32, ffn_dim=48, num_heads=4, num_kv_heads=2, head_dim=8
    )  # fmt: skip


def tiny_model(architecture: Architecture, *, context: int = 128, num_layers: int | None = None) -> DecoderLM:
    """A lively model with every layer of the pattern at least once."""
    scale = tiny_scale(max(2, len(architecture.pattern)) if num_layers is None else num_layers)
    config = model_config(architecture, scale, vocab_size=VOCAB_SIZE, context=context)
    return lively(DecoderLM(config).initialise(0)).eval()


@torch.no_grad()
def lively(model: DecoderLM) -> DecoderLM:
    """Larger weights than at the start of training, so that attention is not uniform and gates do not agree."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        if name.endswith(".sink"):
            parameter.normal_(generator=generator)
        elif name.endswith("mixer.gate"):
            parameter.copy_(torch.linspace(0.2, 0.9, len(parameter)))
        elif name.endswith("router.weight"):
            parameter.normal_(generator=generator)
        elif name.endswith("conv"):
            parameter.normal_(0.0, 0.5, generator=generator)
        elif parameter.dim() == 2:
            parameter.normal_(0.0, 1.5 * parameter.shape[1] ** -0.5, generator=generator)
    return model


def random_tokens(batch_size: int, num_tokens: int, *, seed: int = 0) -> Tensor:
    """Token ids [batch_size, num_tokens]."""
    return torch.randint(0, VOCAB_SIZE, (batch_size, num_tokens), generator=torch.Generator().manual_seed(seed))
