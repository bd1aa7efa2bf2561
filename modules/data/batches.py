"""Windows as torch batches: a map-style dataset and an endless sampler, for a DataLoader under Lightning's Trainer.

The sampler has no length and starts where it is told (Lightning restarts a loader on resume, it does not skip), so the
batch of optimizer step s never depends on how a run reached s. Nothing here is random: see ``sampling``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.data.sampling import window_indices
from gridlaw.modules.errors import BadSetting

STEPS_PER_BLOCK = 64


class WindowDataset(Dataset[torch.Tensor]):
    """Item w is training window w as int64 [context + 1]: inputs are [:-1], targets are [1:]."""

    def __init__(self, prepared: PreparedData) -> None:
        self.prepared = prepared

    def __len__(self) -> int:
        return self.prepared.num_train_windows

    def __getitem__(self, window: int) -> torch.Tensor:
        return torch.from_numpy(self.prepared.train_windows(np.array([window]))[0].astype(np.int64))

    def __getitems__(self, windows: list[int]) -> list[torch.Tensor]:
        rows = torch.from_numpy(self.prepared.train_windows(np.asarray(windows)).astype(np.int64))
        return list(rows.unbind(0))


class StepSampler(Sampler[int]):
    """Window numbers of samples start_step·batch_size, …, without end and without ``__len__``.

    batch_size: windows per optimizer step over all ranks. Rank r of R takes the r-th of R equal, consecutive shares of
    every step, so all ranks together take exactly the step's samples.
    """

    def __init__(
        self,
        *,
        data_fingerprint: str,
        seed: int,
        num_windows: int,
        batch_size: int,
        start_step: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        if batch_size < 1 or batch_size % num_ranks:
            raise BadSetting(
                "batch size in windows", seen=batch_size, allowed=f"a positive multiple of {num_ranks} ranks"
            )
        self.data_fingerprint, self.seed, self.num_windows = data_fingerprint, seed, num_windows
        self.batch_size, self.start_step, self.rank, self.num_ranks = batch_size, start_step, rank, num_ranks

    def __iter__(self) -> Iterator[int]:
        share = self.batch_size // self.num_ranks
        own = np.arange(self.rank * share, (self.rank + 1) * share)
        step = self.start_step
        while True:
            # Many steps per call: the permutation's cost is in the call, not in the number of samples.
            starts = np.arange(step, step + STEPS_PER_BLOCK)[:, None] * self.batch_size
            samples = (starts + own[None, :]).reshape(-1)
            yield from window_indices(self.seed, self.data_fingerprint, self.num_windows, samples).tolist()
            step += STEPS_PER_BLOCK


def train_loader(
    prepared: PreparedData,
    *,
    seed: int,
    batch_size: int,
    micro_batch: int,
    start_step: int = 0,
    rank: int = 0,
    num_ranks: int = 1,
    num_workers: int = 0,
) -> DataLoader[Any]:
    """Batches of tokens, int64 [micro_batch, context + 1], from optimizer step ``start_step`` on, without end.

    batch_size: windows per optimizer step over all ranks. micro_batch: windows per forward pass of this rank; must
    divide the rank's share, so that micro-batches of two steps never mix.
    """
    if batch_size % num_ranks or (batch_size // num_ranks) % micro_batch:
        raise BadSetting(
            "micro_batch", seen=micro_batch, allowed=f"a divisor of {batch_size} windows over {num_ranks} ranks"
        )
    sampler = StepSampler(
        data_fingerprint=prepared.fingerprint,
        seed=seed,
        num_windows=prepared.num_train_windows,
        batch_size=batch_size,
        start_step=start_step,
        rank=rank,
        num_ranks=num_ranks,
    )
    return DataLoader(WindowDataset(prepared), batch_size=micro_batch, sampler=sampler, num_workers=num_workers)


def document_ids(tokens_BT: torch.Tensor, end_token_id: int) -> torch.Tensor:
    """Which document each position belongs to, counted within its row: int64 [B, T].

    An end-of-document token opens the document after it: it is what the first token of that document is predicted
    from, and as a target it still closes the one before.
    """
    return (tokens_BT == end_token_id).long().cumsum(-1)
