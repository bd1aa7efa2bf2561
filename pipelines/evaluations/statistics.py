"""Intervals for evaluation results. Free of torch."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Z_95 = 1.959963984540054


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """95 % interval of a share, by Wilson's score (1927); sensible at 0 and 1 and for few trials."""
    if trials < 1:
        return 0.0, 1.0
    share, square = successes / trials, Z_95**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = Z_95 * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def sigmas_above_chance(successes: float, trials: int, chance: float) -> float:
    """How many standard deviations of guessing lie between guessing and what was measured."""
    return (successes - trials * chance) / math.sqrt(trials * chance * (1 - chance))


def ratio_standard_error(sums: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> float | None:
    """Standard error of sum(sums) / sum(counts) when the rows (documents) are the independent draws.

    Linearised ratio estimator (Cochran 1977, eq. 2.39); None with fewer than two rows.
    """
    rows = len(sums)
    if rows < 2:
        return None
    residuals = sums - sums.sum() / counts.sum() * counts
    return float(np.sqrt((residuals**2).sum() * rows / (rows - 1)) / counts.sum())
