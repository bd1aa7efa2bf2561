"""Lightning attention (linear attention with a fixed decay per head): settings and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gridlaw.modules.mixers.base import STATE_BYTES_PER_ELEMENT, MixerSpec, matmul_flops
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.lightning.module import LightningAttention


@dataclass(frozen=True, kw_only=True)
class LightningSpec(MixerSpec):
    """S_t = gamma_h S_{t-1} + v_t k_t^T, o_t = S_t q_t; the projections of full attention plus a low-rank output gate.

    The FFN is narrowed so that the layer keeps the size of a full one (arXiv 2606.15378, parameter tables).
    """

    name: ClassVar[str] = "lightning"

    def gate_rank(self, scale: Scale) -> int:
        """Rank of the output gate d_model -> rank -> H·K: the head dim."""
        return scale.head_dim

    def ffn_dim(self, scale: Scale) -> int:
        return scale.ffn_dim - 8 * round(scale.head_dim / 12)

    def num_params(self, scale: Scale) -> int:
        projections = 2 * scale.d_model * scale.inner_dim + 2 * scale.d_model * scale.kv_dim
        return projections + self.gate_rank(scale) * (scale.d_model + scale.inner_dim)

    def weight_shapes(self, scale: Scale) -> dict[str, tuple[int, ...]]:
        return {
            "q_proj.weight": (scale.inner_dim, scale.d_model),
            "k_proj.weight": (scale.kv_dim, scale.d_model),
            "v_proj.weight": (scale.kv_dim, scale.d_model),
            "gate_down.weight": (self.gate_rank(scale), scale.d_model),
            "gate_up.weight": (scale.inner_dim, self.gate_rank(scale)),
            "o_proj.weight": (scale.d_model, scale.inner_dim),
        }

    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        recurrence = 4 * scale.num_heads * scale.head_dim**2
        return matmul_flops(self.num_params(scale), length) + recurrence * length

    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        return scale.num_heads * scale.head_dim**2 * STATE_BYTES_PER_ELEMENT

    def build(self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5) -> LightningAttention:
        from gridlaw.modules.mixers.lightning.module import LightningAttention

        return LightningAttention(self, scale, layer_index=layer_index, num_layers=num_layers, norm_eps=norm_eps)
