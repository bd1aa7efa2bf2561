"""Batches of an optimizer step do not depend on micro-batch, accumulation, ranks or where the run was resumed."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gridlaw.modules.data.batches import StepSampler, document_ids, train_loader
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.prepare import PreparedData, prepare
from gridlaw.modules.errors import BadSetting


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    declaration = declare({}, base_folder=Path("."), context=256)
    return prepare(declaration, tmp_path_factory.mktemp("data") / prepared_name(declaration))


def take_step(step: int, *, batch_size: int, num_ranks: int, num_windows: int, start_step: int) -> list[int]:
    """The windows that all ranks together take at ``step``, rank by rank, for samplers started at ``start_step``."""
    windows: list[int] = []
    share = batch_size // num_ranks
    for rank in range(num_ranks):
        sampler = StepSampler(
            data_fingerprint="data",
            seed=3,
            num_windows=num_windows,
            batch_size=batch_size,
            start_step=start_step,
            rank=rank,
            num_ranks=num_ranks,
        )
        windows += islice(sampler, (step - start_step) * share, (step - start_step + 1) * share)
    return windows


@given(
    num_windows=st.integers(1, 500),
    share=st.integers(1, 6),
    num_ranks=st.integers(1, 4),
    step=st.integers(0, 150),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_step_is_a_pure_function_of_step(
    num_windows: int, share: int, num_ranks: int, step: int, data: st.DataObject
) -> None:
    start_step = data.draw(st.integers(0, step))
    batch_size = share * num_ranks
    fresh = take_step(step, batch_size=batch_size, num_ranks=1, num_windows=num_windows, start_step=0)
    resumed = take_step(
        step, batch_size=batch_size, num_ranks=num_ranks, num_windows=num_windows, start_step=start_step
    )
    assert resumed == fresh


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_micro_batches_cut_the_same_step(prepared: PreparedData, micro_batch: int) -> None:
    def step_three(micro: int, workers: int) -> torch.Tensor:
        loader = train_loader(prepared, seed=1, batch_size=4, micro_batch=micro, start_step=3, num_workers=workers)
        return torch.cat(list(islice(loader, 4 // micro)))

    whole = step_three(4, 0)
    assert whole.shape == (4, 257)
    assert whole.dtype == torch.int64
    assert torch.equal(step_three(micro_batch, 0), whole)


def test_loader_workers_change_nothing(prepared: PreparedData) -> None:
    def batches(num_workers: int) -> list[torch.Tensor]:
        loader = train_loader(prepared, seed=1, batch_size=4, micro_batch=4, num_workers=num_workers)
        return list(islice(loader, 3))

    for alone, with_worker in zip(batches(0), batches(1), strict=True):
        assert torch.equal(alone, with_worker)


def test_sampler_has_no_length(prepared: PreparedData) -> None:
    loader = train_loader(prepared, seed=1, batch_size=4, micro_batch=4)
    with pytest.raises(TypeError):
        len(loader)


def test_batches_that_cannot_be_cut_are_refused(prepared: PreparedData) -> None:
    with pytest.raises(BadSetting, match="micro_batch is 3"):
        train_loader(prepared, seed=1, batch_size=4, micro_batch=3)
    with pytest.raises(BadSetting, match="batch size in windows is 3"):
        StepSampler(data_fingerprint="data", seed=0, num_windows=5, batch_size=3, num_ranks=2)


def test_document_ids_open_at_the_end_token() -> None:
    tokens = torch.tensor([[1, 2, 9, 3, 4, 9, 9, 5]])
    assert document_ids(tokens, 9).tolist() == [[0, 0, 1, 1, 1, 2, 3, 3]]


def test_windows_of_a_batch_come_from_the_text(prepared: PreparedData) -> None:
    batch = next(iter(train_loader(prepared, seed=1, batch_size=8, micro_batch=8)))
    rows = prepared.train_windows(np.arange(prepared.num_train_windows))
    for row in batch.numpy():
        assert (rows == row).all(axis=1).any()
