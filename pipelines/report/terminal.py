"""The table of laws for the terminal, as a rich table."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from gridlaw.pipelines.report import markdown, words
from gridlaw.pipelines.report.data import LawRow, ReportData

_ASCII = str.maketrans({"α": "alpha", "β": "beta", "−": "-", "–": "-", "×": "x", "²": "2", "·": "*", "…": "..."})
_COLOURS = {"identified": "green", "barely identified": "yellow", "not identified": "yellow", "not examined": ""}


def laws_table(data: ReportData, *, ascii_only: bool = False) -> Table:
    """One row per law: exponents with intervals, R², error of the held-out points, verdict.

    ascii_only: for terminals whose encoding has no Greek; rich itself then draws the lines in ASCII.
    """

    def text(value: str, style: str = "") -> Text:
        return Text(to_ascii(value) if ascii_only else value, style=style)

    table = Table(
        box=box.SIMPLE_HEAD, title=text(f"Laws of {data.experiment}"), title_justify="left", title_style="bold"
    )
    for name in ("Target", "Architecture", "Law in", "Exponents", "R²", "Held-out error", "Verdict"):
        table.add_column(text(name), justify="right" if name in ("R²", "Held-out error") else "left", overflow="fold")
    for law in data.laws:
        table.add_row(
            text(law.target),
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
