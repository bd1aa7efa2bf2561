"""The report's data survive JSON, and refuse what they do not know."""

import json
import math

import pytest

from gridlaw.pipelines.report.data import LawParameter, LawPoint, LawRow, MetricValue, PointRow, ReportData, Savings


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


def _law(form: str, **values: float) -> LawRow:
    parameters = tuple(LawParameter(name=name, value=value) for name, value in values.items())
    return LawRow(target="loss", architecture="full", form=form, parameters=parameters, converged=True)


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (_law("nd", a=3.0, alpha=0.5, b=8.0, beta=1 / 3), 3 / 10 + 8 / 10),
        (_law("nde", a=3.0, alpha=0.5, b=8.0, beta=1 / 3, E=1.5), 1.5 + 3 / 10 + 8 / 10),
        (_law("n", a=3.0, alpha=0.5), 3 / 10),
        (_law("d", b=8.0, beta=1 / 3), 8 / 10),
    ],
)
def test_forms_predict_by_hand(law, expected):
    assert law.predict(100, 1000) == pytest.approx(expected)


def test_a_law_with_missing_parameters_predicts_nothing():
    assert _law("nd", a=3.0, alpha=0.5).predict(100, 1000) is None


def test_relative_error_and_interval_of_a_held_out_point():
    point = LawPoint(name="p", num_params=1, tokens=1, measured=2.0, predicted=2.1, low=2.05, high=2.2)
    assert point.relative_error == pytest.approx(0.05)
    assert point.inside is False


def test_savings_without_tokens_are_none():
    assert Savings(tokens_trained=0, tokens_without_sharing=0).fraction_saved == 0.0
    assert Savings(tokens_trained=6, tokens_without_sharing=10).fraction_saved == pytest.approx(0.4)
