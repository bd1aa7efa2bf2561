"""Head-wise mixing: the first half of the KV groups attends to everything, the second half within a window."""

from __future__ import annotations

import torch
from torch import Tensor

from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.mixers.headwise.spec import HeadwiseSpec
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.mixers.softmax_module import FullCache, SoftmaxMixer, WindowCache


class HeadwiseAttention(SoftmaxMixer):
    """Heads 0 … H/2 − 1 as in full attention, the others as in sliding-window attention."""

    spec: HeadwiseSpec

    def _halves(self, x: Tensor, dim: int = 2) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2, dim)
        return first, second

    def _sinks(self) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if self.sink is None else self._halves(self.sink, 0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: ForwardContext) -> Tensor:
        (q_full, q_near), (k_full, k_near), (v_full, v_near) = (self._halves(x) for x in (q, k, v))
        sink_full, sink_near = self._sinks()
        full = attention(q_full, k_full, v_full, sink=sink_full, document_ids=ctx.document_ids)
        near = attention(q_near, k_near, v_near, window=self.spec.window, sink=sink_near, document_ids=ctx.document_ids)
        return torch.cat([full, near], 2)

    def init_state(
        self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype
    ) -> tuple[FullCache, WindowCache]:
        heads, window = self.num_kv_heads // 2, min(self.spec.window, max_length)
        return (
            FullCache(batch_size, max_length, heads, self.head_dim, device=device, dtype=dtype),
            WindowCache(batch_size, window, heads, self.head_dim, device=device, dtype=dtype),
        )

    def extend(self, x_BTD: Tensor, state: tuple[FullCache, WindowCache], ctx: ForwardContext) -> Tensor:
        q, k, v = self.project(x_BTD, ctx)
        (q_full, q_near), (k_full, k_near), (v_full, v_near) = (self._halves(x) for x in (q, k, v))
        sink_full, sink_near = self._sinks()
        full = attention(q_full, *state[0].append(k_full, v_full), sink=sink_full)
        near = state[1].attend(q_near, k_near, v_near, sink=sink_near)
        return self.output(torch.cat([full, near], 2))
