"""The section about laws: points and curves, parameters with intervals, held-out points, predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gridlaw.pipelines.figures import laws as law_figures
from gridlaw.pipelines.figures import surface
from gridlaw.pipelines.figures.colours import Style
from gridlaw.pipelines.figures.drawn import DrawnLaw
from gridlaw.pipelines.figures.marks import Panel
from gridlaw.pipelines.laws import compare
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


def laws(data: ReportData, figures: Figures, style: Style) -> Html:
    """Per target: points and curves, the laws, what they say of held-out points, how far to trust them, and which
    architecture they put first."""
    parts: list[object] = [tag("h2", "Laws", id="laws")]
    if not words.targets(data):
        parts.append(tag("p", "No law was fitted.", class_="muted"))
    for number, target in enumerate(words.targets(data)):
        drawing = Drawing(
            figures=figures, style=style, group=f"target{number}", label=charts.target_title(target),
            laws=charts.drawn_laws(data, target),
        )  # fmt: skip
        mine = [law for law in data.laws if law.target == target]
        parts += _measured(drawing, mine, target)
        parts += _trusted(drawing, words.metric_label(target))
        parts += _compared(drawing, charts.compute_panel(data, target, style), target)
    return joined(parts, "\n")


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What the figures of one target share. group: whose legend shows and hides their traces."""

    figures: Figures
    style: Style
    group: str
    label: str
    laws: list[DrawnLaw]

    def boxed(self, panels: Sequence[Panel]) -> Html:
        return panels_box([self.figures.figure(panel, self.group) for panel in panels])

    def paired(self, panels: Sequence[Panel | None]) -> Html:
        """Larger figures, two in a row."""
        kept = [self.figures.figure(panel, self.group) for panel in panels if panel is not None]
        return tag("div", joined(kept), class_="pair")


def _measured(drawing: Drawing, mine: Sequence[LawRow], target: str) -> list[object]:
    parts: list[object] = [tag("h3", f"{words.metric_label(target)} over training tokens")]
    panels = law_figures.curve_panels(drawing.laws, drawing.style, drawing.label)
    if panels:
        parts += [scale_legend(drawing.group, drawing.style), _key(mine), drawing.boxed(panels)]
    else:
        parts.append(tag("p", f"No finished point has a value of {words.inline_label(target)} yet.", class_="muted"))
    if mine:
        label = words.inline_label(target)
        parts += [laws_table(mine, label), held_out_table(mine, label)]
    else:
        parts.append(tag("p", "No law was fitted.", class_="muted"))
    return parts


def _trusted(drawing: Drawing, name: str) -> list[object]:
    """Residuals, predicted against measured and the spread of the exponents, and the laws over N and D."""
    residuals = law_figures.residual_panels(drawing.laws, drawing.style)
    if not residuals:
        return []
    predicted = law_figures.predicted_panel(drawing.laws, drawing.style, drawing.label)
    clouds = surface.cloud_panel(drawing.laws, drawing.style)
    parts: list[object] = [
        tag("h3", f"{name}: how far to trust the laws"),
        scale_legend(drawing.group, drawing.style),
        tag("p", joined([_mark("held out"), "; ringed: outliers. A law that fits leaves no pattern."]), class_="key"),
        drawing.boxed(residuals),
        architecture_legend(drawing.group, drawing.style),
    ]
    if clouds is not None:
        said = "Dots: the exponents fitted to resampled points, at the edge where they lie beyond it; bars: intervals."
        parts.append(tag("p", said, class_="key"))
    parts.append(drawing.paired([predicted, clouds]))
    contours = surface.contour_panels(drawing.laws, drawing.label)
    if contours:
        said = (
            " held out; thick line: the compute-optimal split of N and D; dotted: equal training FLOPs (6ND). Far from "
            "the points the law is extrapolated."
        )
        parts += [
            tag("h3", f"{name} over parameters and tokens"),
            tag("p", joined([symbol("circle", "--ink"), " fitted  ", _open(), said]), class_="key"),
            drawing.boxed(contours),
        ]
    return parts


def _compared(drawing: Drawing, compute: Panel | None, target: str) -> list[object]:
    """Architectures against each other: at one N by their laws, and by training compute as measured."""
    fitted = [each for each in drawing.laws if each.law is not None and each.points]
    panels: list[Panel | None] = [compute]
    table_: object = ""
    if len(fitted) > 1:
        num_params = max(point.num_params for each in fitted for point in each.points)
        panels = [
            law_figures.curves_at(fitted, drawing.style, drawing.label, num_params=num_params),
            law_figures.gaps_at(fitted, drawing.style, words.metric_label(target), num_params=num_params),
            compute,
        ]
        table_ = ranking_table(fitted, words.inline_label(target), num_params)
    kept = [panel for panel in panels if panel is not None]
    if not kept:
        return []
    return [
        tag("h3", f"{words.metric_label(target)}: architectures compared"),
        architecture_legend(drawing.group, drawing.style),
        drawing.boxed(kept),
        table_,
    ]


def ranking_table(laws: Sequence[DrawnLaw], label: str, num_params: float) -> Html:
    """What the laws predict at the largest N and D of the points, lowest first, and how far to trust the order."""
    known = {each.name: each.law for each in laws if each.law is not None and len(each.law.draws)}
    if len(known) < 2:
        return Html("")
    tokens = max(point.tokens for each in laws for point in each.points)
    found = compare.ranking(known, num_params, tokens)
    best = str(found.frame.architecture.iloc[0])
    columns = [Column(title="Architecture"), Column(title="Predicted"), Column(title=f"Gap to {best}"),
               Column(title="First in"), Column(title="Keeps its place in")]  # fmt: skip
    rows: list[list[object]] = []
    for row in found.frame.to_dict("records"):
        name = str(row["architecture"])
        gap: object = words.MISSING
        if name != best:
            between = compare.gap(known[name], known[best], num_params, tokens)
            gap = _with_interval(float(between.gap), float(between.low), float(between.high))
        predicted = _with_interval(row["predicted"], row["low"], row["high"])
        rows.append([name, predicted, gap, words.percent(row["first"], 0), words.percent(row["keeps_rank"], 0)])
    caption = (
        f"Laws of {label} at N = {words.count(num_params)} and D = {words.count(tokens)}, lowest first. First in, "
        "keeps its place in: shares of resamples; the whole order is the same in "
        f"{words.percent(found.same_order, 0)} of them."
    )
    return table(caption, columns, rows)


def _with_interval(value: float, low: float, high: float) -> Html:
    return joined([words.significant(value, 3), Html(" "), tag("small", words.interval(low, high))])


def _open() -> Html:
    return symbol("circle", "--muted", filled=False)


def _mark(said: str) -> Html:
    return joined([_open(), f" {said}"])


def _key(mine: Sequence[LawRow]) -> Html:
    drawn = [law for law in mine if law.parameters]
    if not drawn:
        return Html("")
    levels = {law.interval_level for law in drawn if law.fit.get("draws") and law.interval_level}
    band = f", band: its {words.percent(max(levels), 0)} interval" if levels else ""
    said = f" held out or excluded; line: the fitted law{band}. Axes are logarithmic and shared."
    return tag("p", joined([symbol("circle", "--muted"), " fitted  ", _open(), said]), class_="key")


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
