"""The resolved description of one model: plain numbers and settings, JSON-able, free of torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.base import MixerSpec
from gridlaw.modules.mixers.registry import mixer_from_dict
from gridlaw.modules.scale import Scale


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that decides a model's function and initial values, and nothing else (no names, no paths).

    layers: one mixer dict per layer, in order, every default filled in.
    context: tokens of a training window; rotary tables grow beyond it when longer text comes.
    rope_scaling: None, or {"type": "yarn", "factor": float, "original_context": tokens}, and if they are not the usual
        ones "beta_fast" (32), "beta_slow" (1) and "attention_factor" (None: 0.1 · ln(factor) + 1).
    """

    layers: tuple[dict[str, Any], ...]
    d_model: int
    ffn_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context: int
    rope_base: float
    rope_scaling: dict[str, Any] | None = None
    norm_eps: float = 1e-5
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if not self.layers:
            raise BadSetting("layers", seen=[], allowed="at least one layer")
        for field in ("vocab_size", "context"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadSetting(field, seen=value, allowed="a whole number of at least 1")
        if not self.rope_base > 1:
            raise BadSetting("rope_base", seen=self.rope_base, allowed="a number above 1, usually 10000 or more")
        check_rope_scaling(self.rope_scaling)
        if self.rope_scaling is not None:
            object.__setattr__(self, "rope_scaling", {**YARN_DEFAULTS, **self.rope_scaling})

    @property
    def num_layers(self) -> int:
        """Depth."""
        return len(self.layers)

    @property
    def scale(self) -> Scale:
        """The size alone, as mixers take it."""
        return Scale(
            name="model",
            num_layers=self.num_layers,
            d_model=self.d_model,
            ffn_dim=self.ffn_dim,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
        )

    def mixers(self) -> list[MixerSpec]:
        """The mixer of every layer, in order."""
        return [mixer_from_dict(layer) for layer in self.layers]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` reads it back equal."""
        return {**dataclasses.asdict(self), "layers": [dict(layer) for layer in self.layers]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config from its dict; unknown or missing fields raise BadSetting."""
        names = {field.name for field in dataclasses.fields(cls)}
        required = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
        if extra := sorted(values.keys() - names):
            raise BadSetting("model config: fields", seen=extra, allowed=", ".join(sorted(names)))
        if missing := sorted(required - values.keys()):
            raise BadSetting(
                "model config: missing fields",
                seen=missing,
                allowed=", ".join(sorted(names)),
                hint="Is this a config.json written by gridlaw?",
            )
        return cls(**{**values, "layers": tuple(dict(layer) for layer in values["layers"])})


YARN_DEFAULTS: Mapping[str, Any] = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None}
_YARN_REQUIRED = {"type", "factor", "original_context"}


def check_rope_scaling(scaling: Any) -> None:
    """Raise BadSetting unless `scaling` is None or a complete YaRN setting."""
    if scaling is None:
        return
    allowed = "{type: yarn, factor: number of at least 1, original_context: tokens}"
    known = isinstance(scaling, Mapping) and _YARN_REQUIRED <= set(scaling) <= _YARN_REQUIRED | set(YARN_DEFAULTS)
    if not known or scaling["type"] != "yarn" or not scaling["factor"] >= 1 or not scaling["original_context"] >= 1:
        raise BadSetting("rope_scaling", seen=scaling, allowed=allowed)
    fast, slow = (scaling.get(key, YARN_DEFAULTS[key]) for key in ("beta_fast", "beta_slow"))
    if not fast > slow > 0:
        raise BadSetting(
            "rope_scaling: beta_fast, beta_slow", seen=(fast, slow), allowed="beta_fast above beta_slow, both above 0"
        )
    attention = scaling.get("attention_factor")
    if attention is not None and not attention > 0:
        raise BadSetting("rope_scaling: attention_factor", seen=attention, allowed="a number above 0, or nothing")
