"""The recurrent kernels and their adapters in one form, their results side by side."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gridlaw.modules.kernels.gated_delta import gated_delta_rule
from gridlaw.modules.kernels.scalar_decay import scalar_decay, ssd
from recurrent_cases import Case

Results = list[Tensor]


def results(op: Callable[..., tuple[Tensor, Tensor]], leaves: list[Tensor], device: str = "cpu") -> Results:
    """Outputs, final state and gradients for one fixed random loss, in fp32 on the CPU."""
    moved = [x.to(device) for x in leaves]
    generator = torch.Generator().manual_seed(2)
    outputs = op(*moved)
    loss = sum((out.float() * torch.randn(out.shape, generator=generator).to(device)).sum() for out in outputs)
    assert isinstance(loss, Tensor)
    return [x.float().cpu() for x in (*outputs, *torch.autograd.grad(loss, leaves))]


def assert_close(found: Results, wanted: Results, tolerance: float) -> None:
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.shape == b.shape
        error = float(((a - b).abs().max() / b.abs().max()).detach())
        assert error < tolerance, f"result {index} differs by {error:.1e}"


def leaves_of(case: Case, time: int) -> list[Tensor]:
    inputs, state = case.make(1, time, torch.float32)
    return [x.requires_grad_() for x in (*inputs, state)]


def delta(kernel: Callable[..., tuple[Tensor, Tensor]] | None) -> Callable[..., tuple[Tensor, Tensor]]:
    def op(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if kernel is None:
            return gated_delta_rule(q, k, v, g, beta, initial_state=state)
        return kernel(q, k, v, g, beta, q.shape[-1] ** -0.5, state, None)

    return op


def decay(kernel: Callable[..., tuple[Tensor, Tensor]] | None) -> Callable[..., tuple[Tensor, Tensor]]:
    def op(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        g = g.detach() if g.dim() == 1 else g
        out, after = (
            scalar_decay(q, k, v, g, initial_state=state)
            if kernel is None
            else kernel(q, k, v, g, q.shape[-1] ** -0.5, state, None)
        )
        return out + 0 * g.sum(), after

    return op


def state_space(kernel: Callable[..., tuple[Tensor, Tensor]] | None) -> Callable[..., tuple[Tensor, Tensor]]:
    def op(c: Tensor, b: Tensor, x: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        a = -torch.ones(x.shape[2], device=x.device)
        if kernel is None:
            return ssd(x, -g, a, b, c, initial_state=state)
        return kernel(x, -g, a, b, c, state, None)

    return op
