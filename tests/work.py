"""Counting work instead of seconds: the largest tensor any operation makes, and elements read by attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Inside it, `num_elements` is the size of the largest tensor an operation returned, backward included."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0
        self.operation = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            # what a view shows may be larger than what it holds (expand): count what exists
            if (
                isinstance(leaf, Tensor)
                and (size := min(leaf.numel(), leaf.untyped_storage().nbytes())) > self.num_elements
            ):
                self.num_elements, self.operation = size, str(func)
        return out


class AttentionReads(TorchDispatchMode):
    """Inside it, every call of the CPU attention kernel adds its (batch rows, query tokens, keys).

    num_heads: query heads of one call. One token's query heads may reach the kernel as rows of their key's head, so
    tokens are counted as query vectors divided by heads.
    """

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.calls: list[tuple[int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "flash_attention_for_cpu" in str(func) and "backward" not in str(func):
            q, k = args[0], args[1]
            tokens, rest = divmod(q.shape[1] * q.shape[2], self.num_heads)
            assert rest == 0, f"{tuple(q.shape)} holds no whole tokens of {self.num_heads} heads"
            self.calls.append((q.shape[0], tokens, k.shape[2]))
        return func(*args, **(kwargs or {}))

    def pairs(self) -> int:
        """Query-key pairs that reached the kernel, per head, summed over batch rows."""
        return sum(rows * queries * keys for rows, queries, keys in self.calls)
