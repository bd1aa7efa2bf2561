"""Sliding-window attention: the softmax of full attention over s in [t − w + 1, t], w tokens with the current one."""

from __future__ import annotations

import torch
from torch import Tensor

from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.mixers.softmax_module import SoftmaxMixer, WindowCache
from gridlaw.modules.mixers.swa.spec import SwaSpec


class SlidingWindowAttention(SoftmaxMixer):
    """Every token sees the last `window` tokens; decoding keeps no more than these."""

    spec: SwaSpec

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: ForwardContext) -> Tensor:
        return attention(q, k, v, window=self.spec.window, sink=self.sink, document_ids=ctx.document_ids)

    def init_state(
        self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype
    ) -> WindowCache:
        window = min(self.spec.window, max_length)
        return WindowCache(batch_size, window, self.num_kv_heads, self.head_dim, device=device, dtype=dtype)

    def extend(self, x_BTD: Tensor, state: WindowCache, ctx: ForwardContext) -> Tensor:
        q, k, v = self.project(x_BTD, ctx)
        return self.output(state.attend(q, k, v, sink=self.sink))
