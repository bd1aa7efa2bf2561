"""One optimizer object for Lightning: Muon groups for hidden matrices and AdamW groups for the rest, or AdamW alone.

One object, because accumulation, clipping, ``global_step`` and checkpoints are then Lightning's own; with two, it would
count two steps per step. Muon is torch's own; this file only says who is in which group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gridlaw.modules.training.settings import OptimizerSettings


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the weights that Muon takes: those that a module names in its ``hidden_matrices``.

    A mixer or feed-forward network knows which of its matrices are projections of the stream; its routers, decays and
    low-rank gates are matrices, too, but not such. A name without a 2-D weight behind it is a bug and raises.
    """
    found: set[str] = set()
    for module_name, module in model.named_modules():
        for child in getattr(module, "hidden_matrices", ()):
            weight = getattr(module.get_submodule(child), "weight", None)
            assert isinstance(weight, Tensor), f"{module_name}.{child} has no weight"
            assert weight.ndim == 2, f"{module_name}.{child}.weight is no matrix: {tuple(weight.shape)}"
            found.add(f"{module_name}.{child}.weight".removeprefix("."))
    return found


def parameter_groups(model: nn.Module) -> dict[str, list[str]]:
    """Names of all trained parameters by group: ``hidden`` (Muon's, or AdamW's alone), ``rest_decay``, ``rest``.

    Weight decay applies to matrices, never to vectors; a parameter with ``no_weight_decay`` set on it has none either.
    """
    groups: dict[str, list[str]] = {"hidden": [], "rest_decay": [], "rest": []}
    hidden = hidden_matrices(model)
    for parameter_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.ndim >= 2 and not getattr(parameter, "no_weight_decay", False)
        group = "hidden" if parameter_name in hidden else "rest_decay" if decays else "rest"
        groups[group].append(parameter_name)
    return groups


class MuonAdamW(torch.optim.Optimizer):
    """torch's Muon and AdamW behind one ``Optimizer``.

    The groups and the state are this object's, so ``state_dict`` and ``load_state_dict`` are torch's; the two inner
    optimizers only lend their ``step`` and are pointed at this object's groups before each one, since
    ``load_state_dict`` replaces them.
    """

    def __init__(self, muon: Iterable[dict[str, Any]], adamw: Iterable[dict[str, Any]], settings: OptimizerSettings):
        muon_groups, adamw_groups = list(muon), list(adamw)
        self._inner: dict[str, torch.optim.Optimizer] = {}
        if muon_groups:
            self._inner["muon"] = torch.optim.Muon(
                muon_groups,
                lr=settings.lr,
                weight_decay=settings.weight_decay,
                momentum=settings.momentum,
                nesterov=settings.nesterov,
                ns_steps=settings.ns_steps,
                adjust_lr_fn="match_rms_adamw",
            )
        if adamw_groups:
            self._inner["adamw"] = torch.optim.AdamW(
                adamw_groups,
                lr=settings.lr,
                betas=(settings.beta1, settings.beta2),
                eps=settings.eps,
                weight_decay=settings.weight_decay,
                foreach=True,
            )
        for kind, inner in self._inner.items():
            for group in inner.param_groups:
                group["kind"] = kind
        super().__init__([group for inner in self._inner.values() for group in inner.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; ``closure`` runs once, with gradients on."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for kind, inner in self._inner.items():
            inner.param_groups = [group for group in self.param_groups if group["kind"] == kind]
            inner.state = self.state
            inner.step()
        return loss


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> MuonAdamW:
    """The optimizer of ``model``, its groups marked with ``kind`` and ``group_name`` for ``set_rate``."""
    parameters = dict(model.named_parameters())
    by_kind: dict[str, list[dict[str, Any]]] = {"muon": [], "adamw": []}
    for group_name, names in parameter_groups(model).items():
        if names:
            kind = settings.name if group_name == "hidden" else "adamw"
            by_kind[kind].append({"params": [parameters[name] for name in names], "group_name": group_name})
    optimizer = MuonAdamW(by_kind["muon"], by_kind["adamw"], settings)
    set_rate(optimizer, settings, 1.0)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, settings: OptimizerSettings, factor: float) -> float:
    """Set every group's rate and weight decay from the settings and the schedule's ``factor``; returns the main rate.

    Always from the settings, never from the groups: a checkpoint's groups override those of the constructor on load.
    """
    rest_lr = settings.lr if settings.rest_lr is None else settings.rest_lr
    for group in optimizer.param_groups:
        group["lr"] = (settings.lr if group["group_name"] == "hidden" else rest_lr) * factor
        group["weight_decay"] = 0.0 if group["group_name"] == "rest" else settings.weight_decay
    return settings.lr * factor
