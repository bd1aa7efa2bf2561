"""Tables over architectures: marks, seeds, chance, and what they say of themselves."""

import csv
import io

import pytest

from gridlaw.pipelines.report.data import MetricValue, PointRow, ReportData
from gridlaw.pipelines.report.page import render
from gridlaw.pipelines.report.tables import all_tables, compare, markdown_page, to_csv, to_html, to_markdown


def point(
    architecture: str, value: float, *, scale="n1", budget="5N", seed=0, status="done", name="loss", **more
) -> PointRow:
    return PointRow(
        name=f"{architecture}/{scale}/{budget}/seed{seed}", architecture=architecture, scale=scale, budget=budget,
        seed=seed, num_params={"n1": 20_000, "n2": 50_000}[scale], tokens=100_000, status=status,
        metrics={name: MetricValue(value=value, **more)},
    )  # fmt: skip


def report(*points: PointRow) -> ReportData:
    return ReportData(experiment="e", created="now", points=points)


def ranks(comparison) -> dict[str, int | None]:
    return {name: cell.rank for (name, _), cell in comparison.cells.items()}


def test_lowest_loss_is_best():
    table = compare(report(point("full", 2.5), point("gdn", 2.4), point("swa-64", 2.6)), "loss")
    assert ranks(table) == {"gdn": 1, "full": 2, "swa-64": None}


def test_highest_accuracy_is_best_and_equal_values_share_a_mark():
    points = [point("full", 0.5, name="recall"), point("gdn", 0.5, name="recall"), point("swa-64", 0.4, name="recall")]
    assert ranks(compare(report(*points), "recall")) == {"full": 1, "gdn": 1, "swa-64": 2}


def test_a_value_at_chance_is_never_marked():
    chance = {"chance": 0.125, "name": "niah"}
    points = [point("full", 0.14, low=0.1, high=0.18, **chance), point("gdn", 0.30, low=0.25, high=0.35, **chance)]
    table = compare(report(*points), "niah")
    assert ranks(table) == {"full": None, "gdn": 1}
    assert "14.0%† \\[10.0%, 18.0%\\]" in to_markdown(table)
    assert "not to be told from chance (12.5%)" in to_markdown(table)


def test_one_architecture_alone_is_not_best():
    assert ranks(compare(report(point("full", 2.5)), "loss")) == {"full": None}


def test_failed_points_do_not_count():
    assert ranks(compare(report(point("full", 2.5), point("gdn", 2.0, status="diverged")), "loss")) == {"full": None}


def test_seeds_are_averaged_with_students_interval():
    """2.4, 2.5, 2.6: mean 2.5, standard error 0.1/√3, t with two degrees of freedom 4.303."""
    points = [point("full", value, seed=seed, num_samples=100) for seed, value in enumerate((2.4, 2.5, 2.6))]
    (cell,) = compare(report(*points), "loss").cells.values()
    assert cell.metric.value == pytest.approx(2.5)
    assert cell.metric.high - 2.5 == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-6)
    assert (cell.num_seeds, cell.metric.num_samples) == (3, 300)


def test_columns_go_from_small_to_large(sample_report):
    table = compare(sample_report, "loss")
    assert [each.label for each in table.settings] == [f"{s}/{b}N" for s in ("n1", "n2", "n3") for b in (5, 10, 20)]
    assert table.architectures == ("full", "swa-64", "gdn")


def test_markdown_marks_best_and_second():
    text = to_markdown(compare(report(point("full", 2.5), point("gdn", 2.4), point("swa|64", 2.6)), "loss"))
    assert text.splitlines()[2:5] == ["| full | *2.500* |", "| gdn | **2.400** |", "| swa\\|64 | 2.600 |"]
    assert "lower is better" in text


def test_csv_holds_every_cell_in_full_precision(sample_report):
    rows = list(csv.DictReader(io.StringIO(to_csv(compare(sample_report, name) for name in ("loss", "niah")))))
    assert len(rows) == 2 * 27
    first = next(p for p in sample_report.points if p.name == "full/n1/5N/seed0")
    assert float(rows[0]["value"]) == first.metrics["loss"].value
    assert rows[0]["num_samples"] == "120000"
    assert rows[0]["low"] == ""
    assert {row["rank"] for row in rows if row["metric"] == "loss"} == {"1", "2", ""}


def test_html_escapes_and_marks():
    text = to_html(compare(report(point("<b>full", 2.5), point("gdn", 2.4), point("swa", 2.6)), "loss"))
    assert "&lt;b&gt;full" in text
    assert "<strong>2.400</strong>" in text
    assert "<u>2.500</u>" in text


def test_the_report_has_the_tables(sample_report):
    page = render(sample_report)
    assert "Architectures compared" in page
    assert "higher is better" in page
    assert "lower is better" in page


def test_a_measured_metric_without_a_value_says_why():
    silent = PointRow(
        name="gdn/n1/5N/seed0", architecture="gdn", scale="n1", budget="5N", seed=0, num_params=20_000,
        outcomes={"longppl": "no key tokens"},
    )  # fmt: skip
    data = report(point("full", 7.5, name="longppl"), silent)
    table = compare(data, "longppl")
    assert "| gdn | no key tokens |" in to_markdown(table).splitlines()
    rows = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert [(row["architecture"], row["value"], row["outcome"]) for row in rows] == [
        ("full", "7.5", ""), ("gdn", "", "no key tokens"),
    ]  # fmt: skip
    assert render(data).count("no key tokens") == 2  # in the comparison, and among the points
    assert render(report(silent)).count("no key tokens") == 1


def test_the_direction_is_the_evaluations_own():
    assert compare(report(point("full", 1, name="cache_bytes")), "cache_bytes").better == "min"
    assert (
        compare(report(point("full", 1, name="decode_tokens_per_second")), "decode_tokens_per_second").better == "max"
    )


def test_all_tables_make_one_markdown_page(sample_report):
    page = markdown_page(sample_report)
    assert page.startswith(f"# {sample_report.experiment}")
    assert page.count("\n## ") == len(all_tables(sample_report)) >= 2


def test_an_unknown_direction_is_refused(sample_report):
    with pytest.raises(ValueError, match="allowed: min, max"):
        compare(sample_report, "loss", better="low")
