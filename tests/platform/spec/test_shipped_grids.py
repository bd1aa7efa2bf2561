"""Every grid that comes with gridlaw loads, and has the points it promises."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import gridlaw.platform.spec.load as load_module
from gridlaw.platform.spec.load import load_grid, shipped_grids

SHIPPED = Path(load_module.__file__).resolve().parents[2] / "pipelines" / "grids"
N_OF_FULL = {"S1": 14_999_424, "S2": 31_470_080, "S3": 64_901_760, "S4": 104_427_264, "S5": 476_852_480}


@pytest.mark.parametrize("name", shipped_grids(SHIPPED))
def test_it_loads_under_its_own_name(name: str) -> None:
    spec = load_grid(name, shipped_folder=SHIPPED)
    assert spec.name == name
    assert len({point.name for point in spec.points()}) == len(spec.points())
    for law in spec.laws:
        assert "fit" in spec.roles(law).values()


def test_the_grids_of_the_issues_are_shipped() -> None:
    assert {"quickstart", "zoo", "paper", "paper-design", "paper-nano"} <= set(shipped_grids(SHIPPED))


def test_quickstart_has_27_points_and_leaves_the_largest_out_of_the_fit() -> None:
    spec = load_grid("quickstart", shipped_folder=SHIPPED)
    roles = spec.roles(spec.laws[0])
    assert len(roles) == 27
    assert {(point.scale, point.budget.label) for point, role in roles.items() if role == "verify"} == {("n3", "20N")}
    assert spec.laws[0].form == ("nd", "d")
    assert spec.data.context >= 512


def test_paper_is_the_papers_grid() -> None:
    """172 points on 30 trunks; 1.937e12 training tokens where unshared runs need 4.063e12."""
    spec = load_grid("paper", shipped_folder=SHIPPED)
    budgets = defaultdict(list)
    for point in spec.points():
        budgets[point.trunk_name].append(point.budget.num_tokens(N_OF_FULL[point.scale]))
    assert (len(spec.points()), len(budgets)) == (172, 30)
    decay = spec.training_for()["schedule"]["decay_fraction"]
    shared = sum(max(tokens) * (1 - decay) + sum(tokens) * decay for tokens in budgets.values())
    assert sum(map(sum, budgets.values())) == pytest.approx(4.063e12, rel=5e-4)
    assert shared == pytest.approx(1.937e12, rel=5e-4)
    loss, longppl = spec.laws
    assert [sum(role == "fit" and point.architecture == "gdn" for point, role in spec.roles(law).items())
            for law in (loss, longppl)] == [18, 17]  # fmt: skip


def test_paper_nano_is_fitted_on_three_scales_and_verified_on_the_fourth() -> None:
    spec = load_grid("paper-nano", shipped_folder=SHIPPED)
    assert len(spec.points()) == 7 * 4 * 3
    roles = spec.roles(spec.laws[0])
    assert {role: {p.scale for p, r in roles.items() if r == role} for role in roles.values()} == {
        "fit": {"n1", "n2", "n3"}, "verify": {"n4"},
    }  # fmt: skip
