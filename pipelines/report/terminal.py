"""What a run ends with in the terminal, as rich tables: its laws, or its points where there are none."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from gridlaw.pipelines.report import markdown, words
from gridlaw.pipelines.report.data import LawRow, PointRow, ReportData

_ASCII = str.maketrans({"α": "alpha", "β": "beta", "−": "-", "–": "-", "×": "x", "²": "2", "·": "*", "…": "..."})
_COLOURS = {"identified": "green", "barely identified": "yellow", "not identified": "yellow", "not examined": ""}


def laws_table(data: ReportData, *, ascii_only: bool = False) -> Table:
    """One row per law: exponents with intervals, R², error of the held-out points, verdict.

    ascii_only: for terminals whose encoding has no Greek; rich itself then draws the lines in ASCII.
    """

    def text(value: str, style: str = "") -> Text:
        return Text(to_ascii(value) if ascii_only else value, style=style)

    targets = list(dict.fromkeys(law.target for law in data.laws))
    title = f"Laws of {data.experiment}" + (f": {words.inline_label(targets[0])}" if len(targets) == 1 else "")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    table.title = text(title)
    heads = ["Architecture", "Law in", "Exponents", "R²", "Held-out error", "Verdict"]
    for name in heads if len(targets) == 1 else ["Target", *heads]:
        kept = 24 if name == "Exponents" else None  # what "α 0.474 [0.221, 0.488]" needs
        table.add_column(text(name), justify="right" if name == "R²" else "left", overflow="fold", min_width=kept)
    for law in data.laws:
        table.add_row(
            *([] if len(targets) == 1 else [text(law.target)]),
            text(law.architecture, "bold"),
            text(words.FORM_LABELS.get(law.form, law.form)),
            text(_exponents(law)),
            text(words.significant(law.r2, 3)),
            text(markdown.held_out_errors(law)),
            text(markdown.verdict(law), _COLOURS.get(markdown.verdict(law), "red")),
        )
    if any(point.inside is False for law in data.laws for point in law.held_out):
        table.caption = text("* outside its interval")
        table.caption_justify = "left"
    return table


def points_table(data: ReportData) -> Table:
    """One row per finished point with what was measured, in the report's order: for a grid without laws."""
    names = words.measured(data)[: words.MOST_METRIC_COLUMNS]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    table.title = Text(f"Points of {data.experiment}")
    table.add_column("Point", overflow="fold")
    for name in names:
        table.add_column(words.metric_label(name), justify="right")
    for point in words.ordered_points(data):
        if point.status == "done":
            table.add_row(point.name, *(_measured(point, name) for name in names))
    if any(_at_chance(point, name) for point in data.points for name in names):
        table.caption, table.caption_justify = Text("* cannot be told from guessing"), "left"
    return table


def _measured(point: PointRow, name: str) -> str:
    value = words.metric_text(name, point.metrics.get(name)) + "*" * _at_chance(point, name)
    return point.outcomes.get(name) or value


def _at_chance(point: PointRow, name: str) -> bool:
    return name in point.metrics and words.above_chance(point.metrics[name]) is False


def to_ascii(value: str) -> str:
    """Greek spelled out, other characters that ASCII lacks replaced by ``?``."""
    return value.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def _exponents(law: LawRow) -> str:
    """One exponent a line, so that columns stay narrow."""
    lines = [
        f"{words.PARAMETER_LABELS[p.name]} {words.significant(p.value, 3)} {words.interval(p.low, p.high)}".strip()
        for p in law.parameters
        if p.name in words.PARAMETER_LABELS
    ]
    return "\n".join(lines) or words.MISSING
