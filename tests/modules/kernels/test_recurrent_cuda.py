"""The adapters to fla's and mamba-ssm's kernels: in Triton's interpreter here, on a device under the gpu mark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import peers  # noqa: F401
from gridlaw.modules.kernels import dispatch, recurrent_cuda
from gridlaw.modules.kernels.gated_delta import gated_delta_rule
from gridlaw.modules.kernels.scalar_decay import scalar_decay, ssd
from recurrent_cases import CASES, Case

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


def test_adapters_are_our_kernels_in_the_interpreter() -> None:
    """Grouped states, head dims that are no multiple of 16, lengths that are no multiple of a chunk."""
    named = {case.name: case for case in CASES}
    ran = 0
    for name, time, form, kernel in [
        ("gdn-nano", 20, delta, recurrent_cuda.fla_gated_delta_rule),
        ("gdn-46", 66, delta, recurrent_cuda.fla_gated_delta_rule),
        ("simple-gla", 66, decay, recurrent_cuda.fla_scalar_decay),
        ("mamba2", 20, decay, recurrent_cuda.fla_scalar_decay),
        ("mamba2", 40, state_space, partial(recurrent_cuda.mamba_ssd, chunk_size=32)),
    ]:
        leaves = leaves_of(named[name], time)
        assert_close(results(form(kernel), leaves), results(form(None), leaves), 1e-4)
        ran += 1
    assert ran == 5


def test_the_fixed_decay_adapter_takes_any_length() -> None:
    case = next(case for case in CASES if case.name == "lightning")
    inputs, state = case.make(1, 90, torch.float32)
    found = recurrent_cuda.fla_scalar_decay(*inputs, 0.25, state, None)
    torch.testing.assert_close(found, scalar_decay(*inputs, scale=0.25, initial_state=state), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("operation", ["gated_delta_rule", "scalar_decay", "ssd"])
def test_the_dispatch_says_what_it_took(operation: str) -> None:
    on_cpu = next(choice for choice in dispatch.choices("cpu") if choice.operation == operation)
    assert on_cpu.kernel == "torch, chunked"
    assert [reason for _, reason in on_cpu.passed_over] == ["not for cpu"]
    documents = dispatch.choose(operation, "cuda", documents=True, half=True)
    assert documents is dispatch.choose(operation, "cpu"), "documents go to our own form on any device"
    assert dispatch.choose(operation, "cuda", documents=False, half=False) is documents, "so does fp32"


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_on_a_device_agree_with_the_cpu(case: Case) -> None:
    form = delta if case.name.startswith("gdn") else decay
    leaves = leaves_of(case, 300)
    wanted = results(form(None), leaves)
    assert_close(results(form(None), leaves, "cuda"), wanted, 1e-3)  # our own form: fp32 goes there

    def half(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        *few, state = inputs
        return form(None)(*(x.bfloat16() if x.dim() == 4 else x for x in few), state)

    assert_close(results(half, leaves, "cuda"), wanted, 5e-2)  # fla, where it is installed


@pytest.mark.gpu
def test_mamba_on_a_device_agrees_with_the_cpu() -> None:
    case = next(case for case in CASES if case.name == "mamba2")
    leaves = leaves_of(case, 300)

    def half(c: Tensor, b: Tensor, x: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return state_space(None)(c.bfloat16(), b.bfloat16(), x.bfloat16(), g, state)

    assert_close(results(half, leaves, "cuda"), results(state_space(None), leaves), 5e-2)
