"""The recurrent kernels on a CUDA device against the CPU: our own form in fp32, fla and mamba-ssm in bf16.

Run them with TRITON_INTERPRET=0: other test modules turn Triton's interpreter on for the process, and bf16 is silently
wrong there.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from recurrent_cases import CASES, Case
from recurrent_forms import assert_close, decay, delta, leaves_of, results, state_space

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic matrix products need
    assert os.environ.get("TRITON_INTERPRET", "0") == "0", "run the gpu tests with TRITON_INTERPRET=0"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_on_a_device_agree_with_the_cpu(case: Case) -> None:
    form = delta if case.name.startswith("gdn") else decay
    leaves = leaves_of(case, 300)
    wanted = results(form(None), leaves)
    assert_close(results(form(None), leaves, "cuda"), wanted, 1e-3)  # our own form: fp32 goes there
    torch.use_deterministic_algorithms(True)  # as in training, where torch refuses some operations on CUDA
    try:
        assert_close(results(form(None), leaves, "cuda"), wanted, 1e-3)
    finally:
        torch.use_deterministic_algorithms(False)

    def half(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        *few, state = inputs
        return form(None)(*(x.bfloat16() if x.dim() == 4 else x for x in few), state)

    assert_close(results(half, leaves, "cuda"), wanted, 5e-2)  # fla, where it is installed


def test_mamba_on_a_device_agrees_with_the_cpu() -> None:
    case = next(case for case in CASES if case.name == "mamba2")
    leaves = leaves_of(case, 300)

    def half(c: Tensor, b: Tensor, x: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return state_space(None)(c.bfloat16(), b.bfloat16(), x.bfloat16(), g, state)

    assert_close(results(half, leaves, "cuda"), results(state_space(None), leaves), 5e-2)
