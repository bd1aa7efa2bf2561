"""CUDA attention kernels against the definition; need a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gridlaw.modules.kernels import attention_cuda
from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.kernels.dispatch import forced

pytestmark = pytest.mark.gpu

CASES: list[dict[str, Any]] = [{}, {"window": 33}, {"window": 128, "heads": (4, 2)}, {"head_dim": 46}, {"past": 50}]


@pytest.mark.parametrize("has_sink", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kernel", ["flash-attn", "flex_attention"])
def test_cuda_kernel_is_the_definition(kernel: str, case: dict[str, Any], has_sink: bool) -> None:
    unavailable = attention_cuda.flash_unavailable if kernel == "flash-attn" else attention_cuda.flex_unavailable
    if reason := unavailable():
        pytest.skip(reason)
    heads, head_dim, past = case.get("heads", (4, 4)), case.get("head_dim", 64), case.get("past", 0)
    dtype = torch.bfloat16 if kernel == "flash-attn" else torch.float32
    if kernel == "flex_attention" and head_dim == 46:
        pytest.skip("flex_attention takes powers of two; the dispatch pads for flash-attn only")
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(length: int, num_heads: int) -> torch.Tensor:
        return torch.randn(2, length, num_heads, head_dim, device="cuda", dtype=dtype, generator=generator)

    inputs = [draw(256, heads[0]), draw(256 + past, heads[1]), draw(256 + past, heads[1])]
    inputs += [torch.randn(heads[0], device="cuda", generator=generator)] if has_sink else []
    d_out = draw(256, heads[0])

    def run(name: str, values: list[torch.Tensor]) -> list[torch.Tensor]:
        values = [x.detach().requires_grad_() for x in values]
        with forced("attention", name):
            out = attention(*values[:3], sink=values[3] if has_sink else None, window=case.get("window"))
        return [out, *torch.autograd.grad(out, values, d_out.to(out.dtype))]

    exact = run("reference", [x.double() for x in inputs])
    plain, ours = run("reference", inputs), run(kernel, inputs)
    for mine, theirs, truth in zip(ours, plain, exact, strict=True):
        error, allowed = (mine.double() - truth).norm(), (theirs.double() - truth).norm()
        assert error <= 2 * allowed + 1e-4 * truth.norm()
