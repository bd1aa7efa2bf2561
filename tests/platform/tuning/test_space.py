"""Search spaces: what a parameter may be, conditions, and the combinations of a grid."""

from __future__ import annotations

import pytest

from gridlaw.platform.tuning.space import Parameter, Space

RATE = Parameter(name="rate", kind="float", low=1e-4, high=1.0, log=True)
COUNT = Parameter(name="count", kind="int", low=2, high=8, step=2)
KIND = Parameter(name="kind", kind="choice", choices=("x", "y", True))


@pytest.mark.parametrize(
    ("parameter", "inside", "outside"),
    [
        (RATE, [1e-4, 0.5, 1, 1.0], [0, 1.1, "0.5", True, float("nan"), None]),
        (COUNT, [2, 8, 4.0], [0, 3, 9, 2.5, "4", True]),
        (KIND, ["x", True], [1, "z", False, None]),
    ],
)
def test_what_a_parameter_may_be(parameter: Parameter, inside: list[object], outside: list[object]) -> None:
    assert all(parameter.contains(value) for value in inside)
    assert not any(parameter.contains(value) for value in outside)


def test_values_get_the_parameters_own_type() -> None:
    assert repr(RATE.cast(1)) == "1.0"
    assert repr(COUNT.cast(4.0)) == "4"


def test_a_parameter_exists_only_under_its_condition() -> None:
    deep = Parameter(name="deep", kind="int", low=1, high=3, when={"count": (4, 6)})
    space = Space.of((deep, COUNT, Parameter(name="deeper", kind="choice", choices=(1, 2), when={"deep": (2,)})))
    assert space.names == ("count", "deep", "deeper")
    given = {"count": 4, "deep": 2, "deeper": 1}
    assert space.active(given) == given
    assert space.active(given | {"deep": 3}) == {"count": 4, "deep": 3}
    assert space.active(given | {"count": 8}) == {"count": 8}


def test_circles_are_refused() -> None:
    left = Parameter(name="left", kind="int", low=1, high=3, when={"right": (1,)})
    right = Parameter(name="right", kind="int", low=1, high=3, when={"left": (1,)})
    with pytest.raises(ValueError, match="left, right"):
        Space.of((left, right, KIND))


def test_a_grid_has_every_different_combination_once() -> None:
    inner = Parameter(name="inner", kind="float", low=0.0, high=1.0, step=0.5, when={"kind": ("x",)})
    grid = Space.of((COUNT, KIND, inner)).grid()
    assert len(grid) == 4 * (3 + 1 + 1)
    assert len({repr(each) for each in grid}) == len(grid)
    assert all(("inner" in each) == (each["kind"] == "x") for each in grid)
    assert Space.of((RATE, KIND)).grid() == []


def test_the_identity_is_of_the_values_and_in_no_order() -> None:
    assert Space.of((RATE, KIND)).identity() == Space.of((KIND, RATE)).identity()
    assert Space.of((RATE,)).identity() != Space.of((Parameter(**{**vars(RATE), "high": 2.0}),)).identity()
