"""The report's data survive JSON, and refuse what they do not know."""

import json
import math

import pytest

from gridlaw.pipelines.report.data import LawPoint, MetricValue, PointRow, ReportData, Savings


def test_data_survive_json(sample_report):
    again = ReportData.from_dict(json.loads(json.dumps(sample_report.to_dict(), allow_nan=False)))
    assert again == sample_report


def test_non_finite_numbers_stay_json():
    point = PointRow(
        name="p",
        architecture="full",
        scale="n1",
        budget="5N",
        seed=0,
        num_params=1,
        status="diverged",
        metrics={"loss": MetricValue(value=math.inf, low=math.nan)},
    )
    again = PointRow.from_dict(json.loads(json.dumps(point.to_dict(), allow_nan=False)))
    assert math.isnan(again.metrics["loss"].value)
    assert again.metrics["loss"].low is None


def test_unknown_field_is_refused():
    with pytest.raises(TypeError, match=r"Savings has no field 'flops'"):
        Savings.from_dict({"tokens_trained": 1, "tokens_without_sharing": 2, "flops": 3})


def test_unknown_status_is_refused():
    with pytest.raises(ValueError, match="allowed: done, failed"):
        PointRow(name="p", architecture="full", scale="n1", budget="5N", seed=0, num_params=1, status="ok")


def test_relative_error_and_interval_of_a_held_out_point():
    point = LawPoint(name="p", num_params=1, tokens=1, measured=2.0, predicted=2.1, low=2.05, high=2.2)
    assert point.relative_error == pytest.approx(0.05)
    assert point.inside is False


def test_savings_without_tokens_are_none():
    assert Savings(tokens_trained=0, tokens_without_sharing=0).fraction_saved == 0.0
    assert Savings(tokens_trained=6, tokens_without_sharing=10).fraction_saved == pytest.approx(0.4)
