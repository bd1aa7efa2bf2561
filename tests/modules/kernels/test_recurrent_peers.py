"""The recurrences against kernels that are not ours, outputs and gradients, fp32: fla and mamba-ssm on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import peers  # noqa: F401  (before fla and mamba_ssm)

# isort: split
import torch
import torch.nn.functional as F
from fla.ops.gated_delta_rule import chunk_gated_delta_rule
from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule
from fla.ops.lightning_attn import chunk_lightning_attn
from fla.ops.simple_gla import chunk_simple_gla
from fla.ops.simple_gla.naive import naive_chunk_simple_gla, naive_recurrent_simple_gla
from mamba_ssm.modules.ssd_minimal import ssd_minimal_discrete
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
from torch import Tensor

from gridlaw.modules.kernels import reference_recurrent as reference
from gridlaw.modules.kernels.gated_delta import gated_delta_rule
from gridlaw.modules.kernels.scalar_decay import scalar_decay

Inputs = Sequence[Tensor]
Op = Callable[..., tuple[Tensor, Tensor]]
OUT_TOLERANCE, GRAD_TOLERANCE = 2e-5, 1e-4


def compare(ours: Op, theirs: Op, inputs: Inputs, what: str) -> None:
    """Outputs, final states and the gradients of every input agree, relative to the largest value."""
    torch.manual_seed(1)
    results = []
    weights: list[Tensor] = []
    for op in (ours, theirs):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        outputs = op(*leaves)
        weights = weights or [torch.randn_like(out) for out in outputs]
        loss = sum(((out * w).sum() for out, w in zip(outputs, weights, strict=True)), torch.zeros(()))
        results.append((outputs, torch.autograd.grad(loss, leaves)))
    for kind, tolerance, (a_all, b_all) in zip(
        ("output", "gradient"), (OUT_TOLERANCE, GRAD_TOLERANCE), zip(*results, strict=True), strict=True
    ):
        for index, (a, b) in enumerate(zip(a_all, b_all, strict=True)):
            error = (a - b).abs().max() / b.abs().max().clamp_min(1e-3)
            assert error < tolerance, f"{what}: {kind} {index} differs by {error:.1e}"


def delta_inputs(time: int, heads: int, groups: int, key_dim: int, value_dim: int) -> list[Tensor]:
    torch.manual_seed(0)
    q = F.normalize(torch.randn(1, time, heads, key_dim), dim=-1)
    k = F.normalize(torch.randn(1, time, groups, key_dim), dim=-1)
    v = torch.randn(1, time, groups, value_dim)
    g, beta = F.logsigmoid(torch.randn(1, time, groups)), torch.rand(1, time, groups)
    return [q, k, v, g, beta, torch.randn(1, groups, key_dim, value_dim)]


def decay_inputs(time: int, heads: int, groups: int, key_dim: int, value_dim: int) -> list[Tensor]:
    torch.manual_seed(0)
    q, k = torch.randn(1, time, heads, key_dim), torch.randn(1, time, groups, key_dim)
    v, g = torch.randn(1, time, groups, value_dim), F.logsigmoid(torch.randn(1, time, heads))
    return [q, k, v, g, torch.randn(1, heads, key_dim, value_dim)]


def our_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return gated_delta_rule(q, k, v, g, beta, initial_state=state)


def our_decay(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return scalar_decay(q, k, v, g, initial_state=state)


def for_every_head(op: Callable[..., tuple[Tensor, Tensor]]) -> Op:
    """A peer that knows no grouped states: every query head gets a state of its own, all in a group equal."""

    def repeated(q: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        *inputs, state = rest
        inputs = [x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in inputs]
        shared = q.shape[2] // state.shape[1]
        out, after = op(q, *inputs, state.repeat_interleave(shared, 1))
        return out, after[:, ::shared]

    return repeated


def delta_peer(kernel: Callable[..., tuple[Tensor, Tensor]]) -> Op:
    def op(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return kernel(q=q, k=k, v=v, g=g, beta=beta, initial_state=state, output_final_state=True)

    return for_every_head(op)


def decay_peer(kernel: Callable[..., tuple[Tensor, Tensor]]) -> Op:
    def op(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return kernel(q=q, k=k, v=v, g=g, initial_state=state, output_final_state=True)

    return for_every_head(op)


def test_gated_delta_rule_is_fla_s_triton_kernel() -> None:
    cases = [(128, 2, 2, 16, 16), (70, 4, 2, 16, 32), (64, 1, 1, 64, 64)]  # time, heads, groups, key, value dim
    ran = 0
    for case in cases:
        compare(our_delta, delta_peer(chunk_gated_delta_rule), delta_inputs(*case), f"{case}")
        ran += 1
    assert ran == 3


def test_gated_delta_rule_is_fla_s_naive_forms() -> None:
    ran = 0
    for kernel in (naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule):
        for case in [(65, 2, 1, 12, 12), (100, 4, 2, 46, 46)]:
            inputs = delta_inputs(*case)
            compare(our_delta, delta_peer(kernel), inputs, f"{kernel.__name__} {case}")
            ran += 1
    assert ran == 4


def test_the_delta_reference_is_fla_s_recurrent_form() -> None:
    def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return reference.gated_delta_rule(q, k, v, g, beta, initial_state=state)

    compare(ours, delta_peer(naive_recurrent_gated_delta_rule), delta_inputs(40, 4, 2, 12, 8), "reference")


def test_scalar_decay_is_fla_s_simple_gla() -> None:
    ran = 0
    for kernel in (chunk_simple_gla, naive_chunk_simple_gla, naive_recurrent_simple_gla):
        for case in [(128, 2, 2, 16, 16), (70, 4, 2, 32, 16)]:
            compare(our_decay, decay_peer(kernel), decay_inputs(*case), f"{kernel.__name__} {case}")
            ran += 1
    assert ran == 6


def test_fixed_decays_are_fla_s_lightning() -> None:
    ran = 0
    for layer_index, num_layers, time in [(0, 4, 64), (3, 10, 128), (1, 2, 192)]:  # fla gives nan within a chunk
        heads = 4
        log_decay = -8 / heads * (1 - layer_index / num_layers) * torch.arange(heads)

        def ours(q: Tensor, k: Tensor, v: Tensor, state: Tensor, g: Tensor = log_decay) -> tuple[Tensor, Tensor]:
            return scalar_decay(q, k, v, g, initial_state=state)

        def theirs(
            q: Tensor, k: Tensor, v: Tensor, state: Tensor, layer: int = layer_index, layers: int = num_layers
        ) -> tuple[Tensor, Tensor]:
            return chunk_lightning_attn(q, k, v, layer, layers, initial_state=state, output_final_state=True)

        q, k, v, _, state = decay_inputs(time, heads, 2, 16, 16)
        compare(ours, for_every_head(theirs), [q, k, v, state], f"layer {layer_index} of {num_layers}, T {time}")
        ran += 1
    assert ran == 3


def ssd_inputs(time: int, heads: int, groups: int, state_dim: int, head_dim: int) -> list[Tensor]:
    """x, dt, A, B, C, initial states [B, H, K, S] as mamba-ssm lays them out."""
    torch.manual_seed(0)
    x = torch.randn(1, time, heads, head_dim)
    dt, a = F.softplus(torch.randn(1, time, heads) - 2), -torch.exp(torch.rand(heads))
    b, c = torch.randn(1, time, groups, state_dim), torch.randn(1, time, groups, state_dim)
    return [x, dt, a, b, c, torch.randn(1, heads, head_dim, state_dim)]


def our_ssd(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    out, after = scalar_decay(c, b, x * dt[..., None], a * dt, scale=1.0, initial_state=state.mT)
    return out, after.mT


def test_scalar_decay_is_mamba_s_minimal_ssd() -> None:
    def theirs(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        b, c = (part.repeat_interleave(x.shape[2] // part.shape[2], 2) for part in (b, c))
        return ssd_minimal_discrete(x * dt[..., None], a * dt, b, c, 32, initial_states=state[:, None])

    ran = 0
    for case in [(64, 2, 1, 16, 32), (160, 4, 2, 4, 16), (96, 2, 2, 16, 64)]:
        compare(our_ssd, theirs, ssd_inputs(*case), f"{case}")
        ran += 1
    assert ran == 3


def test_scalar_decay_is_mamba_s_chunk_scan() -> None:
    def theirs(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return mamba_chunk_scan_combined(x, dt, a, b, c, 32, initial_states=state, return_final_states=True)

    ran = 0
    for case in [(64, 2, 1, 16, 16), (40, 2, 2, 16, 16)]:
        compare(our_ssd, theirs, ssd_inputs(*case), f"{case}")
        ran += 1
    assert ran == 2
