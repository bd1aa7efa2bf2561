"""Mamba-2 (SSD with a scalar decay per head): settings and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gridlaw.modules.mixers.base import STATE_BYTES_PER_ELEMENT, MixerSpec, matmul_flops
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.mamba2.module import Mamba2


@dataclass(frozen=True, kw_only=True)
class Mamba2Spec(MixerSpec):
    """S_t = gamma_t S_{t-1} + dt_t x_t B_t^T, y_t = S_t C_t + D x_t, RMSNorm(y · SiLU(z)); no convolution.

    H heads of the scale's head dim (expand 1), B and C shared by the heads of one of G groups.
    """

    name: ClassVar[str] = "mamba2"

    def state_dim(self, scale: Scale) -> int:
        """Width of B and C per group: 16 at head dim 64."""
        return max(4, scale.head_dim // 4)

    def num_projection_weights(self, scale: Scale) -> int:
        """Weights of z, x (H·K each), B, C (G·state each), dt (H) and the output."""
        groups = 2 * scale.num_kv_heads * self.state_dim(scale)
        return scale.d_model * (2 * scale.inner_dim + groups + scale.num_heads) + scale.inner_dim * scale.d_model

    def num_params(self, scale: Scale) -> int:
        return self.num_projection_weights(scale) + 3 * scale.num_heads + scale.inner_dim  # A_log, D, dt_bias; norm

    def weight_shapes(self, scale: Scale) -> dict[str, tuple[int, ...]]:
        width, heads, grouped = scale.d_model, scale.num_heads, scale.num_kv_heads * self.state_dim(scale)
        rows = {"z": scale.inner_dim, "x": scale.inner_dim, "B": grouped, "C": grouped, "dt": heads}
        shapes: dict[str, tuple[int, ...]] = {f"{name}_proj.weight": (dim, width) for name, dim in rows.items()}
        shapes |= dict.fromkeys(("A_log", "D", "dt_bias"), (heads,))
        return shapes | {"o_proj.weight": (width, scale.inner_dim), "norm": (scale.inner_dim,)}

    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        recurrence = 4 * scale.inner_dim * self.state_dim(scale)
        return matmul_flops(self.num_projection_weights(scale), length) + recurrence * length

    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        return scale.inner_dim * self.state_dim(scale) * STATE_BYTES_PER_ELEMENT

    def build(self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5) -> Mamba2:
        from gridlaw.modules.mixers.mamba2.module import Mamba2

        return Mamba2(self, scale, norm_eps=norm_eps)
