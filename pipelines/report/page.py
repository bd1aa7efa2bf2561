"""The report as one HTML page that needs nothing else: no network, no other file, no script for its text and tables.

plotly.js travels inside, compressed (about 2 MB instead of 5), and draws what ``charts`` describes; without a script
the page still holds every number.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from functools import cache

from gridlaw.pipelines.report import charts, law_sections, routing_section, sections, words
from gridlaw.pipelines.report.data import ReportData
from gridlaw.pipelines.report.markup import Figures, Html, joined, tag
from gridlaw.pipelines.report.style import SCRIPT, SHEET


def render(data: ReportData) -> str:
    """The whole page. Works with no points, no laws and failed points; every text in ``data`` is escaped."""
    figures, style = Figures(), charts.style_of(data)
    parts = [
        sections.in_short(data),
        law_sections.laws(data, figures, style),
        sections.retrieval(data, figures, style),
        routing_section.routing_section(data, figures),
        sections.compared(data),
        sections.points(data),
        sections.failures(data),
        sections.cost(data),
        sections.training(data, figures, style),
        sections.made(data),
    ]
    title = f"{data.experiment}: scaling laws"
    return document(title, _header(data, Html("".join(parts))), parts, figures, _colophon(data))


def document(title: str, header: Html, parts: Sequence[Html], figures: Figures, colophon: str) -> str:
    """A whole page of parts: its header and main matter, figures drawn from what travels inside."""
    head = joined([
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        Html('<link rel="icon" href="data:,">'),
        tag("title", title),
        Html(f"<style>{SHEET}</style>"),
    ], "\n")  # fmt: skip
    body = joined([
        tag("header", header),
        tag("main", joined(parts, "\n")),
        tag("footer", colophon),
        Html(f'<script type="application/json" id="figures">{figures.json()}</script>'),
        Html(f'<script type="text/plain" id="plotly">{_plotly_packed() if figures.panels else ""}</script>'),
        Html(f"<script>{SCRIPT}</script>") if figures.panels else Html(""),
    ], "\n")  # fmt: skip
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _header(data: ReportData, written: Html) -> Html:
    """Title, headline numbers and links to the sections that exist."""
    kicker = f"Scaling-law report, {_when(data.created)}" + (f", {data.hardware}" if data.hardware else "")
    named = [("laws", "Laws")]
    named += [(f"chance-{index}", words.metric_label(name)) for index, name in enumerate(words.chance_metrics(data))]
    named += [("needles", "Needles by place"), ("routing", routing_section.TITLE), ("compared", "Comparison")]
    named += [
        ("points", "Points"),
        ("failed", "Failed"),
        ("cost", "Cost"),
        ("training", "Training curves"),
        ("made", "How it was made"),
    ]
    links = [tag("li", tag("a", text, href=f"#{key}")) for key, text in named if f'id="{key}"' in written]
    nav = tag("nav", tag("ul", joined(links)), aria_label="Sections")
    return joined([tag("p", kicker, class_="kicker"), tag("h1", data.experiment), sections.facts(data), nav])


def _when(created: str) -> str:
    """2026-11-29T12:00:00+00:00 → 2026-11-29 12:00 (+00:00 kept as UTC); other texts stay as they are."""
    date, separator, time = created.partition("T")
    if not separator or len(time) < 5:
        return created
    zone = "UTC" if time.endswith(("+00:00", "+0000", "Z")) else time[8:] if len(time) > 8 else ""
    return f"{date} {time[:5]} {zone}".strip()


def _colophon(data: ReportData) -> str:
    made_by = f"gridlaw {data.versions.get('gridlaw', '')}".strip()
    return f"Made by {made_by} on {_when(data.created)}. This page is one file and loads nothing."


@cache
def _plotly_packed() -> str:
    """plotly's own minified bundle, gzip in base64. mtime 0: the same page for the same data."""
    from plotly.offline import get_plotlyjs  # only a page needs it

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode("ascii")
