"""Lightning attention (arXiv 2606.15378 A.2): linear attention with a fixed decay per head and layer.

Shapes: B batch rows, T tokens, D model width, H query heads, G key/value heads, K head dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gridlaw.modules.kernels.norms import rms_norm
from gridlaw.modules.kernels.scalar_decay import scalar_decay, scalar_decay_step
from gridlaw.modules.mixers.lightning.spec import LightningSpec
from gridlaw.modules.mixers.module_base import ForwardContext, Mixer
from gridlaw.modules.scale import Scale

State = dict[str, Tensor]


class LightningAttention(Mixer):
    """y = Wo(RMSNorm(o) · sigmoid(W2 W1 x)), o from the recurrence over SiLU'd q, k, v; the norm has no weights."""

    def __init__(
        self, spec: LightningSpec, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5
    ) -> None:
        super().__init__(spec)
        self.num_heads, self.num_kv_heads, self.head_dim = scale.num_heads, scale.num_kv_heads, scale.head_dim
        self.decay_slope = -8 / scale.num_heads * (1 - layer_index / num_layers)
        self.norm_eps, rank = norm_eps, spec.gate_rank(scale)
        self.q_proj = nn.Linear(scale.d_model, scale.inner_dim, bias=False)
        self.k_proj = nn.Linear(scale.d_model, scale.kv_dim, bias=False)
        self.v_proj = nn.Linear(scale.d_model, scale.kv_dim, bias=False)
        self.gate_down = nn.Linear(scale.d_model, rank, bias=False)
        self.gate_up = nn.Linear(rank, scale.inner_dim, bias=False)
        self.o_proj = nn.Linear(scale.inner_dim, scale.d_model, bias=False)

    def forward(self, x_BTD: Tensor, ctx: ForwardContext) -> Tensor:
        q, k, v, gate = self._project(x_BTD)
        out, _ = scalar_decay(q, k, v, self.log_decay(x_BTD.device), document_ids=ctx.document_ids)
        return self._output(out, gate)

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype) -> State:
        shape = (batch_size, self.num_heads, self.head_dim, self.head_dim)
        return {"state": torch.zeros(shape, device=device, dtype=torch.float32)}

    def extend(self, x_BTD: Tensor, state: State, ctx: ForwardContext) -> Tensor:
        q, k, v, gate = self._project(x_BTD)
        log_decay = self.log_decay(x_BTD.device)
        if x_BTD.shape[1] == 1:
            out, after = scalar_decay_step(q[:, 0], k[:, 0], v[:, 0], log_decay, state["state"])
            out = out[:, None]
        else:
            out, after = scalar_decay(q, k, v, log_decay, initial_state=state["state"])
        state["state"].copy_(after)
        return self._output(out, gate)

    def log_decay(self, device: torch.device | str) -> Tensor:
        """log gamma of every head, [H]; head 0 forgets nothing."""
        return self.decay_slope * torch.arange(self.num_heads, device=device, dtype=torch.float32)

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q [B, T, H, K], k and v [B, T, G, K], after SiLU; the gate [B, T, H K]."""
        parts = (self.q_proj, self.k_proj, self.v_proj, self.gate_down)
        joint = F.linear(x_BTD, torch.cat([part.weight for part in parts]))  # one product instead of four
        heads = self.num_heads + 2 * self.num_kv_heads
        qkv, low = joint.split((heads * self.head_dim, joint.shape[-1] - heads * self.head_dim), -1)
        active = F.silu(qkv).unflatten(-1, (heads, self.head_dim))
        q, k, v = active.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), 2)
        return q, k, v, self.gate_up(low).sigmoid()

    def _output(self, out_BTHK: Tensor, gate: Tensor) -> Tensor:
        return self.o_proj(rms_norm(out_BTHK, eps=self.norm_eps).flatten(-2) * gate)
