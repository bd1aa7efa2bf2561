"""Every recurrent kernel against its reference: lengths, states, documents, extremes, precision, cost."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.kernels import reference_recurrent as reference
from gridlaw.modules.kernels.chunks import decays
from gridlaw.modules.kernels.gated_delta import gated_delta_rule, gated_delta_step
from gridlaw.modules.kernels.scalar_decay import scalar_decay, scalar_decay_step
from recurrent_cases import CASES, Case

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def gradients(op: object, case: Case, time: int, dtype: torch.dtype, **kwargs: object) -> list[Tensor]:
    """Outputs, final state and gradients of all inputs and the initial state for one fixed random loss, in fp64."""
    inputs, state = case.make(2, time, torch.float64)
    inputs = [x if x.dim() == 1 else x.to(dtype) for x in inputs]
    state = state.to(torch.float32 if dtype == torch.bfloat16 else dtype)
    leaves = [*case.leaves(inputs), state.requires_grad_()]
    out, after = op(*inputs, initial_state=state, **kwargs)  # type: ignore[operator]
    generator = torch.Generator().manual_seed(2)
    loss = sum(
        (x.double() * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum() for x in (out, after)
    )
    assert isinstance(loss, Tensor)
    return [x.double() for x in (out, after, *torch.autograd.grad(loss, leaves))]


def error(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Largest difference relative to each tensor's largest value."""
    return max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in zip(found, wanted, strict=True))


