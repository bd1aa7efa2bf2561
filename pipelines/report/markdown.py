"""The report in short as Markdown, for the description of MLflow's parent run.

MLflow keeps a description in a tag of limited length, so tables are cut with the number of rows left out: what failed
and the laws first, points last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.data import LawRow, ReportData

MAX_CHARACTERS = 7500  # MLflow refuses tags above 8,000
MOST_LAWS, MOST_FAILURES, MOST_POINTS = 24, 12, 60


def markdown_summary(data: ReportData, *, links: str = "") -> str:
    """Findings, laws, failures and points in at most ``MAX_CHARACTERS`` characters. links: Markdown, put first."""
    sentences = (*words.summary(data), *data.notes)
    return _assembled(
        links, sentences, [(_laws(data), MOST_LAWS), (_failures(data), MOST_FAILURES), (_points(data), MOST_POINTS)]
    )


def markdown_progress(data: ReportData, running: Sequence[str], *, links: str = "") -> str:
    """The same while a grid runs: points that have not run are no failures, and the laws are those so far."""
    done = sum(point.status == "done" for point in data.points)
    sentences = [f"{done:,} of {words.plural(len(data.points), 'point')} trained."]
    if running:
        sentences.append(f"Running: {words.listing(running)}.")
    failed = replace(data, points=tuple(point for point in data.points if point.status != "not run"))
    tables = [(_failures(failed), MOST_FAILURES), (_laws(data), MOST_LAWS), (_points(data), MOST_POINTS)]
    heading = "Laws so far are fitted again with each point." if data.laws else "No law has enough points yet."
    return _assembled(links, [*sentences, heading], tables)


def _assembled(links: str, sentences: Sequence[str], tables: Sequence[tuple[list[str], int]]) -> str:
    parts = [links] if links else []
    parts.append("\n".join(f"- {escaped(sentence)}" for sentence in sentences))
    for rows, most in tables:
        if len(rows) < 3:  # a head and its rule alone
            continue
        kept = _fitting(rows[: most + 2], MAX_CHARACTERS - sum(len(part) + 2 for part in parts) - 60)
        if len(kept) < 3:
            break
        left = len(rows) - len(kept)
        parts.append("\n".join(kept) + (f"\n\n*{words.plural(left, 'further row')} in the report*" if left else ""))
    return _cut("\n\n".join(parts))


def _cut(text: str) -> str:
    """Long names can make the sentences alone too long: then whole lines go."""
    while len(text) > MAX_CHARACTERS:
        text = text[: text.rstrip("\n").rfind("\n")] if "\n" in text else text[: MAX_CHARACTERS - 1] + "…"
    return text


def escaped(text: object) -> str:
    """Text that Markdown shows as it is, within a table's cell, too."""
    flat = re.sub(r"\s+", " ", str(text))
    return re.sub(r"([\\`*_{}\[\]<>|#!~])", r"\\\1", flat).replace("\\<", "&lt;").replace("\\>", "&gt;")


def table_lines(head: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> list[str]:
    """A Markdown table's lines, cells escaped; the first ``left`` columns are aligned left, the others right."""
    rule = [":--" if index < left else "--:" for index in range(len(head))]
    lines = ["| " + " | ".join(escaped(cell) for cell in head) + " |", "|" + "|".join(rule) + "|"]
    return lines + ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows]


def _fitting(lines: Sequence[str], budget: int) -> list[str]:
    kept, used = [], 0
    for line in lines:
        used += len(line) + 1
        if used > budget:
            break
        kept.append(line)
    return kept


def _laws(data: ReportData) -> list[str]:
    rows = [
        [words.metric_label(law.target), law.architecture, words.FORM_LABELS.get(law.form, law.form), exponents(law),
         words.significant(law.r2, 3), held_out_errors(law), verdict(law)]
        for law in data.laws
    ]  # fmt: skip
    return table_lines(
        ["Target", "Architecture", "Law in", "Exponents", "R²", "Held-out error", "Verdict"], rows, left=4
    )


def exponents(law: LawRow) -> str:
    return words.exponents_text(law) or words.MISSING


def held_out_errors(law: LawRow) -> str:
    """Errors of up to two held-out points, a star outside the interval; of more the range and how many are inside."""
    points = [point for point in law.held_out if point.relative_error is not None]
    if not points:
        return words.MISSING
    if len(points) > 2:
        sizes = sorted(abs(point.relative_error or 0.0) for point in points)
        inside = sum(point.inside is not False for point in points)
        return f"{words.percent(sizes[0])} to {words.percent(sizes[-1])}, {inside} of {len(points)} inside"
    texts = (words.percent(p.relative_error, 2, sign=True) + "*" * (p.inside is False) for p in points)
    return ", ".join(texts)


def verdict(law: LawRow) -> str:
    """The verdict in a word or three."""
    if not law.parameters:
        return law.reason or "not fitted"
    if not law.converged:
        return "not converged"
    return words.identification(law)


def _failures(data: ReportData) -> list[str]:
    rows = [[p.name, "point", p.status, p.reason or words.MISSING] for p in data.points if p.status != "done"]
    named = {row[0] for row in rows}
    rows += [[row.name, row.kind, row.status, row.reason] for row in data.failures if row.name not in named]
    short = [[*row[:3], row[3] if len(row[3]) <= 120 else row[3][:119] + "…"] for row in rows]
    return table_lines(["Not finished", "Kind", "Status", "Reason"], short, left=4)


def _points(data: ReportData) -> list[str]:
    names = list(dict.fromkeys(name for point in data.points for name in point.metrics))[:4]
    head = ["Point", "N", "D", *(words.metric_label(name) for name in names), "FLOPs"]
    rows = []
    for point in data.points:
        if point.status == "done":
            metrics = [words.metric_text(name, point.metrics.get(name)) for name in names]
            counts = [words.count(point.num_params), words.count(point.tokens)]
            rows.append([point.name, *counts, *metrics, words.scientific(point.train_flops)])
    return table_lines(head, rows)
