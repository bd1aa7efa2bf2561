"""What all softmax mixers share (full, swa, headwise, switch, duo): projections, position, sink, cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.base import MixerSpec, check_flag, check_whole
from gridlaw.modules.scale import Scale


@dataclass(frozen=True, kw_only=True)
class SoftmaxSpec(MixerSpec):
    """Grouped-query softmax attention, no biases.

    rope: rotate queries and keys by position (False: no positional encoding, NoPE).
    sink: a learnable logit per query head, added to the denominator only; None takes the scale's default.
    """

    words: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nope": {"rope": False}, "nosink": {"sink": False}}

    rope: bool = True
    sink: bool | None = None

    def __post_init__(self) -> None:
        check_flag(self.name, "rope", self.rope)
        if self.sink is not None:
            check_flag(self.name, "sink", self.sink)

    @property
    def uses_rope(self) -> bool:
        return self.rope

    def resolved(self, scale: Scale) -> Self:
        if self.sink is not None:
            return self
        return dataclasses.replace(self, sink=scale.attention_sink)

    def check(self, scale: Scale) -> None:
        if self.rope and scale.head_dim % 2:
            raise BadSetting(
                f"scale {scale.name}: head_dim",
                seen=scale.head_dim,
                allowed="an even number with rotary positions",
                hint="Rotary positions turn features in pairs; take an even head_dim or set rope: false",
            )

    def num_params(self, scale: Scale) -> int:
        return self.num_projection_weights(scale)

    def num_params_uncounted(self, scale: Scale) -> int:
        return scale.num_heads if self.resolved(scale).sink else 0

    def weight_shapes(self, scale: Scale) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "q_proj.weight": (scale.inner_dim, scale.d_model),
            "k_proj.weight": (scale.kv_dim, scale.d_model),
            "v_proj.weight": (scale.kv_dim, scale.d_model),
            "o_proj.weight": (scale.d_model, scale.inner_dim),
        }
        return shapes | {"sink": (scale.num_heads,)} if self.resolved(scale).sink else shapes

    def num_projection_weights(self, scale: Scale) -> int:
        """Weights of the projections of q, k, v and the output."""
        return 2 * scale.d_model * scale.inner_dim + 2 * scale.d_model * scale.kv_dim

    def kv_bytes(self, scale: Scale, num_tokens: int, bytes_per_element: int) -> int:
        """Bytes of cached keys and values of `num_tokens` tokens."""
        return 2 * scale.kv_dim * num_tokens * bytes_per_element


def attention_flops(num_heads: int, head_dim: int, num_keys: int) -> int:
    """FLOPs of scores and weighted sum, 2·K each for every query head and visible key."""
    return 4 * num_heads * head_dim * num_keys


def check_window(mixer: str, window: Any) -> None:
    """Raise BadSetting unless `window` counts at least the current token."""
    check_whole(mixer, "window", window, hint="A window of w tokens counts the current one, so 1 is the smallest")
