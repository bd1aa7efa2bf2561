"""Budgets and sizes that people write with a unit."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridlaw.platform.spec.quantities import BadQuantity, Budget, parse_budget, parse_bytes, parse_tokens

N_OF_N3 = 97_200


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("5N", "5N"),
        ("5.0N", "5N"),
        ("0.5N", "0.5N"),
        ("1000N", "1000N"),
        ("2B", "2B"),
        ("0.5B", "500M"),
        ("500M", "500M"),
        (500_000_000, "500M"),
        ("500_000_000", "500M"),
        (2e9, "2B"),
        ("1.5B", "1.5B"),
        ("12345", "12345"),
        ("1234567", "1234567"),
        (1_234_567_891, "1234567891"),
        ("1T", "1T"),
        (1500, "1.5K"),
        (0, "0N"),
        ("0", "0N"),
        ("0N", "0N"),
        ("0B", "0N"),
    ],
)
def test_one_label_however_it_is_written(written: object, label: str) -> None:
    assert parse_budget(written).label == label


@pytest.mark.parametrize(
    "written",
    [-1, "-5N", "5n", "N", "", "5 N", "1e3N", True, None, [5], 0.5, float("nan"), float("inf"), 5, "999", "0.1K",
     "1.0005K", "2000000N", "2000000T", 10**30, "9" * 100, "5NN", "٣N"],
)  # fmt: skip
def test_what_is_no_budget(written: object) -> None:
    with pytest.raises(BadQuantity):
        parse_budget(written)


def test_hints_name_what_was_meant() -> None:
    with pytest.raises(BadQuantity) as lower:
        parse_budget("5n")
    assert lower.value.hint == "Write 5N"
    with pytest.raises(BadQuantity) as bare:
        parse_budget(20)
    assert "20N" in bare.value.hint


def test_tokens_and_steps() -> None:
    assert parse_budget("5N").num_tokens(N_OF_N3) == 486_000
    assert parse_budget("5N").num_steps(N_OF_N3, 4096) == 119  # 118.65 rounded up
    assert parse_budget("0.3N").num_tokens(10) == 3
    assert parse_budget("0.25N").num_tokens(10) == 3  # 2.5 rounded up
    assert parse_budget("2B").num_tokens(N_OF_N3) == 2_000_000_000
    assert parse_budget(0).num_steps(N_OF_N3, 4096) == 0
    assert parse_budget(0).is_zero


@given(st.integers(1, 10**6), st.integers(0, 3))
def test_labels_of_multiples_read_back(number: int, places: int) -> None:
    budget = Budget(multiple=Fraction(number, 10**places))
    assert parse_budget(budget.label) == budget


@given(st.integers(1_000, 10**18))
def test_labels_of_tokens_read_back(tokens: int) -> None:
    budget = Budget(tokens=tokens)
    assert parse_budget(budget.label) == budget


@given(st.integers(1, 10**5), st.integers(1, 10**12), st.integers(1, 10**7))
def test_steps_see_the_budget_and_less_than_one_step_more(multiple: int, num_params: int, batch_tokens: int) -> None:
    budget = Budget(multiple=Fraction(multiple))
    seen = budget.num_steps(num_params, batch_tokens) * batch_tokens
    assert 0 <= seen - budget.num_tokens(num_params) < batch_tokens


def test_absolute_tokens_only() -> None:
    assert parse_tokens("1B") == 10**9
    for written in ("5N", 0):
        with pytest.raises(BadQuantity):
            parse_tokens(written)


@pytest.mark.parametrize(("written", "size"), [("16GiB", 2**34), ("500MB", 5 * 10**8), ("1.5KiB", 1536), (7, 7)])
def test_bytes(written: object, size: int) -> None:
    assert parse_bytes(written) == size


@pytest.mark.parametrize("written", ["16", "16G", "GiB", -1, 0, True, None, "0GiB", 1.5])
def test_what_is_no_size(written: object) -> None:
    with pytest.raises(BadQuantity):
        parse_bytes(written)
