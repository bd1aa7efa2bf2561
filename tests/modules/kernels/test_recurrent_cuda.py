"""The adapters to fla's and mamba-ssm's kernels, in Triton's interpreter; on a device: test_recurrent_gpu."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import peers  # noqa: F401
from gridlaw.modules.kernels import dispatch, recurrent_cuda
from gridlaw.modules.kernels.scalar_decay import scalar_decay
from recurrent_cases import CASES
from recurrent_forms import assert_close, decay, delta, leaves_of, results, state_space


def test_adapters_are_our_kernels_in_the_interpreter() -> None:
    """fla #22 mamba #345. Grouped states, head dims that are no multiple of 16, lengths no multiple of a chunk."""
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
