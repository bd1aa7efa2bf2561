"""The shipped grid ``switch``: its Full model retrieves, so comparing it with its baselines means something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# 25 minutes of two cores
pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

FULL, SWA, SWITCH = "cpt/full/deep/800K/seed0", "cpt/swa-only-32/deep/800K/seed0", "steered/swiattn-32/deep/800K/seed0"


@pytest.fixture(scope="module")
def finished(new_workplace: Callable[[], Any]) -> Any:
    place = new_workplace()
    place.done = place.gridlaw("run", "switch", timeout=5000)
    assert place.done.returncode == 0, place.done.stderr[-3000:]
    place.points = {run.data.tags["gridlaw.name"]: run.data.metrics for run in place.runs("point", name="switch")}
    return place


def test_full_retrieves_3_sigma_above_chance(finished: Any) -> None:
    assert finished.points[FULL]["niah_rank_chance"] == 0.125
    assert finished.points[FULL]["niah_rank_sigmas"] > 3.0
    assert finished.points[FULL]["niah_rank_accuracy"] > finished.points[SWA]["niah_rank_accuracy"]


def test_the_controller_reaches_its_target_and_duo_keeps_a_quarter(finished: Any) -> None:
    assert finished.points[SWITCH]["full_ratio"] == pytest.approx(0.25, abs=0.06)
    (duo,) = [metrics for name, metrics in finished.points.items() if name.startswith("duo/")]
    assert duo["full_ratio"] == 0.25
    assert duo["loss"] < finished.points[SWA]["loss"], "duo is measured on the text of the others"


def test_it_ends_with_a_table_and_figures(finished: Any) -> None:
    rows = {row[0]: row for row in map(str.split, finished.done.stdout.splitlines()) if row and "/seed0" in row[0]}
    assert len(rows) == len(finished.points) == 10
    assert f"{100 * finished.points[FULL]['niah_rank_accuracy']:.1f}%" in rows[FULL]
    (page,) = (finished.store / "reports").glob("*.html")
    written = page.read_text()
    assert "Where attention is full" in written and f"{FULL}: ranked first" in written
