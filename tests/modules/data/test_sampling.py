"""The order of windows: a permutation per epoch, a pure function, told by step alone."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridlaw.modules.data.sampling import window_index, window_indices


@given(num_windows=st.integers(1, 3000), seed=st.integers(0, 2**31), epoch=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_each_epoch_visits_every_window_once(num_windows: int, seed: int, epoch: int) -> None:
    samples = np.arange(epoch * num_windows, (epoch + 1) * num_windows)
    assert np.array_equal(np.sort(window_indices(seed, "data", num_windows, samples)), np.arange(num_windows))


@given(
    num_windows=st.integers(1, 10**12),
    seed=st.integers(0, 2**63 - 1),
    samples=st.lists(st.integers(0, 2**62), min_size=1, max_size=20),
)
@settings(max_examples=100, deadline=None)
def test_a_sample_alone_and_among_others_is_the_same_window(num_windows: int, seed: int, samples: list[int]) -> None:
    together = window_indices(seed, "data", num_windows, np.array(samples))
    assert together.tolist() == [window_index(seed, "data", num_windows, sample) for sample in samples]
    assert together.min() >= 0
    assert together.max() < num_windows


def test_order_changes_with_epoch_seed_and_data() -> None:
    samples = np.arange(1000)
    first = window_indices(0, "data", 1000, samples)
    for other in (
        window_indices(0, "data", 1000, samples + 1000),
        window_indices(1, "data", 1000, samples),
        window_indices(0, "other", 1000, samples),
    ):
        # Two independent permutations agree in one place on average.
        assert (first == other).sum() < 12


def test_order_is_the_same_in_every_version() -> None:
    """Resuming an old run must find the old order: these numbers may never change."""
    assert window_indices(7, "golden", 1000, np.array([0, 1, 2, 999, 1000, 123456789])).tolist() == GOLDEN


GOLDEN = [920, 738, 948, 239, 378, 972]


def test_places_are_spread_evenly_over_seeds() -> None:
    """Over many seeds, a given sample falls on each window equally often (chi-square with 36 degrees of freedom)."""
    num_windows, trials = 37, 1500
    for sample in (0, 1, 36):
        hits = [window_index(seed, "data", num_windows, sample) for seed in range(trials)]
        observed = np.bincount(hits, minlength=num_windows)
        chi_square = ((observed - trials / num_windows) ** 2 / (trials / num_windows)).sum()
        assert chi_square < 75, f"sample {sample}: chi-square {chi_square}"  # p = 1e-4 at 75


def test_neighbours_are_not_kept_together() -> None:
    order = window_indices(0, "data", 10_000, np.arange(10_000))
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.002
    assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.05


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="num_windows is 0"):
        window_index(0, "data", 0, 0)
    with pytest.raises(ValueError, match="sample is -1"):
        window_index(0, "data", 5, -1)


def test_import_is_light() -> None:
    code = (
        "import sys, gridlaw.modules.data.sampling, gridlaw.modules.data.prepare, gridlaw.modules.data.declaration;"
        "print([name for name in ('torch', 'datasets', 'transformers', 'lightning') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
