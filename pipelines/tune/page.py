"""A study's report: one page that loads nothing, with the front, the history, importances, slices and every trial."""

from __future__ import annotations

import time

from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.markup import Column, Figures, Html, joined, panels_box, table, tag
from gridlaw.pipelines.report.page import document
from gridlaw.pipelines.tune import charts
from gridlaw.pipelines.tune.results import Results, summary
from gridlaw.platform.tuning.space import show

KEY = "Filled and larger: on the front. Open: a constraint is not met. Square: the first trial, with given settings."


def render(results: Results, *, wall_seconds: float | None = None) -> str:
    """The whole page; works for a study without a complete trial. Every text is escaped."""
    figures = Figures()
    parts = [
        joined([tag("h2", "In short", id="short"), tag("ul", joined([tag("li", each) for each in summary(results)]))]),
        _section("Front", "front", KEY, figures, charts.front_panels(results)),
        _section("History", "history", "Lines: the best so far.", figures, charts.history_panels(results)),
        _importances(results),
        *(
            _section(f"Slices of {name}", f"slices-{index}", KEY, figures, charts.slice_panels(results, name))
            for index, name in enumerate(results.objectives)
        ),
        _trials(results),
        _made(results),
    ]
    kicker = f"Study of {results.experiment}, {time.strftime('%Y-%m-%d %H:%M')}"
    header = joined([tag("p", kicker, class_="kicker"), tag("h1", results.experiment), _facts(results, wall_seconds)])
    return document(f"{results.experiment}: study", header, [part for part in parts if part], figures, kicker)


def _section(title: str, key: str, note: str, figures: Figures, panels: list[charts.Panel]) -> Html:
    if not panels:
        return Html("")
    drawn = panels_box([figures.figure(panel, key) for panel in panels])
    return joined([tag("h2", title, id=key), tag("p", note, class_="key"), drawn], "\n")


def _facts(results: Results, wall_seconds: float | None) -> Html:
    flops = sum(float(each.attributes.get("flops", 0.0)) for each in results.trials)
    items = [
        ("Trials complete", f"{results.count('complete')} of {results.planned}"),
        ("Pruned", str(results.count("pruned"))),
        ("Failed", str(results.count("fail"))),
        ("Training FLOPs", words.scientific(flops) if flops else words.MISSING),
    ]
    if wall_seconds:
        items.append(("Last run", words.duration(wall_seconds)))
    return tag("dl", joined([tag("div", joined([tag("dt", n), tag("dd", v)])) for n, v in items]), class_="facts")


def _importances(results: Results) -> Html:
    if not results.importances:
        return Html("")
    names = list(results.importances)
    columns = [Column(title="Setting"), *(Column(title=name) for name in names)]
    rows = [
        [each, *(words.percent(results.importances[name].get(each)) for name in names)] for each in results.parameters
    ]
    caption = "Share of the differences between complete trials that goes with each setting (PED-ANOVA)."
    return joined([tag("h2", "What mattered", id="importances"), table(caption, columns, rows)])


def _trials(results: Results) -> Html:
    columns = [Column(title="Trial"), Column(title="State", kind="text")]
    columns += [Column(title=name, group="objectives") for name in results.objectives]
    columns += [Column(title=name, group="settings") for name in results.parameters]
    columns.append(Column(title="Reason", kind="wrap"))
    rows: list[list[object]] = []
    for each in results.trials:
        state = each.state + (", on the front" if each.number in results.front else "")
        state += "" if each.feasible else ", infeasible"
        values = [words.significant(each.values.get(name)) for name in results.objectives]
        settings = [show(each.params[name]) if name in each.params else words.MISSING for name in results.parameters]
        rows.append([f"trial{each.number}", state, *values, *settings, each.reason])
    return joined([tag("h2", "Trials", id="trials"), table("Every trial of the study.", columns, rows)])


def _made(results: Results) -> Html:
    items = [
        ("Study", results.study),
        ("Storage", results.storage),
        ("Sampler", results.sampler),
        ("Objectives", ", ".join(f"{name} {direction}" for name, direction in results.objectives.items())),
        ("Constraints", ", ".join(f"{name} {bound}" for name, bound in results.constraints.items()) or "none"),
        ("Space", "; ".join(f"{name}: {domain}" for name, domain in results.domains.items())),
    ]
    listed = joined([tag("dt", name) + tag("dd", value) for name, value in items])
    return joined([tag("h2", "How it was made", id="made"), tag("dl", Html(listed), class_="plain")])
