"""What is best with several objectives: dominance, the front, its hypervolume. Plain numbers, smaller is better."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = Sequence[float]


def dominates(left: Point, right: Point) -> bool:
    """Nowhere worse and somewhere better."""
    pairs = list(zip(left, right, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def front(points: Sequence[Point]) -> list[int]:
    """Positions of the points that none dominates, in their order; of equal points all."""
    return [
        index for index, point in enumerate(points) if not any(dominates(other, point) for other in points)
    ]  # fmt: skip


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Volume that the points dominate below ``reference``; points that are not below it count for nothing.

    Slices along the last objective (Knowles 2002, "HSO"): exact, and fast enough for the fronts of studies.
    """
    inside = [tuple(point) for point in points if all(p < r for p, r in zip(point, reference, strict=True))]
    inside = [inside[index] for index in front(inside)]
    return _slices(sorted(set(inside)), tuple(reference))


def _slices(points: list[tuple[float, ...]], reference: tuple[float, ...]) -> float:
    if not points:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(point[0] for point in points)
    ordered = sorted(points, key=lambda point: point[-1])
    volume = 0.0
    for index, point in enumerate(ordered):
        top = ordered[index + 1][-1] if index + 1 < len(ordered) else reference[-1]
        if top > point[-1]:
            below = [each[:-1] for each in ordered[: index + 1]]
            volume += (top - point[-1]) * _slices([below[at] for at in front(below)], reference[:-1])
    return volume


def far_behind(mine: Point, finished: Sequence[Point], *, margin: float) -> bool:
    """Whether one of ``finished`` (trials at the same step) is better in every objective by a wide margin.

    margin: as a share of each objective's range among them. False while there is nothing to compare with, and for a
    trial that is ahead, or not far behind, in any objective.
    """
    if not finished or any(not math.isfinite(value) for value in mine):
        return False
    ranges = [max(column) - min(column) for column in zip(*finished, strict=True)]
    return any(
        all(own - other > margin * width for own, other, width in zip(mine, each, ranges, strict=True))
        for each in finished
    )
