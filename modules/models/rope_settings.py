"""A grid file's ``rope:`` resolved: the base of the rotary angles, and YaRN for a longer context. Free of torch.

Names are those of transformers' ``rope_parameters`` with our words for tokens: ``base`` is rope_theta,
``original_context`` original_max_position_embeddings; ``factor``, ``beta_fast``, ``beta_slow`` and ``attention_factor``
are the same (YaRN: arXiv 2309.00071). What is left out is the base model's where a stage starts from one: weights keep
the positions that they were trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.config import ModelConfig


def default_rope_base(context: int) -> float:
    """Base of the rotary angles where nothing else is said: 10,000 up to 4,096 tokens of context, else 500,000."""
    return 10_000.0 if context <= 4096 else 500_000.0


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Positions of a model. base: of the angles. scaling: as ``ModelConfig.rope_scaling``."""

    base: float
    scaling: dict[str, Any] | None = None


def resolve_rope(given: Mapping[str, Any], *, context: int, start: ModelConfig | None) -> Rope:
    """The positions of a model that is trained at ``context`` tokens.

    given: ``rope:`` of the stage. start: the model whose weights it starts from, None for a fresh start.
    BadSetting where YaRN lacks a number that nothing tells.
    """
    base = given.get("base")
    if base is None:
        base = default_rope_base(context) if start is None else start.rope_base
    if "yarn" not in given:
        return Rope(base=float(base), scaling=None if start is None else start.rope_scaling)
    yarn = given["yarn"]
    original = yarn.get("original_context") or (None if start is None else trained_context(start))
    if original is None:
        raise BadSetting(
            "rope.yarn.original_context",
            allowed="the context in tokens that the weights were trained at",
            hint="Only a stage with from: knows it without being told",
        )
    factor = yarn.get("factor")
    if factor is None:
        factor = context / original
        if factor < 1:
            raise BadSetting(
                "data.context",
                seen=context,
                allowed=f"at least the {original} tokens that the weights were trained at, under rope.yarn",
                hint="Take a longer context, or give rope.yarn.factor",
            )
    if factor == 1:  # nothing is stretched, and the attention factor is 1
        return Rope(base=float(base))
    numbers = {key: yarn.get(key) for key in ("beta_fast", "beta_slow", "attention_factor")}
    scaling = {"type": "yarn", "factor": float(factor), "original_context": int(original)}
    return Rope(base=float(base), scaling=scaling | {key: value for key, value in numbers.items() if value is not None})


def trained_context(model: ModelConfig) -> int:
    """Tokens that a model's positions were trained at before any stretching."""
    return model.context if model.rope_scaling is None else int(model.rope_scaling["original_context"])


def rope_warning(model: ModelConfig, start: ModelConfig | None) -> str:
    """What a person should know of a model's positions before it is trained; empty if nothing."""
    if not any(mixer.uses_rope for mixer in model.mixers()):
        return ""
    scaling = model.rope_scaling
    if scaling is not None and scaling["factor"] * scaling["original_context"] < model.context:
        return (
            f"YaRN with factor {scaling['factor']:g} of {scaling['original_context']:,} tokens covers "
            f"{scaling['factor'] * scaling['original_context']:,.0f}, fewer than the context of {model.context:,}"
        )
    same = start is not None and (start.rope_base, start.rope_scaling) == (model.rope_base, scaling)
    if start is not None and same and model.context > start.context:
        return (
            f"a context of {model.context:,} tokens with the rotary positions of weights that were trained at "
            f"{start.context:,}: rope: {{base: …}} or {{yarn: {{}}}} extends them"
        )
    return ""
