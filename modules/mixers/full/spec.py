"""Full causal softmax attention: settings and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gridlaw.modules.mixers.base import matmul_flops, visible_keys
from gridlaw.modules.mixers.softmax_spec import SoftmaxSpec, attention_flops
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.full.module import FullAttention


@dataclass(frozen=True, kw_only=True)
class FullSpec(SoftmaxSpec):
    """Softmax over all positions up to the current one, with a learnable sink (arXiv 2606.15378, section on mixers)."""

    name: ClassVar[str] = "full"

    def fixed_full_ratio(self, scale: Scale) -> float | None:
        return 1.0

    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        return matmul_flops(self.num_projection_weights(scale), length) + attention_flops(
            scale.num_heads, scale.head_dim, visible_keys(length)
        )

    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        return self.kv_bytes(scale, context, bytes_per_element)

    def build(self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5) -> FullAttention:
        from gridlaw.modules.mixers.full.module import FullAttention

        return FullAttention(self, scale)
