"""Full causal softmax attention: o_t = softmax over all s <= t of q_t·k_s / sqrt(K), with a sink in the denominator."""

from __future__ import annotations

import torch
from torch import Tensor

from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.mixers.softmax_module import FullCache, SoftmaxMixer


class FullAttention(SoftmaxMixer):
    """Every token sees every earlier one."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: ForwardContext) -> Tensor:
        return attention(q, k, v, sink=self.sink, document_ids=ctx.document_ids)

    def init_state(
        self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype
    ) -> FullCache:
        return FullCache(batch_size, max_length, self.num_kv_heads, self.head_dim, device=device, dtype=dtype)

    def extend(self, x_BTD: Tensor, state: FullCache, ctx: ForwardContext) -> Tensor:
        q, k, v = self.project(x_BTD, ctx)
        return self.output(attention(q, *state.append(k, v), sink=self.sink))
