"""Whether an architecture fits what ``training:`` wants of its layers beyond the language-model loss. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gridlaw.modules.mixers.base import MixerSpec
from gridlaw.modules.mixers.duo.spec import DuoSpec
from gridlaw.modules.mixers.switch.spec import SwitchSpec
from gridlaw.modules.scale import Scale
from gridlaw.modules.training.settings import TrainingSettings
from gridlaw.platform.errors import BadInput

PASSKEY = "generate:passkey"


def check_objective(
    architecture: str,
    layers: Sequence[MixerSpec],
    scale: Scale,
    settings: TrainingSettings,
    *,
    data: Mapping[str, Any],
    has_parent: bool,
) -> list[str]:
    """BadInput for an objective that these layers, data or weights do not allow; else warnings.

    data: the declaration. has_parent: whether training starts from another model's weights.
    """
    _check_controller(architecture, layers, scale, settings)
    learned = any(isinstance(layer, DuoSpec) and not layer.binary for layer in layers)
    if settings.distill is not None:
        _check_distillation(architecture, learned, settings, data, has_parent)
    elif learned and has_parent:
        raise BadInput(
            f"training.distill of {architecture}",
            allowed=f"distillation settings beside data.mixture: [{{source: {PASSKEY}}}]",
            hint="Duo's gates are learned by distillation; write distill: {} under the stage's training, or take "
            "{name: …, of: duo-64, binary: true} for gates that are learned already",
        )
    elif learned:
        return [f"{architecture}: its gates learn from the language-model loss, not by DuoAttention's distillation"]
    return []


def _check_controller(architecture: str, layers: Sequence[MixerSpec], scale: Scale, settings: TrainingSettings) -> None:
    if settings.gamma_controller is None:
        return
    if not any(isinstance(layer, SwitchSpec) for layer in layers):
        raise BadInput(
            f"training.gamma_controller of {architecture}",
            allowed="only beside layers of the mixer switch",
            hint="Put it under the architecture's own training: {name: mine, of: swiattn-64, training: {…}}",
        )
    fixed = [layer.fixed_full_ratio(scale) for layer in layers]
    low = sum(0.0 if share is None else share for share in fixed) / len(fixed)
    high = sum(1.0 if share is None else share for share in fixed) / len(fixed)
    target = settings.gamma_controller.target
    if not low <= target <= high:
        raise BadInput(
            f"training.gamma_controller.target of {architecture}",
            seen=target,
            allowed=f"{low:g} to {high:g}, what its layers can reach",
        )


def _check_distillation(
    architecture: str, learned: bool, settings: TrainingSettings, data: Mapping[str, Any], has_parent: bool
) -> None:
    assert settings.distill is not None, "asked for a run that distils"
    if not learned:
        raise BadInput(
            f"training.distill of {architecture}",
            allowed="only beside layers of the mixer duo whose gates are not binary yet",
            hint="Put duo into a stage of its own, or distill under the architecture's own training",
        )
    if not has_parent:
        raise BadInput(
            f"training.distill of {architecture}",
            allowed="only in a stage with from: the full-attention model whose heads are told apart",
            hint="As in {name: duo, from: pretrain/full/100N, architectures: [duo-64], …}",
        )
    sources = [part["source"] for part in data["mixture"]]
    names = [f"{source['kind']}:{source.get('name', '')}".rstrip(":") for source in sources]
    if settings.distill.tokens == "answers" and set(names) != {PASSKEY}:
        raise BadInput(
            f"data.mixture of {architecture}",
            seen=names,
            allowed=f"{PASSKEY} alone, the text whose answers distillation compares",
            hint=f"Write data: {{mixture: [{{source: {PASSKEY}}}]}} under the stage, or distill: {{tokens: all}}",
        )
