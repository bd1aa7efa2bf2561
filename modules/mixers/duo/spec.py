"""DuoAttention's gated heads: a gate per KV head between full and streaming attention; settings and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gridlaw.modules.mixers.base import check_flag, check_whole, matmul_flops, visible_keys
from gridlaw.modules.mixers.softmax_spec import SoftmaxSpec, attention_flops, check_window
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.duo.module import DuoAttention


@dataclass(frozen=True, kw_only=True)
class DuoSpec(SoftmaxSpec):
    """gate · full + (1 − gate) · streaming per KV head (arXiv 2410.10819); streaming sees first and recent tokens.

    window: recent tokens a streaming head sees, the current one included.
    first_tokens: tokens at the start (of the document) that a streaming head sees besides.
    binary: gates above 0.5 count as 1, the others as 0, and decoding keeps only what each head needs.
    """

    name: ClassVar[str] = "duo"

    window: int = 1024
    first_tokens: int = 4
    binary: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.name, self.window)
        check_whole(self.name, "first_tokens", self.first_tokens, minimum=0)
        check_flag(self.name, "binary", self.binary)

    def num_params(self, scale: Scale) -> int:
        return self.num_projection_weights(scale) + scale.num_kv_heads

    def fixed_full_ratio(self, scale: Scale) -> float | None:
        return None

    def weight_shapes(self, scale: Scale) -> dict[str, tuple[int, ...]]:
        return super().weight_shapes(scale) | {"gate": (scale.num_kv_heads,)}

    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        weights = matmul_flops(self.num_projection_weights(scale), length)
        full = attention_flops(scale.num_heads, scale.head_dim, visible_keys(length))
        streaming = attention_flops(
            scale.num_heads, scale.head_dim, visible_keys(length, self.window + self.first_tokens)
        )
        if training or not self.binary:
            return weights + full + streaming
        return weights + full_ratio * full + (1 - full_ratio) * streaming

    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        return self.kv_bytes(scale, context, bytes_per_element)

    def build(self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5) -> DuoAttention:
        from gridlaw.modules.mixers.duo.module import DuoAttention

        return DuoAttention(self, scale)
