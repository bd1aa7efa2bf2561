"""Gradient norms of attention heads during training: an example of a callback that watches single heads.

The projections' weights hold the heads one after another in their rows: q_proj.weight is [H·K, D], k_proj and v_proj
are [G·K, D] (H query heads, G key/value heads, K head dim, D width). Rows h·K to (h+1)·K are head h's slice.
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from gridlaw.modules.training.module import LanguageModelModule


def head_slices(weight_or_gradient: Tensor, num_heads: int) -> Tensor:
    """[num_heads·K, D] seen as [num_heads, K, D]; no copy."""
    return weight_or_gradient.unflatten(0, (num_heads, -1))


class HeadGradientNorms(pl.Callback):
    """Every ``every_steps`` optimizer steps, log ``head_grad_norm/LAYER/PROJECTION/HEAD``, before clipping.

    projections: which of q_proj, k_proj, v_proj; a layer without them (a recurrent mixer) is passed over.
    """

    def __init__(self, *, every_steps: int, projections: tuple[str, ...] = ("q_proj",)) -> None:
        self.every_steps, self.projections = every_steps, projections

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Gradients are complete here, over all micro-batches, and not clipped yet."""
        assert isinstance(pl_module, LanguageModelModule)
        if (trainer.global_step + 1) % self.every_steps:
            return
        names: list[str] = []
        norms: list[Tensor] = []
        for index, layer in enumerate(pl_module.model.layers):
            for projection in self.projections:
                gradient, num_heads = _gradient(layer.get_submodule("mixer"), projection)
                if gradient is not None:
                    norms.append(head_slices(gradient, num_heads).flatten(1).norm(dim=1))
                    names += [f"head_grad_norm/{index}/{projection}/{head}" for head in range(num_heads)]
        if norms:
            for name, value in zip(names, torch.cat(norms).tolist(), strict=True):
                pl_module.add_metric(name, value)


def _gradient(mixer: nn.Module, projection: str) -> tuple[Tensor | None, int]:
    """The projection's gradient and its number of heads; (None, 0) where the mixer has no such heads."""
    num_heads = getattr(mixer, "num_heads" if projection == "q_proj" else "num_kv_heads", 0)
    linear = getattr(mixer, projection, None)
    if not num_heads or not isinstance(linear, nn.Linear):
        return None, 0
    return linear.weight.grad, num_heads
