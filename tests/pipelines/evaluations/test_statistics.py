"""Intervals against scipy and against simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest

from gridlaw.pipelines.evaluations.statistics import ratio_standard_error, sigmas_above_chance, wilson_interval


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (10, 10), (3, 10), (500, 3675), (1, 1)])
def test_wilson_is_scipys(hits: int, trials: int) -> None:
    expected = binomtest(hits, trials).proportion_ci(0.95, method="wilson")
    assert wilson_interval(hits, trials) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_nothing_tried_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_sigmas() -> None:
    assert sigmas_above_chance(25, 100, 0.25) == 0
    assert sigmas_above_chance(25 + 3 * np.sqrt(100 * 0.25 * 0.75), 100, 0.25) == pytest.approx(3)


def test_standard_error_of_a_ratio_matches_simulation() -> None:
    rng = np.random.default_rng(0)
    estimates, errors = [], []
    for _ in range(2000):
        counts = rng.integers(50, 500, size=60).astype(float)
        sums = counts * (2 + 0.3 * rng.standard_normal(60))
        estimates.append(sums.sum() / counts.sum())
        errors.append(ratio_standard_error(sums, counts))
    assert np.mean(errors) == pytest.approx(np.std(estimates), rel=0.1)


def test_one_document_has_no_standard_error() -> None:
    assert ratio_standard_error(np.array([2.0]), np.array([1.0])) is None
