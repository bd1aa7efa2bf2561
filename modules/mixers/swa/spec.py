"""Sliding-window softmax attention: settings and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gridlaw.modules.mixers.base import matmul_flops, visible_keys
from gridlaw.modules.mixers.softmax_spec import SoftmaxSpec, attention_flops, check_window
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.swa.module import SlidingWindowAttention


@dataclass(frozen=True, kw_only=True)
class SwaSpec(SoftmaxSpec):
    """Softmax over the last `window` tokens, the current one included; sink as in full attention."""

    name: ClassVar[str] = "swa"

    window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.name, self.window)

    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        return matmul_flops(self.num_projection_weights(scale), length) + attention_flops(
            scale.num_heads, scale.head_dim, visible_keys(length, self.window)
        )

    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        return self.kv_bytes(scale, min(context, self.window), bytes_per_element)

    def build(
        self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5
    ) -> SlidingWindowAttention:
        from gridlaw.modules.mixers.swa.module import SlidingWindowAttention

        return SlidingWindowAttention(self, scale)
