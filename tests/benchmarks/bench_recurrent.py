"""Cost of the recurrent kernels against the length, as Markdown: `python tests/benchmarks/bench_recurrent.py`.

CPU time of one thread (a busy machine disturbs it least), the best of a few calls. The share of the peak divides the
FLOPs of the recurrence itself (as `flops_per_token` counts them; backward 2 × forward) by what one thread reaches on
a 1024³ fp32 product, measured at the start. `--naive` adds fla's naive chunk form of the gated delta rule.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gridlaw.modules.kernels.gated_delta import gated_delta_rule
from gridlaw.modules.kernels.scalar_decay import scalar_decay
from gridlaw.modules.training.surroundings import keep_heap

LENGTHS = (1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """make: length → inputs; flops: forward FLOPs per token of the recurrence."""

    name: str
    run: Callable[..., Tensor]
    make: Callable[[int], list[Tensor]]
    flops: int


def seconds(function: Callable[[], object], repeats: int) -> float:
    """The least CPU time of `repeats` calls, after one to warm up."""
    function()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


def peak_flops() -> float:
    """FLOP/s of one large fp32 matrix product."""
    a = torch.randn(1024, 1024)
    return 2 * 1024**3 / seconds(lambda: a @ a, 10)


def delta_inputs(heads: int, groups: int, dim: int) -> Callable[[int], list[Tensor]]:
    def make(length: int) -> list[Tensor]:
        torch.manual_seed(0)
        q, k = torch.randn(1, length, heads, dim), F.normalize(torch.randn(1, length, groups, dim), dim=-1)
        gates = F.logsigmoid(torch.randn(1, length, groups) + 2), torch.rand(1, length, groups)
        return [x.requires_grad_() for x in (q, k, torch.randn(1, length, groups, dim), *gates)]

    return make


def decay_inputs(q_heads: int, v_heads: int, key_dim: int, dim: int, fixed: bool) -> Callable[[int], list[Tensor]]:
    def make(length: int) -> list[Tensor]:
        torch.manual_seed(0)
        q, k = torch.randn(1, length, q_heads, key_dim), torch.randn(1, length, 2, key_dim)
        v = torch.randn(1, length, v_heads, dim)
        g = -torch.arange(6.0) if fixed else F.logsigmoid(torch.randn(1, length, 6) + 2)
        return [q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), g if fixed else g.requires_grad_()]

    return make


def naive_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """fla's naive chunk form: a Python loop over chunks and over the rows of each inverse."""
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule

    return naive_chunk_gated_delta_rule(q=q, k=k, v=v, g=g, beta=beta)[0]


OPERATIONS = [
    Operation(
        name="gated delta rule, 6 states of 64",
        run=lambda *x: gated_delta_rule(*x)[0],
        make=delta_inputs(6, 6, 64),
        flops=(8 * 6 + 2 * 6) * 64**2,
    ),
    Operation(
        name="gated delta rule, 2 states of 46, 6 heads (gdn at S1)",
        run=lambda *x: gated_delta_rule(*x)[0],
        make=delta_inputs(6, 2, 46),
        flops=(8 * 2 + 2 * 6) * 46**2,
    ),
    Operation(
        name="fixed decay, 6 states of 64 (lightning at S1)",
        run=lambda *x: scalar_decay(*x)[0],
        make=decay_inputs(6, 2, 64, 64, fixed=True),
        flops=4 * 6 * 64**2,
    ),
    Operation(
        name="SSD, 6 states of 16 × 64 (mamba2 at S1)",
        run=lambda *x: scalar_decay(*x)[0],
        make=decay_inputs(2, 6, 16, 64, fixed=False),
        flops=4 * 6 * 16 * 64,
    ),
]
NAIVE = Operation(
    name="fla's naive chunk form, 6 states of 64",
    run=naive_delta,
    make=OPERATIONS[0].make,
    flops=OPERATIONS[0].flops,
)


def row(operation: Operation, length: int, peak: float, repeats: int) -> str:
    """One line of the table: milliseconds forward, forward and backward, per token, share of the peak."""
    inputs = operation.make(length)
    leaves = [x for x in inputs if x.requires_grad]
    d_out = torch.randn_like(operation.run(*inputs))
    forward = seconds(lambda: operation.run(*inputs), repeats)
    both = seconds(lambda: torch.autograd.grad(operation.run(*inputs), leaves, d_out), repeats)
    share = 3 * operation.flops * length / both / peak
    return (
        f"| {operation.name} | {length} | {forward * 1e3:.1f} | {both * 1e3:.1f} "
        f"| {both / length * 1e6:.2f} | {share:.1%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--naive", action="store_true", help="also fla's naive chunk form, at 8192 tokens (a minute)")
    parser.add_argument("--repeats", type=int, default=3, help="calls per figure; the best counts (default 3)")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_heap()  # as a fit does
    peak = peak_flops()
    print(f"One thread, fp32, batch 1; a matrix product reaches {peak / 1e9:.0f} GFLOP/s.\n")
    print("| operation | tokens | forward, ms | forward + backward, ms | µs a token | share of peak |")
    print("|---|---|---|---|---|---|")
    for operation in OPERATIONS:
        for length in options.lengths:
            print(row(operation, length, peak, options.repeats), flush=True)
    if options.naive:
        print(row(NAIVE, 8192, peak, 1), flush=True)


if __name__ == "__main__":
    main()
