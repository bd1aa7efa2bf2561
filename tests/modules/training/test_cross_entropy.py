"""The chunked loss equals torch's, gradients included, and never holds the logits of all tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gridlaw.modules.training import cross_entropy as subject


def plain(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy((hidden @ head.T).flatten(0, 1).float(), targets.flatten())


def example(dtype: torch.dtype, *, vocabulary: int = 301) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 37, 24, generator=generator).to(dtype).requires_grad_()
    head = (torch.randn(vocabulary, 24, generator=generator) * 0.3).to(dtype).requires_grad_()
    return hidden, head, torch.randint(vocabulary, (2, 37), generator=generator)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 74, 500])
def test_loss_and_gradients_equal_torch(chunk_tokens: int):
    hidden, head, targets = example(torch.float64)
    expected = torch.autograd.grad(3 * plain(hidden, head, targets), (hidden, head))
    mean, losses = subject.chunked_cross_entropy(hidden, head, targets, chunk_tokens=chunk_tokens)
    actual = torch.autograd.grad(3 * mean, (hidden, head))
    torch.testing.assert_close(mean, plain(hidden, head, targets).float())
    torch.testing.assert_close(losses.mean(), mean.detach())
    for given, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(given, wanted, atol=1e-8, rtol=1e-5)


def test_fp32_gradients_equal_torch():
    hidden, head, targets = example(torch.float32)
    expected = torch.autograd.grad(plain(hidden, head, targets), (hidden, head))
    actual = torch.autograd.grad(
        subject.chunked_cross_entropy(hidden, head, targets, chunk_tokens=10)[0], (hidden, head)
    )
    for given, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(given, wanted, atol=1e-7, rtol=1e-5)


def test_under_autocast_the_error_is_at_most_twice_that_of_the_plain_loss():
    hidden, head, targets = example(torch.float32)
    exact = torch.autograd.grad(plain(hidden.double(), head.double(), targets), (hidden, head))

    def error(chunked: bool) -> list[float]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (
                subject.chunked_cross_entropy(hidden, head, targets, chunk_tokens=16)[0]
                if chunked
                else F.cross_entropy(F.linear(hidden, head).flatten(0, 1).float(), targets.flatten())
            )
        return [(g - w).norm().item() for g, w in zip(torch.autograd.grad(loss, (hidden, head)), exact, strict=True)]

    for chunked, reference in zip(error(True), error(False), strict=True):
        assert 0 < chunked <= 2 * reference


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


def test_no_tensor_has_the_size_of_all_logits_forward_or_backward():
    hidden, head, targets = example(torch.float32, vocabulary=2000)
    all_logits = 2 * 37 * 2000
    with LargestTensor() as plain_mode:
        plain(hidden, head, targets).backward()
    with LargestTensor() as mode:
        subject.chunked_cross_entropy(hidden, head, targets, chunk_tokens=8)[0].backward()
    assert plain_mode.largest >= all_logits
    assert mode.largest == head.numel() < all_logits


def test_many_logits_take_the_chunked_way_and_few_the_plain_one(monkeypatch: pytest.MonkeyPatch):
    hidden, head, targets = example(torch.float32)
    few, _ = subject.cross_entropy(hidden, head, targets)
    assert "Chunked" not in type(few.grad_fn).__name__
    monkeypatch.setattr(subject, "PLAIN_UP_TO_LOGITS", 1000)
    many, losses = subject.cross_entropy(hidden, head, targets)
    assert "ChunkedCrossEntropy" in type(many.grad_fn).__name__
    assert losses.shape == (2, 37)
    torch.testing.assert_close(few, many)
