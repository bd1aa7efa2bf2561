"""The recurrent kernels in one form, so that one suite of tests serves them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gridlaw.modules.kernels import reference_recurrent as reference
from gridlaw.modules.kernels.gated_delta import gated_delta_rule, gated_delta_step
from gridlaw.modules.kernels.scalar_decay import scalar_decay, scalar_decay_step


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel at one set of shapes.

    make: (batch, time, dtype) → inputs by position, each with time as dim 1 (but `fixed` ones), and an initial state
    """

    name: str
    op: Callable[..., tuple[Tensor, Tensor]]
    step: Callable[..., tuple[Tensor, Tensor]]
    reference: Callable[..., tuple[Tensor, Tensor]]
    make: Callable[[int, int, torch.dtype], tuple[list[Tensor], Tensor]]
    fixed_decay: bool = False

    def cut(self, inputs: list[Tensor], start: int, stop: int) -> list[Tensor]:
        """The inputs of positions start..stop-1."""
        return [x if x.dim() == 1 else x[:, start:stop] for x in inputs]

    def at(self, inputs: list[Tensor], t: int) -> list[Tensor]:
        """The inputs of one position, without the time dim."""
        return [x if x.dim() == 1 else x[:, t] for x in inputs]

    def leaves(self, inputs: list[Tensor]) -> list[Tensor]:
        """Inputs that get a gradient: all but fixed decays."""
        return [x.requires_grad_() for x in inputs if x.dim() > 1]


def _delta(heads: int, groups: int, key_dim: int, value_dim: int) -> Callable[..., tuple[list[Tensor], Tensor]]:
    def make(batch: int, time: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

        q, k = normal(time, heads, key_dim), F.normalize(normal(time, groups, key_dim), dim=-1)
        gates = F.logsigmoid(normal(time, groups) + 1), normal(time, groups).sigmoid()
        inputs = [q, k, normal(time, groups, value_dim), *gates]
        return [x.to(dtype) for x in inputs], normal(groups, key_dim, value_dim).to(dtype)

    return make


def _decay(
    q_heads: int, k_heads: int, v_heads: int, key_dim: int, value_dim: int, *, fixed: bool = False
) -> Callable[..., tuple[list[Tensor], Tensor]]:
    def make(batch: int, time: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        generator = torch.Generator().manual_seed(0)
        heads = max(q_heads, k_heads, v_heads)

        def normal(*shape: int) -> Tensor:
            return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

        g = -0.7 * torch.arange(heads, dtype=torch.float64) if fixed else F.logsigmoid(normal(time, heads) + 1)
        inputs = [normal(time, q_heads, key_dim), normal(time, k_heads, key_dim), normal(time, v_heads, value_dim), g]
        return [x.to(dtype) for x in inputs], normal(heads, key_dim, value_dim).to(dtype)

    return make


def _case(name: str, make: Callable[..., Any]) -> Case:
    if name.startswith("gdn"):
        return Case(
            name=name, op=gated_delta_rule, step=gated_delta_step, reference=reference.gated_delta_rule, make=make
        )
    return Case(
        name=name,
        op=scalar_decay,
        step=scalar_decay_step,
        reference=reference.scalar_decay,
        make=make,
        fixed_decay="lightning" in name,
    )


CASES = [
    _case("gdn-nano", _delta(4, 2, 12, 12)),
    _case("gdn-46", _delta(6, 2, 46, 46)),
    _case("gdn-ungrouped", _delta(2, 2, 8, 5)),
    _case("lightning", _decay(4, 2, 2, 16, 16, fixed=True)),
    _case("lightning-one-head", _decay(1, 1, 1, 12, 12, fixed=True)),
    _case("mamba2", _decay(2, 2, 4, 4, 16)),
    _case("simple-gla", _decay(3, 3, 3, 8, 6)),
]
