"""Head-wise mixing: half of the heads see everything, half a window; settings and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.base import matmul_flops, visible_keys
from gridlaw.modules.mixers.softmax_spec import SoftmaxSpec, attention_flops, check_window
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.headwise.module import HeadwiseAttention


@dataclass(frozen=True, kw_only=True)
class HeadwiseSpec(SoftmaxSpec):
    """The first half of the KV groups (with their query heads) attends fully, the second half within `window` tokens.

    That the KV groups are split the same way as the heads is our decision; the paper does not say.
    """

    name: ClassVar[str] = "headwise"

    window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.name, self.window)

    def check(self, scale: Scale) -> None:
        super().check(scale)
        if scale.num_kv_heads % 2:
            raise BadSetting(
                f"scale {scale.name}: num_kv_heads",
                seen=scale.num_kv_heads,
                allowed="an even number with head-wise mixing",
                hint="Half of the KV heads serve the full heads, half the windowed ones",
            )

    def fixed_full_ratio(self, scale: Scale) -> float | None:
        return 0.5

    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        keys = visible_keys(length) + visible_keys(length, self.window)
        return matmul_flops(self.num_projection_weights(scale), length) + attention_flops(
            scale.num_heads // 2, scale.head_dim, keys
        )

    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        return self.kv_bytes(scale, context + min(context, self.window), bytes_per_element) // 2

    def build(self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5) -> HeadwiseAttention:
        from gridlaw.modules.mixers.headwise.module import HeadwiseAttention

        return HeadwiseAttention(self, scale)
