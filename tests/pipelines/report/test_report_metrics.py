"""Flat metrics become values with intervals, in the names that the evaluations use."""

import pytest

from gridlaw.pipelines.report.data import MetricValue
from gridlaw.pipelines.report.metrics import metric_value


def test_accuracy_with_interval_and_chance():
    flat = {
        "niah_rank_accuracy": 0.3,
        "niah_rank_low": 0.2,
        "niah_rank_high": 0.4,
        "niah_rank_chance": 0.125,
        "loss": 1.0,
    }
    expected = MetricValue(value=0.3, low=0.2, high=0.4, chance=0.125, num_samples=64)
    assert metric_value("niah_rank_accuracy", flat, 64) == expected


def test_standard_error_becomes_a_95_percent_interval():
    value = metric_value("loss", {"loss": 2.0, "loss_stderr": 0.01})
    assert (value.low, value.high) == (pytest.approx(1.9804, abs=1e-4), pytest.approx(2.0196, abs=1e-4))


def test_a_bare_number_has_no_interval():
    assert metric_value("bits_per_byte", {"bits_per_byte": 2.9, "loss_stderr": 0.1}) == MetricValue(value=2.9)


def test_a_missing_metric_is_an_error():
    with pytest.raises(KeyError):
        metric_value("loss", {})


def test_what_an_evaluation_tells_of_a_metric_comes_first():
    value = metric_value("longppl", {"longppl": 7.5, "longppl_low": 1.0}, 60, {"low": 7.0, "high": 8.0})
    assert (value.value, value.low, value.high, value.chance, value.num_samples) == (7.5, 7.0, 8.0, None, 60)
