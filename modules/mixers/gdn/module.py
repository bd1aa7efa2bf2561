"""Gated DeltaNet with grouped states (arXiv 2606.15378 A.2), without and with the short convolution.

Shapes: B batch rows, T tokens, D model width, H query heads, G states (key/value heads), K state head dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gridlaw.modules.kernels.gated_delta import gated_delta_rule, gated_delta_step
from gridlaw.modules.kernels.norms import l2_norm, rms_norm
from gridlaw.modules.kernels.short_conv import inputs_to_keep, short_conv
from gridlaw.modules.mixers.gdn.spec import CONV_KERNEL, GdnSpec
from gridlaw.modules.mixers.initial import fill_log_uniform_time_step
from gridlaw.modules.mixers.module_base import ForwardContext, Mixer
from gridlaw.modules.scale import Scale

State = dict[str, Tensor]


class GatedDeltaNet(Mixer):
    """y = Wo(RMSNorm(o) · SiLU(Wg x)), o from the gated delta rule over SiLU'd q, k, v; q and k of norm 1."""

    hidden_matrices = ("q_proj", "k_proj", "v_proj", "g_proj", "o_proj")

    def __init__(self, spec: GdnSpec, scale: Scale, *, norm_eps: float = 1e-5) -> None:
        super().__init__(spec)
        self.num_heads, self.num_states, self.head_dim = scale.num_heads, scale.num_kv_heads, spec.state_head_dim(scale)
        self.norm_eps = norm_eps
        width, q_dim, k_dim = scale.d_model, self.num_heads * self.head_dim, self.num_states * self.head_dim
        self.q_proj = nn.Linear(width, q_dim, bias=False)
        self.k_proj = nn.Linear(width, k_dim, bias=False)
        self.v_proj = nn.Linear(width, k_dim, bias=False)
        self.g_proj = nn.Linear(width, q_dim, bias=False)
        self.a_proj = nn.Linear(width, self.num_states, bias=False)
        self.b_proj = nn.Linear(width, self.num_states, bias=False)
        self.o_proj = nn.Linear(q_dim, width, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_states))
        self.dt_bias = nn.Parameter(torch.empty(self.num_states))
        self.norm = nn.Parameter(torch.empty(self.head_dim))
        self.conv = nn.Parameter(torch.empty(q_dim + 2 * k_dim, CONV_KERNEL)) if spec.short_conv else None

    def forward(self, x_BTD: Tensor, ctx: ForwardContext) -> Tensor:
        qkv, gate, log_alpha, beta = self._project(x_BTD)
        if self.conv is not None:
            qkv = short_conv(qkv, self.conv, document_ids=ctx.document_ids)
        q, k, v = self._heads(qkv)
        out, _ = gated_delta_rule(q, k, v, log_alpha, beta, document_ids=ctx.document_ids)
        return self._output(out, gate)

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype) -> State:
        shape = (batch_size, self.num_states, self.head_dim, self.head_dim)
        state = {"state": torch.zeros(shape, device=device, dtype=torch.float32)}
        if self.conv is not None:
            state["inputs"] = torch.zeros(batch_size, CONV_KERNEL - 1, self.conv.shape[0], device=device, dtype=dtype)
        return state

    def extend(self, x_BTD: Tensor, state: State, ctx: ForwardContext) -> Tensor:
        qkv, gate, log_alpha, beta = self._project(x_BTD)
        if self.conv is not None:
            raw, before = qkv, state["inputs"]
            qkv = short_conv(raw, self.conv, before=before)
            before.copy_(inputs_to_keep(raw, before))
        q, k, v = self._heads(qkv)
        if x_BTD.shape[1] == 1:
            q, k, v, log_alpha, beta = (x[:, 0] for x in (q, k, v, log_alpha, beta))
            out, after = gated_delta_step(q, k, v, log_alpha, beta, state["state"])
            out = out[:, None]
        else:
            out, after = gated_delta_rule(q, k, v, log_alpha, beta, initial_state=state["state"])
        state["state"].copy_(after)
        return self._output(out, gate)

    def init_parameter(
        self, name: str, parameter: Tensor, generator: torch.Generator, *, std: float, num_layers: int
    ) -> None:
        if name == "A_log":  # a uniform draw may be exactly 0
            parameter.uniform_(0.0, 16.0, generator=generator).clamp_min_(1e-6).log_()
        elif name == "dt_bias":
            fill_log_uniform_time_step(parameter, generator)
        elif name == "conv":  # as the usual initial values of a depthwise convolution
            parameter.uniform_(-(CONV_KERNEL**-0.5), CONV_KERNEL**-0.5, generator=generator)
        else:
            super().init_parameter(name, parameter, generator, std=std, num_layers=num_layers)

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v side by side [B, T, (H + 2G) K], gate [B, T, H K], log alpha and beta [B, T, G] in fp32."""
        parts = (self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.a_proj, self.b_proj)
        joint = F.linear(x_BTD, torch.cat([part.weight for part in parts]))  # one product instead of six
        heads = (self.num_heads + 2 * self.num_states) * self.head_dim
        qkv, gate, a, b = joint.split((heads, self.num_heads * self.head_dim, self.num_states, self.num_states), -1)
        log_alpha = -self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias.float())
        return qkv, gate, log_alpha, b.float().sigmoid()

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, H, K], k and v [B, T, G, K], after SiLU; q and k of norm 1."""
        active = F.silu(qkv).unflatten(-1, (-1, self.head_dim))
        qk, v = active.split((self.num_heads + self.num_states, self.num_states), 2)
        q, k = l2_norm(qk).split((self.num_heads, self.num_states), 2)
        return q, k, v

    def _output(self, out_BTHK: Tensor, gate: Tensor) -> Tensor:
        normed = rms_norm(out_BTHK, self.norm, eps=self.norm_eps)
        return self.o_proj(normed.flatten(-2) * F.silu(gate))
