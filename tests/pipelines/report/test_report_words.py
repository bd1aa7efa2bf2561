"""Numbers in words."""

import math

import pytest

from gridlaw.pipelines.report import words


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (19_680, "19.7K"),
        (999_600, "1M"),
        (2_211_840, "2.21M"),
        (1e9, "1B"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_counts(value, expected):
    assert words.count(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (4.2, "4.2 s"),
        (59.97, "1 min 0 s"),
        (262, "4 min 22 s"),
        (3599.6, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (2e5, "2 d 8 h"),
    ],
)
def test_durations(seconds, expected):
    assert words.duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.47421, "0.4742"),
        (12345.678, "12,346"),
        (-0.5, "−0.5000"),
        (0.0, "0"),
        (1.9516e-4, "0.0001952"),
        (3e-9, "3.000×10⁻⁹"),
    ],
)
def test_significant_digits(value, expected):
    assert words.significant(value) == expected


def test_long_listings_are_cut_with_their_number():
    assert words.listing("abcde", 3) == "a, b, c and 2 more"
    assert words.listing("abc") == "a, b and c"
    assert words.listing([]) == ""
