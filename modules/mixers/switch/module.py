"""Switch attention: a router sends every token to full or to sliding-window attention (arXiv 2603.26380).

    r_t = R(x_t),  p_t = sigmoid(r_t),  s_t = 1[p_t > threshold],  o_t = s_t · full_t + (1 − s_t) · window_t

Training computes both branches from the same q, k, v and passes the gate's gradient straight through: s + p − sg(p).
Decoding computes only the chosen branch, from one cache that both share.
Shapes: B batch, T tokens, D model width, H query heads, K head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.mixers.softmax_module import FullCache, SoftmaxMixer
from gridlaw.modules.mixers.switch.spec import SwitchSpec
from gridlaw.modules.scale import Scale

FORCED_GATE = "switch_gate"  # option of ForwardContext: [B, T] of booleans that replaces the router's choice


class SwitchAttention(SoftmaxMixer):
    """Two branches, one router. gamma_base is an attribute, so that a controller may steer it during training."""

    spec: SwitchSpec

    def __init__(self, spec: SwitchSpec, scale: Scale, *, layer_index: int) -> None:
        super().__init__(spec, scale)
        self.layer_index = layer_index
        self.gamma_base = spec.gamma_base
        self.router = nn.Linear(scale.d_model, 1)

    def init_parameter(
        self, name: str, parameter: Tensor, generator: torch.Generator, *, std: float, num_layers: int
    ) -> None:
        always_full = self.spec.router_init == "full"
        if name == "router.bias":
            parameter.fill_(1.0 if always_full else 0.0)
        elif name == "router.weight" and always_full:
            parameter.zero_()
        else:
            super().init_parameter(name, parameter, generator, std=std, num_layers=num_layers)

    def route(self, x_BTD: Tensor, ctx: ForwardContext) -> tuple[Tensor, Tensor]:
        """Router logits and the choice (True: full attention), [B, T] each. The logits are float32 at least."""
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        with torch.autocast(x_BTD.device.type, enabled=False):
            weight, bias = self.router.weight.to(wide), self.router.bias.to(wide)
            logit_BT = F.linear(x_BTD.to(wide), weight, bias)[..., 0]
        forced: Tensor | None = ctx.options.get(FORCED_GATE)
        return logit_BT, torch.sigmoid(logit_BT) > self.spec.threshold if forced is None else forced

    def forward(self, x_BTD: Tensor, ctx: ForwardContext) -> Tensor:
        q, k, v = self.project(x_BTD, ctx)
        full = attention(q, k, v, sink=self.sink, document_ids=ctx.document_ids)
        near = attention(q, k, v, window=self.spec.window, sink=self.sink, document_ids=ctx.document_ids)
        logit_BT, chosen_BT = self.route(x_BTD, ctx)
        probability_BT = torch.sigmoid(logit_BT)
        gate_BT = chosen_BT.to(logit_BT.dtype)
        through_BT = gate_BT + (probability_BT - probability_BT.detach())
        difference = full - near
        squares_BT = difference.detach().to(logit_BT.dtype).square().flatten(2)
        mse_BT = squares_BT.mean(-1) if self.spec.mse_reduction == "mean" else squares_BT.sum(-1)
        ctx.outputs[self.layer_index] = {"router_logit": logit_BT, "gate": gate_BT, "branch_mse": mse_BT}
        return self.output(near + through_BT[..., None, None].to(near.dtype) * difference)

    def auxiliary_loss(self, outputs: dict[str, Tensor], nll_BT: Tensor) -> Tensor | None:
        """gamma_t · activation(r_t), [B, T]; gamma_t = gamma_base / (epsilon + NLL_t + alpha · MSE_t), detached."""
        logit_BT = outputs["router_logit"]
        cost_BT = F.softplus(logit_BT) if self.spec.activation == "softplus" else F.relu(logit_BT)
        if self.spec.gamma == "constant":
            return self.gamma_base * cost_BT
        nll_BT = nll_BT.detach() if self.spec.use_nll else torch.zeros_like(logit_BT)
        return self.gamma_base / (self.spec.epsilon + nll_BT + self.spec.alpha * outputs["branch_mse"]) * cost_BT

    def full_share(self, outputs: dict[str, Tensor]) -> Tensor:
        """The gate, [B, T]: 1 where a token took full attention."""
        return outputs["gate"].detach()

    def init_state(
        self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype
    ) -> FullCache:
        return FullCache(batch_size, max_length, self.num_kv_heads, self.head_dim, device=device, dtype=dtype)

    def extend(self, x_BTD: Tensor, state: FullCache, ctx: ForwardContext) -> Tensor:
        q, k, v = self.project(x_BTD, ctx)
        keys, values = state.append(k, v)
        logit_BT, chosen_BT = self.route(x_BTD, ctx)
        ctx.outputs[self.layer_index] = {"router_logit": logit_BT, "gate": chosen_BT.to(logit_BT.dtype)}
        if x_BTD.shape[1] == 1:
            return self.output(self._decode(q, keys, values, chosen_BT[:, 0]))
        rows = [
            self._prefill(q[row : row + 1], keys[row : row + 1], values[row : row + 1], chosen_BT[row])
            for row in range(q.shape[0])
        ]
        return self.output(torch.cat(rows))

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor, chosen_B: Tensor) -> Tensor:
        """One token a row. Runs of rows with the same choice go together, as views: the cache is never copied."""
        num_keys = keys.shape[1]
        near_start = max(0, num_keys - self.spec.window)
        choices = chosen_B.tolist()
        outputs, first = [], 0
        for row in range(1, len(choices) + 1):
            if row < len(choices) and choices[row] == choices[first]:
                continue
            start = 0 if choices[first] else near_start
            outputs.append(attention(q[first:row], keys[first:row, start:], values[first:row, start:], sink=self.sink))
            first = row
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _prefill(self, q: Tensor, keys: Tensor, values: Tensor, chosen_T: Tensor) -> Tensor:
        """Several tokens of one row: each branch gets only the queries that chose it."""
        num_new, num_keys = q.shape[1], keys.shape[1]
        out = torch.empty_like(q)
        for wanted, window in ((True, None), (False, self.spec.window)):
            places = torch.nonzero(chosen_T == wanted)[:, 0]
            if len(places) == 0:
                continue
            out[:, places] = attention(
                q[:, places],
                keys,
                values,
                window=window,
                sink=self.sink,
                query_positions=None if len(places) == num_new else places + (num_keys - num_new),
            )
        return out
