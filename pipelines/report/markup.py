"""Small pieces of HTML: escaped text, tables, legends and figures. Every text that enters here is escaped here.

``Html`` marks what is markup already; anything else is text.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gridlaw.pipelines.figures.marks import Panel


class Html(str):
    """Markup that is not to be escaped again."""

    __slots__ = ()


def safe(value: object) -> Html:
    """Text as HTML, or markup as it is."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def joined(parts: Sequence[object], separator: str = "") -> Html:
    return Html(separator.join(safe(part) for part in parts))


def tag(name: str, content: object = "", **attributes: str) -> Html:
    """<name attributes>content</name>; class_ gives class, and _ in other names gives -."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value != ""
    )
    return Html(f"<{name}{written}>{safe(content)}</{name}>")


@dataclass(frozen=True, kw_only=True)
class Column:
    """kind: number (right), text (left), wrap (left, may break). group: a heading over neighbouring columns."""

    title: str
    kind: str = "number"
    group: str = ""


def table(
    caption: object,
    columns: Sequence[Column],
    rows: Sequence[Sequence[object]],
    *,
    total: Sequence[object] | None = None,
    last_of_group: Sequence[bool] = (),
    label: str = "",
) -> Html:
    """A table whose first cell in each row is its heading, in a box that scrolls sideways by itself.

    last_of_group[i]: draw a stronger rule under row i. label: the box's name for screen readers, else the caption.
    """
    body = []
    for index, row in enumerate(rows):
        mark = "last" if index < len(last_of_group) and last_of_group[index] else ""
        body.append(_row(columns, row, mark))
    if total is not None:
        body.append(_row(columns, total, "total"))
    inner = joined(
        [tag("caption", tag("span", caption)), tag("thead", _head(columns)), tag("tbody", joined(body, "\n"))], "\n"
    )
    return tag(
        "div",
        tag("table", inner),
        class_="scroll sticky",
        role="region",
        tabindex="0",
        aria_label=label or str(caption),
    )


def _row(columns: Sequence[Column], row: Sequence[object], mark: str) -> Html:
    assert len(row) == len(columns), f"row has {len(row)} cells for {len(columns)} columns"
    name = row[0] if isinstance(row[0], Html) else Html(safe(row[0]).replace("/", "/<wbr>"))  # names may break there
    cells = [tag("th", name, scope="row")]
    for column, cell in zip(columns[1:], row[1:], strict=True):
        kind = {"number": "", "text": "text", "wrap": "text wrap"}[column.kind]
        cells.append(tag("td", cell, class_=kind))
    return tag("tr", joined(cells), class_=mark)


def _head(columns: Sequence[Column]) -> Html:
    def title(column: Column) -> Html:
        return tag("th", column.title, scope="col", class_="" if column.kind == "number" else "text")

    if not any(column.group for column in columns):
        return tag("tr", joined([title(column) for column in columns]))
    upper, index = [], 0
    while index < len(columns):
        end = index + 1
        while end < len(columns) and columns[end].group == columns[index].group:
            end += 1
        group = columns[index].group
        span = str(end - index)
        upper.append(
            tag("th", group, colspan=span, scope="colgroup", class_="group")
            if group
            else Html(f'<td colspan="{span}"></td>')
        )
        index = end
    return joined([tag("tr", joined(upper)), tag("tr", joined([title(column) for column in columns]))])


_PATHS = {
    "circle": "M6.5 1.5a5 5 0 1 0 .01 0z",
    "square": "M2 2h9v9h-9z",
    "diamond": "M6.5 0.5l6 6-6 6-6-6z",
    "triangle-up": "M6.5 1.5l5.5 10h-11z",
    "triangle-down": "M6.5 11.5l5.5-10h-11z",
    "x": "M3.5 1l3 3 3-3 2.5 2.5-3 3 3 3-2.5 2.5-3-3-3 3-2.5-2.5 3-3-3-3z",
    "star": "M6.5 0.5l1.7 4.1 4.4.4-3.3 2.9 1 4.3-3.8-2.3-3.8 2.3 1-4.3-3.3-2.9 4.4-.4z",
    "hexagon": "M6.5 1l5 2.8v5.4l-5 2.8-5-2.8v-5.4z",
}


def symbol(name: str, colour: str, *, filled: bool = True) -> Html:
    """The drawing's marker as a small picture beside text (hidden from screen readers: the text says it)."""
    paint = f"fill:var({colour})" if filled else f"fill:var(--paper);stroke:var({colour});stroke-width:2"
    return Html(f'<svg viewBox="0 0 13 13" aria-hidden="true"><path d="{_PATHS[name]}" style="{paint}"/></svg>')


def legend(title: str, group: str, entries: Sequence[tuple[str, str, str]]) -> Html:
    """Buttons that show and hide a scale or architecture in the group's figures; entries: name, colour, symbol."""
    buttons = [
        tag(
            "button",
            joined([symbol(shape, colour), tag("span", name)]),
            type="button",
            aria_pressed="true",
            data_legend=group,
            data_key=name,
        )
        for name, colour, shape in entries
    ]
    return tag(
        "div", joined([tag("span", title, class_="name"), *buttons]), class_="legend", role="group", aria_label=title
    )


def panels_box(figures: Sequence[Html]) -> Html:
    """Figures side by side, as many as fit; one or two get more width."""
    return tag("div", joined(figures), class_="panels" + (" few" if len(figures) < 3 else ""))


@dataclass
class Figures:
    """The page's drawings in order: numbered while the sections are written, then put into one script element."""

    panels: list[Panel] = field(default_factory=list)

    def figure(self, panel: Panel, group: str, note: str = "") -> Html:
        """A <figure> with a place for the drawing. group: whose legend shows and hides its traces."""
        self.panels.append(panel)
        caption = joined([panel.title, Html(" "), tag("small", note)]) if note else safe(panel.title)
        wait = tag("div", "Drawing needs JavaScript; every number is in the tables.", class_="wait")
        plot = tag(
            "div",
            wait,
            class_="plot",
            role="img",
            aria_label=panel.alt,
            data_figure=str(len(self.panels) - 1),
            data_legend=group,
        )
        return tag("figure", joined([tag("figcaption", caption), plot]))

    def json(self) -> Html:
        """All drawings as JSON that cannot end the script element that holds it."""
        values: list[Any] = [{"traces": panel.traces, "layout": panel.layout} for panel in self.panels]
        written = json.dumps(_short(values), allow_nan=False, separators=(",", ":"))
        return Html(written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _short(item: Any) -> Any:
    """Numbers with six digits: more cannot be seen, and drawings are most of what a page holds besides plotly."""
    if isinstance(item, dict):
        return {key: _short(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_short(value) for value in item]
    return float(f"{item:.6g}") if isinstance(item, float) else item
