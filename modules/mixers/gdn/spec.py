"""Gated DeltaNet, without and with the short convolution: settings and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gridlaw.modules.mixers.base import STATE_BYTES_PER_ELEMENT, MixerSpec, check_flag, matmul_flops
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.gdn.module import GatedDeltaNet

CONV_KERNEL = 4  # tokens the short convolution sees, the current one included


@dataclass(frozen=True, kw_only=True)
class GdnSpec(MixerSpec):
    """S_t = alpha_t S_{t-1}(I − beta_t k_t k_t^T) + beta_t v_t k_t^T with one state per KV head, shared by its queries.

    short_conv: a depthwise causal convolution of 4 tokens, no bias, on q, k and v before their SiLU (`gdn-conv`).
    """

    name: ClassVar[str] = "gdn"
    words: ClassVar[Mapping[str, Mapping[str, Any]]] = {"conv": {"short_conv": True}}

    short_conv: bool = False

    def __post_init__(self) -> None:
        check_flag(self.name, "short_conv", self.short_conv)

    def state_head_dim(self, scale: Scale) -> int:
        """Head dim of q, k, v and the state: the even number nearest 46/64 of the scale's head dim."""
        return max(2, 2 * ((46 * scale.head_dim + 64) // 128))

    def num_channels(self, scale: Scale) -> int:
        """Channels of q, k and v together: those the short convolution runs over."""
        return self.state_head_dim(scale) * (scale.num_heads + 2 * scale.num_kv_heads)

    def num_projection_weights(self, scale: Scale) -> int:
        """Weights of q, gate and output (H heads), k and v (G heads), a and b (one each per state)."""
        heads = self.state_head_dim(scale) * (3 * scale.num_heads + 2 * scale.num_kv_heads)
        return scale.d_model * (heads + 2 * scale.num_kv_heads)

    def num_conv_weights(self, scale: Scale) -> int:
        """Weights of the short convolution, 0 without it."""
        return CONV_KERNEL * self.num_channels(scale) if self.short_conv else 0

    def num_params(self, scale: Scale) -> int:
        vectors = 2 * scale.num_kv_heads + self.state_head_dim(scale)  # A_log, dt_bias; output norm
        return self.num_projection_weights(scale) + self.num_conv_weights(scale) + vectors

    def weight_shapes(self, scale: Scale) -> dict[str, tuple[int, ...]]:
        width, states = scale.d_model, scale.num_kv_heads
        q_dim, k_dim = self.state_head_dim(scale) * scale.num_heads, self.state_head_dim(scale) * states
        rows = {"q": q_dim, "k": k_dim, "v": k_dim, "g": q_dim, "a": states, "b": states}
        shapes: dict[str, tuple[int, ...]] = {f"{name}_proj.weight": (dim, width) for name, dim in rows.items()}
        shapes |= {"o_proj.weight": (width, q_dim), "A_log": (states,), "dt_bias": (states,)}
        shapes["norm"] = (self.state_head_dim(scale),)
        return shapes | {"conv": (self.num_channels(scale), CONV_KERNEL)} if self.short_conv else shapes

    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        recurrence = (8 * scale.num_kv_heads + 2 * scale.num_heads) * self.state_head_dim(scale) ** 2
        weights = self.num_projection_weights(scale) + self.num_conv_weights(scale)
        return matmul_flops(weights, length) + recurrence * length

    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        state = scale.num_kv_heads * self.state_head_dim(scale) ** 2 * STATE_BYTES_PER_ELEMENT
        conv = (CONV_KERNEL - 1) * self.num_channels(scale) * bytes_per_element if self.short_conv else 0
        return state + conv

    def build(self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5) -> GatedDeltaNet:
        from gridlaw.modules.mixers.gdn.module import GatedDeltaNet

        return GatedDeltaNet(self, scale, norm_eps=norm_eps)
