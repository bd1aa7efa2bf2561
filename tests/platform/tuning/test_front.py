"""Fronts and their hypervolume, against Optuna's and by brute force; when a trial is far behind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from optuna._hypervolume import compute_hypervolume

from gridlaw.platform.tuning.front import dominates, far_behind, front, hypervolume


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_the_hypervolume_is_optunas(dimensions: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = np.round(rng.random((14, dimensions)), 1)  # with ties
    reference = np.full(dimensions, 0.85)
    inside = points[(points < reference).all(axis=1)]  # Optuna's takes no others
    assert hypervolume(points.tolist(), reference.tolist()) == pytest.approx(compute_hypervolume(inside, reference))


def test_the_hypervolume_of_boxes_counted_by_hand() -> None:
    assert hypervolume([(1.0, 3.0), (2.0, 1.0)], (4.0, 4.0)) == 3 * 1 + 2 * 2
    assert hypervolume([(1.0, 3.0), (5.0, 0.0)], (4.0, 4.0)) == 3.0
    assert hypervolume([], (1.0, 1.0)) == 0.0


def test_the_front_is_what_none_dominates() -> None:
    points = [(1, 5), (2, 2), (2, 2), (3, 1), (3, 3), (0, 9)]
    assert front(points) == [0, 1, 2, 3, 5]
    for index, point in enumerate(points):
        assert (index in front(points)) != any(dominates(other, point) for other in points)


def test_far_behind_means_by_the_margin_in_every_objective() -> None:
    finished = [(0.0, 1.0), (1.0, 0.0)]
    for mine in itertools.product(np.linspace(-0.5, 2.0, 11), repeat=2):
        expected = any(all(m - f > 0.25 for m, f in zip(mine, other, strict=True)) for other in finished)
        assert far_behind(mine, finished, margin=0.25) == expected
    assert not far_behind((9.0, 9.0), [], margin=0.25)
    assert not far_behind((9.0, -9.0), finished, margin=0.25)
    assert not far_behind((float("nan"), 9.0), finished, margin=0.25)
