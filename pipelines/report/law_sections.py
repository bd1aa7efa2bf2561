"""The section about laws: points and curves, parameters with intervals, held-out points, predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence

from gridlaw.pipelines.report import charts, words
from gridlaw.pipelines.report.data import LawPoint, LawRow, ReportData
from gridlaw.pipelines.report.markup import Column, Figures, Html, joined, panels_box, safe, symbol, table, tag
from gridlaw.pipelines.report.sections import architecture_legend, scale_legend

EQUATIONS = {
    "nd": Html("a·N<sup>−α</sup> + b·D<sup>−β</sup>"),
    "nde": Html("E + a·N<sup>−α</sup> + b·D<sup>−β</sup>"),
    "n": Html("a·N<sup>−α</sup>"),
    "d": Html("b·D<sup>−β</sup>"),
    "ne": Html("E + a·N<sup>−α</sup>"),
    "de": Html("E + b·D<sup>−β</sup>"),
}


def laws(data: ReportData, figures: Figures, style: charts.Style) -> Html:
    """Points and curves, the laws, what they say of held-out points, predicted against measured; per target."""
    parts = [tag("h2", "Laws", id="laws")]
    if not words.targets(data):
        parts.append(tag("p", "No law was fitted.", class_="muted"))
    for number, target in enumerate(words.targets(data)):
        group, label = f"target{number}", words.inline_label(target)
        mine = [law for law in data.laws if law.target == target]
        panels = charts.law_panels(data, target, style)
        parts.append(tag("h3", f"{words.metric_label(target)} over training tokens"))
        if not panels:
            parts.append(
                tag("p", f"No finished point has a value of {words.inline_label(target)} yet.", class_="muted")
            )
        else:
            parts += [scale_legend(group, style), _key(mine)]
            parts.append(panels_box([figures.figure(panel, group) for panel in panels]))
        if not mine:
            parts.append(tag("p", "No law was fitted.", class_="muted"))
        else:
            parts += [laws_table(mine, label), held_out_table(mine, label)]
        pair = [charts.predicted_panel(data, target, style), charts.compute_panel(data, target, style)]
        kept = [panel for panel in pair if panel]
        if kept:
            parts.append(architecture_legend(group, style))
            parts.append(tag("div", joined([figures.figure(panel, group) for panel in kept]), class_="pair"))
    return joined(parts, "\n")


def _key(mine: Sequence[LawRow]) -> Html:
    drawn = [law for law in mine if law.parameters]
    if not drawn:
        return Html("")
    levels = {law.interval_level for law in drawn if law.curves and law.interval_level}
    band = f", band: its {words.percent(max(levels), 0)} interval" if levels else ""
    parts = [
        symbol("circle", "--muted"),
        " fitted  ",
        symbol("circle", "--muted", filled=False),
        f" held out or excluded; line: the fitted law{band}. Axes are logarithmic and shared.",
    ]
    return tag("p", joined(parts), class_="key")


def laws_table(mine: Sequence[LawRow], label: str) -> Html:
    """Exponents and parameters with intervals; the verdict in a word here and in sentences below."""
    names = [name for name in ("alpha", "beta", "a", "b", "E") if any(_parameter(law, name) for law in mine)]
    columns = [
        Column(title="Architecture"),
        Column(title="Law in", kind="text"),
        Column(title="Exponents", kind="text"),
    ]
    columns += [Column(title=words.PARAMETER_LABELS.get(name, name)) for name in names]
    columns += [Column(title="R²"), Column(title="Points")]
    rows, last = [], []
    for index, law in enumerate(mine):
        cells: list[object] = [law.architecture, words.FORM_LABELS.get(law.form, law.form), _verdict(law)]
        cells += [_parameter(law, name) or words.MISSING for name in names]
        cells += [words.significant(law.r2, 3), len(law.fitted) or words.MISSING]
        rows.append(cells)
        last.append(index + 1 == len(mine) or mine[index + 1].architecture != law.architecture)
    name = f"Fitted laws of {label}"
    caption = joined([f"{name}. ", _equations(mine), _brackets(mine)])
    return joined([table(caption, columns, rows, last_of_group=last, label=name), _sentences(mine)])


def _equations(mine: Sequence[LawRow]) -> Html:
    known = [form for form in dict.fromkeys(law.form for law in mine) if form in EQUATIONS]
    parts = [joined([f"{words.FORM_LABELS[form]}: ", EQUATIONS[form]]) for form in known]
    return joined([joined(parts, "; "), "."]) if parts else Html("")


def _brackets(mine: Sequence[LawRow]) -> str:
    """How the intervals in brackets were made."""
    methods = {
        f"{words.percent(law.interval_level, 0)} intervals by {words.method_text(law.interval_method)}"
        for law in mine
        if law.interval_level and law.interval_method
    }
    return f" In brackets: {'; '.join(sorted(methods))}." if methods else ""


def _verdict(law: LawRow) -> Html:
    """In a word or two."""
    if not law.parameters:
        return tag("span", "no fit", class_="bad strong")
    if not law.converged:
        return tag("span", "not converged", class_="bad strong")
    kind = "good" if law.identified else "muted" if law.identified is None else "warn"
    return tag("span", words.identification(law), class_=f"{kind} strong")


def _sentences(mine: Sequence[LawRow]) -> Html:
    """What the fits say of themselves, one entry a law, behind a fold that is open when something is wrong."""
    entries = []
    for law in mine:
        said = [law.verdict if law.parameters else law.reason or "not fitted"]
        if law.excluded:
            named = (f"{name} ({why})" if why else name for name, why in law.excluded.items())
            said.append(f"Left out: {words.listing(named, 3)}.")
        text = " ".join(filter(None, said))
        if text:
            entries.append(tag("dt", f"{law.architecture}, {words.FORM_LABELS.get(law.form, law.form)}"))
            entries.append(tag("dd", text))
    if not entries:
        return Html("")
    alarming = any(not law.parameters or not law.converged for law in mine)
    body = joined([tag("summary", "What the fits say of themselves"), tag("dl", joined(entries), class_="plain")])
    return Html(f"<details{' open' if alarming else ''}>{body}</details>")


def _parameter(law: LawRow, name: str) -> Html | None:
    for parameter in law.parameters:
        if parameter.name.lower() == name.lower():
            bounds = words.interval(parameter.low, parameter.high)
            value = words.significant(parameter.value, 3)
            return joined([value, Html(" "), tag("small", bounds)]) if bounds else safe(value)
    return None


def held_out_table(mine: Sequence[LawRow], label: str) -> Html:
    """Each held-out point once, with the prediction of every form beside each other."""
    forms = list(dict.fromkeys(law.form for law in mine if law.held_out))
    rows: dict[tuple[str, str], dict[str, LawPoint]] = {}
    for law in mine:
        for point in law.held_out:
            rows.setdefault((law.architecture, point.name), {})[law.form] = point
    if not rows:
        return Html("")
    columns = [Column(title="Held-out point"), Column(title="Measured")]
    for form in forms:
        group = f"law in {words.FORM_LABELS.get(form, form)}"
        columns += [
            Column(title="Predicted", group=group),
            Column(title="Interval", group=group),
            Column(title="Error", group=group),
        ]
    cells = []
    for (_, name), by_form in rows.items():
        measured = next((p.measured for p in by_form.values() if p.measured is not None), None)
        row: list[object] = [name, words.significant(measured)]
        for form in forms:
            row += _held_out_cells(by_form.get(form))
        cells.append(row)
    caption = (
        f"Points of {label} that no fit has seen: error is (predicted − measured) / measured; * outside the interval."
    )
    return table(caption, columns, cells)


def _held_out_cells(point: LawPoint | None) -> list[object]:
    if point is None:
        return [words.MISSING] * 3
    error = words.percent(point.relative_error, 2, sign=True)
    outside = point.inside is False
    marked = tag("span", f"{error} *", class_="bad", title="outside the interval") if outside else safe(error)
    return [words.significant(point.predicted), words.interval(point.low, point.high, 4) or words.MISSING, marked]
