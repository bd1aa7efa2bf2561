"""Markdown for MLflow and the table for the terminal."""

import io
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from gridlaw.pipelines.report.data import LawRow, ReportData
from gridlaw.pipelines.report.markdown import MAX_CHARACTERS, escaped, markdown_progress, markdown_summary
from gridlaw.pipelines.report.terminal import laws_table, points_table
from gridlaw.pipelines.report.words import exponents_text, percent, significant


def test_a_grid_without_laws_ends_with_its_points(make_report):
    report = replace(make_report(("full", "swa-128"), ("n1", "n2"), (5,)), laws=())
    file = io.StringIO()
    Console(file=file, width=120).print(points_table(report))
    lines = file.getvalue().splitlines()
    for point in report.points:
        (line,) = [line for line in lines if line.lstrip().startswith(point.name)]
        assert percent(point.metrics["niah"].value) + "*" * (point.metrics["niah"].low <= 0.125) in line
    assert "* cannot be told from guessing" in file.getvalue()


def shown(report: ReportData, width: int = 120, encoding: str = "utf-8", **options) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width).print(laws_table(report, **options))
    file.seek(0)
    return file.read()


def test_markdown_has_findings_laws_failures_and_points(sample_report, with_failures):
    text = markdown_summary(with_failures(sample_report))
    assert "4 points have no result" in text
    for law in sample_report.laws:
        words = escaped(exponents_text(law))
        assert words.startswith(("α", "β")) and words in text
        assert percent(law.held_out[0].relative_error, 2, sign=True) in text
    assert "non-finite loss at step 38" in text
    assert "| gdn/n3/20N/seed0 |" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3
    for lines in tables:  # every row has as many cells as its head
        cells = {line.replace("\\|", "").count("|") for line in lines}
        assert len(cells) == 1


def test_markdown_stays_below_mlflows_limit_and_says_what_it_left_out(make_report):
    names = ("full", "swa-128", "swa-512", "swa-2048", "lightning", "mamba2", "gdn")
    text = markdown_summary(make_report(names, ("n1", "n2", "n3", "n4", "S1"), (5, 10, 15, 20, 40, 80)))
    assert 4000 < len(text) <= MAX_CHARACTERS
    assert "further row" in text


def test_markdown_of_a_running_grid_has_progress_and_laws_so_far(sample_report, with_failures):
    report = with_failures(sample_report)
    text = markdown_progress(report, ["segment gdn/n3/seed0"], links="[Points](#/experiments/1)")
    assert text.startswith("[Points](#/experiments/1)\n\n- 23 of 27 points trained.")
    assert "segment gdn/n3/seed0" in text
    assert escaped(exponents_text(report.laws[0])) in text
    assert "ran out of memory" in text
    assert "not run" not in text  # a point that waits has not failed
    assert len(markdown_progress(report, ["x"] * 2000)) <= MAX_CHARACTERS


def test_markdown_of_hostile_names_is_text(make_report):
    text = markdown_summary(make_report(architectures=("a|b\n# <img src=x>*", "gdn")))
    assert "<img" not in text
    assert "a\\|b \\# &lt;img src=x&gt;\\*" in text


def test_markdown_of_an_empty_report():
    assert markdown_summary(ReportData(experiment="empty", created="now")) == "- The grid has no points yet."


def test_terminal_table_has_both_laws_side_by_side(sample_report):
    text = shown(sample_report)
    for law in sample_report.laws:
        assert all(part in text for part in exponents_text(law).split(", β"))
        assert percent(law.held_out[0].relative_error, 2, sign=True) in text
    assert "not identified" in text


@pytest.mark.parametrize("width", [40, 60, 200])
def test_terminal_table_keeps_to_the_width(sample_report, width):
    assert max(map(len, shown(sample_report, width).splitlines())) <= width


def test_terminal_table_on_an_ascii_terminal(sample_report):
    text = shown(sample_report, encoding="ascii", ascii_only=True)
    law = sample_report.laws[0]
    assert f"alpha {significant(law.parameters[1].value, 3)}" in text
    assert percent(law.held_out[0].relative_error, 2, sign=True).replace("−", "-") in text


def test_terminal_shows_markup_in_names_literally(sample_report):
    law = LawRow(target="loss", architecture="[red]x[/red]", form="nd", reason="[bold]too few[/bold]")
    text = shown(replace(sample_report, laws=(law,)))
    assert "[red]x[/red]" in text
    assert "[bold]too few[/bold]" in text


@pytest.mark.parametrize(
    ("modules", "left_out"),
    [
        (
            "report.markdown, report.terminal, live",
            ("torch", "plotly", "pandas", "mlflow", "ray", "numpy", "lightning"),
        ),
        ("report.page", ("torch", "plotly", "matplotlib", "mlflow", "ray", "lightning")),
    ],
)
def test_imports_stay_cheap(modules, left_out):
    names = ", ".join(f"gridlaw.pipelines.{name}" for name in modules.split(", "))
    code = f"import sys; import {names}; print([m for m in {left_out} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
