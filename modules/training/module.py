"""The LightningModule of a decoder-only language model: loss, optimizer, learning rate, and what a checkpoint carries.

It decides what a step computes. When to save, to log and to stop is decided by the callbacks; where data come from, by
``fit``. Automatic optimisation with one optimizer: accumulation and ``global_step`` are Lightning's.

B windows, T = context tokens.
"""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from gridlaw.modules.data.batches import document_ids
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.training import resume
from gridlaw.modules.training.cross_entropy import cross_entropy
from gridlaw.modules.training.distillation import Distillation
from gridlaw.modules.training.errors import Diverged
from gridlaw.modules.training.gamma_controller import GammaController
from gridlaw.modules.training.optimizer import build_optimizer, set_rate
from gridlaw.modules.training.schedule import Plan
from gridlaw.modules.training.settings import TrainingSettings

GAMMA_CONTROLLER = "gridlaw_gamma_controller"


class LanguageModelModule(pl.LightningModule):
    """Next-token training of ``model`` by ``settings`` and ``plan``, or its ``distillation`` where there is one.

    recipe: what a checkpoint must share with this run (``FitJob.recipe``). end_token_id: set where documents of one
    window do not see each other, else None.

    After each optimizer step ``last_loss``, ``last_grad_norm`` and ``last_lr`` hold that step's values, and
    ``last_auxiliary`` and ``last_full_ratios`` (by layer) those of a model that has them, else None and nothing.
    """

    def __init__(
        self,
        model: DecoderLM,
        *,
        settings: TrainingSettings,
        plan: Plan,
        recipe: dict[str, Any],
        end_token_id: int | None = None,
        compile_model: bool = False,
        distillation: Distillation | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.settings, self.plan, self.recipe, self.end_token_id = settings, plan, recipe, end_token_id
        self._hidden = torch.compile(model.hidden) if compile_model else model.hidden
        self._losses: list[Tensor] = []
        self._auxiliary: list[Tensor] = []
        self._ratios: list[Tensor] = []
        self.last_loss, self.last_grad_norm, self.last_lr = math.nan, math.nan, math.nan
        self.last_auxiliary: float | None = None
        self.last_full_ratios: list[float] = []
        self.extra_metrics: dict[str, float] = {}
        steered = settings.gamma_controller
        self.distillation = distillation
        self.gamma_controller = None if steered is None else GammaController(model, steered)

    def add_metric(self, name: str, value: float) -> None:
        """Log ``value`` with the row of the current optimizer step: the place for statistics of other callbacks."""
        self.extra_metrics[name] = value

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Mean loss of one micro-batch of windows, int [B, T + 1], with the mixers' auxiliary losses added."""
        tokens = batch[:, :-1]
        documents = None if self.end_token_id is None else document_ids(tokens, self.end_token_id)
        ctx = self.model.context_for(tokens, document_ids=documents)
        if self.distillation is None:
            hidden = self._hidden(tokens, ctx=ctx)
            loss, nll_BT = cross_entropy(hidden, self.model.head.weight, batch[:, 1:])
            auxiliary = self.model.auxiliary_loss(ctx, nll_BT)
        else:
            loss, auxiliary = self.distillation.losses(tokens, ctx, self._hidden)
        self._losses.append(loss.detach())
        if self.model.chooses:
            self._ratios.append(torch.stack([share.float().mean() for share in self.model.full_shares(ctx)]))
        if auxiliary is None:
            return loss
        self._auxiliary.append(auxiliary.detach())
        return loss + auxiliary

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer and no scheduler: see ``schedule``."""
        return build_optimizer(self.model, self.settings.optimizer)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set rate and weight decay for this step, from the settings and the step alone."""
        self.last_lr = set_rate(optimizer, self.settings.optimizer, self.plan.factor(self.trainer.global_step))

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        """Clip, and refuse an update that is not finite: after the backward pass, before the update.

        The one place of a step where values leave the device, all at once.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        values = [_mean(self._losses), norm] + ([_mean(self._auxiliary)] if self._auxiliary else [])
        if self._ratios:
            values += list(_mean(self._ratios).unbind())
        has_auxiliary = bool(self._auxiliary)
        for kept in (self._losses, self._auxiliary, self._ratios):
            kept.clear()
        self.last_loss, self.last_grad_norm, *rest = torch.stack(values).tolist()
        self.last_auxiliary = rest.pop(0) if has_auxiliary else None
        self.last_full_ratios = rest
        seen = {"loss": self.last_loss, "auxiliary loss": self.last_auxiliary, "gradient norm": self.last_grad_norm}
        for what, value in seen.items():
            if value is not None and not math.isfinite(value):
                raise Diverged(self.trainer.global_step, f"{what} is {value}")
        if self.gamma_controller is not None:
            self.gamma_controller.observe(sum(self.last_full_ratios) / len(self.last_full_ratios))
        clip = self.settings.clip
        if clip and self.last_grad_norm > clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what a later run compares before it goes on from here."""
        resume.mark(checkpoint, self.recipe, self.plan, self.last_loss)
        if self.gamma_controller is not None:
            checkpoint[GAMMA_CONTROLLER] = self.gamma_controller.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another run; put Lightning's loop counters right."""
        resume.check(checkpoint, self.recipe, self.plan)
        resume.set_loop_counters(checkpoint, self.trainer.accumulate_grad_batches)
        self.last_loss = float(checkpoint[resume.LAST_LOSS])
        if self.gamma_controller is not None:
            self.gamma_controller.restore(checkpoint[GAMMA_CONTROLLER])


def _mean(values: list[Tensor]) -> Tensor:
    """Of the micro-batches of a step; one is taken as it is."""
    return values[0] if len(values) == 1 else torch.stack(values).mean(0)
