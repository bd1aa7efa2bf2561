"""Kernels are chosen by device, installation and need, and the choice is said."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.kernels import attention, attention_cpu, attention_cuda, dispatch


def test_every_operation_says_what_it_runs_on_a_cpu() -> None:
    chosen = {choice.operation: choice for choice in dispatch.choices("cpu")}
    assert chosen["attention"].kernel == "torch-cpu-flash"
    assert {"attention", "gated_delta_rule", "scalar_decay"} <= chosen.keys()


def test_reasons_are_given_where_packages_are_missing() -> None:
    if torch.cuda.is_available():
        pytest.skip("asks what happens without a CUDA device")
    choice = next(choice for choice in dispatch.choices("cuda") if choice.operation == "attention")
    assert choice.kernel == "reference"
    reasons = dict(choice.passed_over)
    assert reasons["torch-cpu-flash"] == "not for cuda"
    assert "flash_attn" in reasons["flash-attn"]
    assert reasons["flex_attention"] == "no CUDA device"


def test_the_first_that_can_is_taken() -> None:
    calls = []

    def kernel(name: str) -> object:
        return lambda: calls.append(name)

    register = dispatch.register_kernel
    register("test-op", "absent", devices=("cpu",), unavailable=lambda: "not here")(kernel("absent"))
    register("test-op", "picky", devices=("cpu",), unsupported=lambda long=False: "too long" if long else None)(
        kernel("picky")
    )
    register("test-op", "last", devices=("cpu",))(kernel("last"))
    try:
        dispatch.choose("test-op", "cpu")()
        dispatch.choose("test-op", torch.device("cpu"), long=True)()
        with dispatch.forced("test-op", "last"):
            dispatch.choose("test-op", "cpu")()
        dispatch.choose("test-op", "cpu")()
        assert calls == ["picky", "last", "last", "picky"]
        with pytest.raises(BadSetting, match="absent: not for cuda; picky: not for cuda"):
            dispatch.choose("test-op", "cuda")
        with (
            pytest.raises(BadSetting, match="kernel of test-op is 'fast'; allowed: absent, picky, last"),
            dispatch.forced("test-op", "fast"),
        ):
            pass
        with pytest.raises(BadSetting, match="not here"), dispatch.forced("test-op", "absent"):
            dispatch.choose("test-op", "cpu")
    finally:
        dispatch._KERNELS.pop("test-op")


def test_flash_attention_declines_what_it_cannot_do() -> None:
    assert attention_cuda.flash_unsupported() is None
    assert "document" in str(attention_cuda.flash_unsupported(documents=True))
    assert "float16" in str(attention_cuda.flash_unsupported(half=False))
    assert "first tokens" in str(attention_cuda.flash_unsupported(first_tokens=True))
    assert "scattered" in str(attention_cuda.flash_unsupported(positions=True))


def test_attention_on_a_cpu_really_goes_through_the_chosen_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch.choose("attention", "cpu") is attention_cpu.attention
    q = torch.randn(1, 4, 2, 8)
    with dispatch.forced("attention", "reference"):
        assert dispatch.choose("attention", "cpu") is attention.attention_reference
        slow = attention.attention(q, q, q)
    assert torch.allclose(slow, attention.attention(q, q, q), atol=1e-6)


def test_kernels_import_without_lightning() -> None:
    code = (
        "import sys\n"
        "from gridlaw.modules.kernels import dispatch\n"
        "dispatch.choices('cpu')\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('lightning', 'pytorch_lightning')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