def documents(time: int) -> Tensor:
    """Two rows of document ids: several short ones; one that starts within the second half."""
    ids = torch.stack((torch.arange(time) // 9, (torch.arange(time) > time // 2).long()))
    return ids * 7 % 5  # neither sorted nor contiguous


@every_case
@pytest.mark.parametrize("time", [1, 2, 15, 16, 17, 33, 64, 65, 130])
def test_outputs_and_gradients_are_the_reference_s_at_any_length(case: Case, time: int) -> None:
    wanted = gradients(case.reference, case, time, torch.float64)
    assert error(gradients(case.op, case, time, torch.float64), wanted) < 1e-11
    assert error(gradients(case.op, case, time, torch.float32), wanted) < 2e-5


@every_case
@pytest.mark.parametrize("chunk_size", [1, 4, 32, 64, 100])
def test_chunk_size_changes_nothing(case: Case, chunk_size: int) -> None:
    wanted = gradients(case.reference, case, 70, torch.float64)
    assert error(gradients(case.op, case, 70, torch.float64, chunk_size=chunk_size), wanted) < 1e-11


@every_case
@pytest.mark.parametrize("time", [20, 70])
def test_documents_forget_the_state_as_the_reference_does(case: Case, time: int) -> None:
    ids = documents(time)
    wanted = gradients(case.reference, case, time, torch.float64, document_ids=ids)
    assert error(gradients(case.op, case, time, torch.float64, document_ids=ids), wanted) < 1e-11


@every_case
def test_documents_of_a_window_are_what_they_are_alone(case: Case) -> None:
    inputs, _ = case.make(2, 90, torch.float32)
    ids = torch.tensor([0] * 13 + [1] * 40 + [0] * 37).expand(2, 90)
    together, state = case.op(*inputs, document_ids=ids)
    alone = [case.op(*case.cut(inputs, a, b)) for a, b in ((0, 13), (13, 53), (53, 90))]
    torch.testing.assert_close(together, torch.cat([out for out, _ in alone], 1), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(state, alone[-1][1], atol=2e-5, rtol=1e-4)


@every_case
def test_steps_and_pieces_are_the_parallel_form(case: Case) -> None:
    inputs, state = case.make(2, 80, torch.float32)
    out, after = case.op(*inputs, initial_state=state)
    pieces = []
    for start, stop in ((0, 37), (37, 38), (38, 60)):
        piece, state = case.op(*case.cut(inputs, start, stop), initial_state=state)
        pieces.append(piece)
    for t in range(60, 80):
        piece, state = case.step(*case.at(inputs, t), state)
        pieces.append(piece[:, None])
    torch.testing.assert_close(torch.cat(pieces, 1), out, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(state, after, atol=2e-5, rtol=1e-4)


@every_case
def test_no_output_sees_a_later_input(case: Case) -> None:
    inputs, _ = case.make(1, 50, torch.float64)
    leaves = case.leaves(inputs)
    out, _ = case.op(*inputs)
    for t in (0, 15, 16, 31, 48):
        for leaf, d in zip(leaves, torch.autograd.grad(out[:, t].sum(), leaves, retain_graph=True), strict=True):
            assert not d[:, t + 1 :].any(), f"output {t} reaches later positions of an input of shape {leaf.shape}"


@every_case
def test_rows_of_a_batch_do_not_meet(case: Case) -> None:
    inputs, state = case.make(2, 40, torch.float32)
    out, _ = case.op(*inputs, initial_state=state)
    one, _ = case.op(*[x if x.dim() == 1 else x[1:] for x in inputs], initial_state=state[1:])
    torch.testing.assert_close(out[1:], one, atol=1e-6, rtol=1e-5)


@every_case
def test_bf16_errs_at_most_twice_as_much_as_plain_bf16(case: Case) -> None:
    """Plain: the same inputs, every operation in bf16 but gates and state in fp32, as a naive loop would run."""
    inputs, _ = case.make(2, 100, torch.float64)
    exact, _ = case.reference(*inputs)
    few = [x if x.dim() in (1, 3) else x.bfloat16() for x in inputs]  # gates stay wide
    few = [x.float() if x.dim() in (1, 3) else x for x in few]
    ours, state = case.op(*few)
    plain = plain_bf16(case, few)
    assert ours.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    ours_error, plain_error = ((x.double() - exact).norm() / exact.norm() for x in (ours, plain))
    assert float(ours_error) <= 2 * float(plain_error)


def plain_bf16(case: Case, inputs: list[Tensor]) -> Tensor:
    """Quadratic or sequential, whatever is plainest, with bf16 products and an fp32 state."""
    q, k, v, g, *beta = inputs
    heads = max(x.shape[2] for x in (q, k, v))
    q, k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (q * q.shape[-1] ** -0.5, k, v))
    gate = g.expand(*q.shape[:2], g.shape[-1]).repeat_interleave(heads // g.shape[-1], 2).exp()
    state = torch.zeros(q.shape[0], heads, k.shape[-1], v.shape[-1])
    outputs = []
    for t in range(q.shape[1]):
        state = state * gate[:, t, :, None, None]
        key, value = k[:, t, :, :, None], v[:, t, :, None, :]
        if beta:
            strength = beta[0][:, t].repeat_interleave(heads // beta[0].shape[-1], 1)[:, :, None, None].bfloat16()
            value = strength * (value - key.mT @ state.bfloat16())
        state = state + (key @ value).float()
        outputs.append((q[:, t, :, None] @ state.bfloat16())[:, :, 0])
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("log_gate", [0.0, -1e-6, -3.0, -60.0, -1e4])
@pytest.mark.parametrize("strength", [0.0, 1e-6, 0.5, 1.0])
@pytest.mark.parametrize("keys", ["random", "equal", "large"])
def test_gated_delta_rule_at_extremes(log_gate: float, strength: float, keys: str) -> None:
    """fla #111 #99 #389 #537.

    Gates near 0 and 1, writing strength 0 and 1, one key repeated (powers of L reach 1e14), and large norms.
    """
    torch.manual_seed(0)
    time = 96
    q, v = torch.randn(1, time, 2, 16), torch.randn(1, time, 1, 16)
    k = F.normalize(torch.randn(1, time if keys != "equal" else 1, 1, 16), dim=-1).expand(1, time, 1, 16)
    if keys == "large":
        q, v = q * 1e3, v * 1e3
    g = torch.full((1, time, 1), log_gate)
    g[:, ::2] *= 1e-3  # strong and weak gates side by side
    beta = torch.full((1, time, 1), strength)
    results = []
    for op, dtype in ((gated_delta_rule, torch.float32), (reference.gated_delta_rule, torch.float64)):
        leaves = [x.to(dtype).clone().requires_grad_() for x in (q, k, v, g, beta)]
        out, state = op(*leaves)
        results.append([out, state, *torch.autograd.grad(out.square().sum() / v.square().sum(), leaves)])
    for index, (found, wanted) in enumerate(zip(*results, strict=True)):
        assert found.isfinite().all()
        size = wanted.abs().max().clamp_min(1e-3)
        assert float(((found - wanted).abs().max() / size).detach()) < 2e-4, f"result {index}"


@pytest.mark.parametrize("log_gate", [0.0, -1e-6, -3.0, -60.0, -1e4])
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_scalar_decay_at_extremes(log_gate: float, size: float) -> None:
    torch.manual_seed(0)
    q, k, v = (size * torch.randn(1, 130, heads, 16) for heads in (2, 1, 1))
    g = torch.full((1, 130, 2), log_gate)
    g[:, ::2] *= 1e-3
    results = []
    for op, dtype in ((scalar_decay, torch.float32), (reference.scalar_decay, torch.float64)):
        leaves = [x.to(dtype).clone().requires_grad_() for x in (q, k, v, g)]
        out, state = op(*leaves)
        results.append([out, state, *torch.autograd.grad(out.square().sum() / size**6, leaves)])
    for index, (found, wanted) in enumerate(zip(*results, strict=True)):
        assert found.isfinite().all()
        assert float(((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-3)).detach()) < 2e-4, (
            f"result {index}"
        )


class LargestTensor(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that any operation makes, and of all together."""

    largest, total = 0, 0

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        out = func(*args, **(kwargs or {}))  # type: ignore[operator]
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.largest, self.total = max(self.largest, x.numel()), self.total + x.numel()
        return out


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]], ids=lambda case: case.name)
def test_nothing_grows_with_the_square_of_the_length(case: Case) -> None:
    def sizes(time: int) -> LargestTensor:
        inputs, _ = case.make(1, time, torch.float32)
        leaves = case.leaves(inputs)
        with LargestTensor() as seen:
            torch.autograd.grad(case.op(*inputs)[0].sum(), leaves)
        return seen

    half, whole = sizes(4096), sizes(8192)
    assert whole.largest < 8192**2
    assert whole.largest <= 2.01 * half.largest
    assert whole.total <= 2.05 * half.total, "work grows faster than the length"


def test_long_sequences_stay_exact() -> None:
    """Remembering everything (gate 1) over 8,192 tokens, one key repeated."""
    time = 8192
    torch.manual_seed(0)
    k = F.normalize(torch.randn(1, 1, 1, 12), dim=-1).expand(1, time, 1, 12)
    v, q = torch.randn(1, time, 1, 12), torch.randn(1, time, 1, 12)
    out, _ = gated_delta_rule(q, k, v, torch.zeros(1, time, 1), torch.ones(1, time, 1))
    wanted = v * (q * k).sum(-1, keepdim=True) * 12**-0.5  # a fully replaced value: only the last one is left
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-4)


def test_autocast_does_not_reach_the_recurrence() -> None:
    for case in CASES:
        inputs, state = case.make(1, 40, torch.float32)
        wanted = case.op(*inputs, initial_state=state)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = case.op(*inputs, initial_state=state)
        torch.testing.assert_close(found, wanted, atol=0, rtol=0)


def test_reference_steps_are_the_steps() -> None:
    inputs, state = CASES[1].make(2, 1, torch.float64)
    q, *rest = CASES[1].at(inputs, 0)
    for a, b in zip(
        gated_delta_step(q, *rest, state),
        reference.gated_delta_step(q * q.shape[-1] ** -0.5, *rest, state),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    inputs, state = CASES[-1].make(2, 1, torch.float64)
    q, *rest = CASES[-1].at(inputs, 0)
    for a, b in zip(
        scalar_decay_step(q, *rest, state, scale=1.0), reference.scalar_decay_step(q, *rest, state), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 4, 2, 8)
    gate = torch.zeros(1, 4, 2)
    with pytest.raises(BadSetting, match=r"num_heads is 3; allowed: a multiple of the 2 states"):
        gated_delta_rule(q, k, k, gate, gate)
    with pytest.raises(BadSetting, match=r"shape of beta is \(1, 4\)"):
        gated_delta_rule(k, k, k, gate, gate[..., 0])
    with pytest.raises(BadSetting, match=r"heads of k is 2; allowed: a divisor of 3"):
        scalar_decay(q, k, k, torch.zeros(3))
    with pytest.raises(BadSetting, match=r"shape of g is \(5,\)"):
        scalar_decay(k, k, k, torch.zeros(5))
    with pytest.raises(BadSetting, match=r"sequence length is 0"):
        scalar_decay(k[:, :0], k[:, :0], k[:, :0], torch.zeros(2))


def test_strong_decays_make_no_subnormal_numbers() -> None:
    """A CPU multiplies with them a hundred times slower, and they change nothing."""
    for strength in (0.5, 3.0, 50.0):
        made = decays(torch.full((3, 1, 2, 64), -strength), None, torch.float32)
        for factor in (made.from_start, made.to_end, made.whole, made.between):
            assert not ((factor > 0) & (factor < 1e-30)).any()
            assert factor.max() <= 1
