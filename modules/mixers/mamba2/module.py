"""Mamba-2 (arXiv 2405.21060; composition of arXiv 2606.15378 A.2): SSD with a scalar decay per head, no convolution.

Shapes: B batch rows, T tokens, D model width, H heads, G groups, K head dim, S state dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gridlaw.modules.kernels.norms import rms_norm
from gridlaw.modules.kernels.scalar_decay import scalar_decay_step, ssd
from gridlaw.modules.mixers.initial import fill_log_uniform_time_step
from gridlaw.modules.mixers.mamba2.spec import Mamba2Spec
from gridlaw.modules.mixers.module_base import ForwardContext, Mixer
from gridlaw.modules.scale import Scale

State = dict[str, Tensor]


class Mamba2(Mixer):
    """y = Wo RMSNorm((o + D x) · SiLU(z)); o reads with C the state that dt · x was written to with B."""

    hidden_matrices = ("z_proj", "x_proj", "B_proj", "C_proj", "o_proj")

    def __init__(self, spec: Mamba2Spec, scale: Scale, *, norm_eps: float = 1e-5) -> None:
        super().__init__(spec)
        self.num_heads, self.num_groups, self.head_dim = scale.num_heads, scale.num_kv_heads, scale.head_dim
        self.state_dim, self.norm_eps = spec.state_dim(scale), norm_eps
        width, inner, grouped = scale.d_model, scale.inner_dim, self.num_groups * self.state_dim
        self.z_proj = nn.Linear(width, inner, bias=False)
        self.x_proj = nn.Linear(width, inner, bias=False)
        self.B_proj = nn.Linear(width, grouped, bias=False)
        self.C_proj = nn.Linear(width, grouped, bias=False)
        self.dt_proj = nn.Linear(width, self.num_heads, bias=False)
        self.o_proj = nn.Linear(inner, width, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        self.D = nn.Parameter(torch.empty(self.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        self.norm = nn.Parameter(torch.empty(inner))

    def forward(self, x_BTD: Tensor, ctx: ForwardContext) -> Tensor:
        z, x, b, c, dt, a = self._project(x_BTD)
        out, _ = ssd(x, dt, a, b, c, document_ids=ctx.document_ids)
        return self._output(out, x, z)

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype) -> State:
        shape = (batch_size, self.num_heads, self.state_dim, self.head_dim)
        return {"state": torch.zeros(shape, device=device, dtype=torch.float32)}

    def extend(self, x_BTD: Tensor, state: State, ctx: ForwardContext) -> Tensor:
        z, x, b, c, dt, a = self._project(x_BTD)
        if x_BTD.shape[1] == 1:
            query, key, value, log_gamma = (part[:, 0] for part in (c, b, x * dt[..., None], a * dt))
            out, after = scalar_decay_step(query, key, value, log_gamma, state["state"], scale=1.0)
            out = out[:, None]
        else:
            out, after = ssd(x, dt, a, b, c, initial_state=state["state"])
        state["state"].copy_(after)
        return self._output(out, x, z)

    def init_parameter(
        self, name: str, parameter: Tensor, generator: torch.Generator, *, std: float, num_layers: int
    ) -> None:
        if name == "A_log":
            parameter.uniform_(1.0, 16.0, generator=generator).log_()
        elif name == "dt_bias":
            fill_log_uniform_time_step(parameter, generator)
        else:  # D is 1, as norms are
            super().init_parameter(name, parameter, generator, std=std, num_layers=num_layers)

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """z [B, T, H K], x [B, T, H, K], B and C [B, T, G, S]; dt [B, T, H] and a = -exp(A_log) [H] in fp32."""
        parts = (self.x_proj, self.B_proj, self.C_proj, self.z_proj, self.dt_proj)
        joint = F.linear(x_BTD, torch.cat([part.weight for part in parts]))  # one product instead of five
        inner, grouped = self.num_heads * self.head_dim, self.num_groups * self.state_dim
        active, z, dt = joint.split((inner + 2 * grouped, inner, self.num_heads), -1)
        x, b, c = F.silu(active).split((inner, grouped, grouped), -1)
        step = F.softplus(dt.float() + self.dt_bias.float())
        b, c = (part.unflatten(-1, (self.num_groups, self.state_dim)) for part in (b, c))
        return z, x.unflatten(-1, (self.num_heads, self.head_dim)), b, c, step, -self.A_log.float().exp()

    def _output(self, out_BTHK: Tensor, x_BTHK: Tensor, z: Tensor) -> Tensor:
        y = out_BTHK + x_BTHK * self.D.to(x_BTHK.dtype)[:, None]
        return self.o_proj(rms_norm(y.flatten(-2) * F.silu(z), self.norm, eps=self.norm_eps))
