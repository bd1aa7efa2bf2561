"""The report's sections, each from the data to HTML. A section without anything to show says so or is left out."""

from __future__ import annotations

from collections.abc import Sequence

from gridlaw.pipelines.figures.colours import Style
from gridlaw.pipelines.report import charts, tables, words
from gridlaw.pipelines.report.data import PointRow, ReportData, finite
from gridlaw.pipelines.report.markup import Column, Figures, Html, joined, legend, panels_box, safe, table, tag

STATUS_CLASS = {"done": "", "failed": "bad", "diverged": "bad", "blocked": "warn", "not run": "warn"}


def facts(data: ReportData) -> Html:
    """The headline numbers."""
    done = sum(point.status == "done" for point in data.points)
    device_seconds = total_device_seconds(data)
    items: list[tuple[str, str, str]] = [("Points finished", f"{done:,} of {len(data.points):,}", "")]
    if data.savings:
        saved = f"{words.count(data.savings.tokens_without_sharing)} without shared trunks"
        items.append(("Tokens trained", words.count(data.savings.tokens_trained), saved))
    flops, note = total_flops(data)
    if flops:
        items.append(("Training FLOPs", words.scientific(flops), note))
    if device_seconds or data.wall_seconds:
        wall = f"{words.duration(data.wall_seconds)} on the clock" if data.wall_seconds else ""
        items.append(("Device time", words.duration(device_seconds), wall))
    if data.savings and data.savings.fraction_saved > 0:
        items.append(("Saved by shared trunks", words.percent(data.savings.fraction_saved, 0), "of all tokens"))
    cells = [
        tag("div", joined([tag("dt", name), tag("dd", joined([value, tag("small", note)]) if note else value)]))
        for name, value, note in items
    ]
    return tag("dl", joined(cells), class_="facts")


def total_flops(data: ReportData) -> tuple[float | None, str]:
    """FLOPs really spent on training where known, else the sum as if each point had been trained alone."""
    if data.savings and finite(data.savings.train_flops):
        return data.savings.train_flops, "really spent"
    known = [point.train_flops for point in data.points if finite(point.train_flops) is not None]
    return (sum(value for value in known if value), "as if each point alone") if known else (None, "")


def total_device_seconds(data: ReportData) -> float | None:
    """Device time of all trunks and points, None where nothing was measured."""
    measured = [*(point.device_seconds for point in data.points), *(trunk.device_seconds for trunk in data.trunks)]
    known = [value for value in measured if finite(value) is not None]
    return sum(value for value in known if value) if known else None


def in_short(data: ReportData) -> Html:
    """The findings as sentences; what failed or is not identified stands out."""
    items = []
    for sentence in words.summary(data):
        bad = "no result: " in sentence or sentence.startswith("Also not") or "did not converge" in sentence
        items.append(tag("li", sentence, class_="bad" if bad else "warn" if "not identified" in sentence else ""))
    items += [tag("li", note) for note in data.notes]
    return joined([tag("h2", "In short", id="short"), tag("ul", joined(items), class_="short")])


def scale_legend(group: str, style: Style) -> Html:
    return legend("Scale", group, [(name, *style.scale(name)) for name in style.scales])


def architecture_legend(group: str, style: Style) -> Html:
    return legend("Architecture", group, [(name, *style.architecture(name)) for name in style.architectures])


def retrieval(data: ReportData, figures: Figures, style: Style) -> Html:
    """Metrics that have a chance level, shown with it."""
    parts: list[object] = []
    for number, metric in enumerate(words.chance_metrics(data)):
        panels = charts.chance_panels(data, metric, style)
        if not panels:
            continue
        group = f"chance{number}"
        sentence = words.chance_sentence(metric, [p.metrics[metric] for p in data.points if metric in p.metrics])
        samples = sorted({m.num_samples for p in data.points if (m := p.metrics.get(metric)) and m.num_samples})
        note = f" Each value is a mean over {words.listing(map(str, samples), 3)} samples." if samples else ""
        parts += [tag("h2", words.metric_label(metric), id=f"chance-{number}"), tag("p", sentence + note)]
        parts += [scale_legend(group, style), tag("p", "Dashed line: chance. Bars: intervals.", class_="key")]
        parts.append(panels_box([figures.figure(panel, group) for panel in panels]))
    return joined([*parts, *_heat_maps(data, figures)], "\n")


def _heat_maps(data: ReportData, figures: Figures) -> list[object]:
    panels = charts.heat_panels(data)
    if not panels:
        return []
    cells = words.listing(sorted({str(each.samples_per_cell) for each in data.heat_maps}), 3)
    note = (
        f"Of the largest point of each architecture and stage; a cell is {cells} samples. Needles at depth 0% stand at "
        "the start of the text, at 100% right before the question."
    )
    drawn = panels_box([figures.figure(panel, "") for panel in panels])
    return [tag("h2", "Needles by depth and length", id="needles"), tag("p", note), drawn]


def compared(data: ReportData) -> Html:
    """Tables over architectures, one a metric; left out where there is nothing to compare."""
    if len(words.architectures(data)) < 2:
        return Html("")
    written = [tables.to_html(comparison) for comparison in tables.all_tables(data)[: words.MOST_METRIC_COLUMNS]]
    if not written:
        return Html("")
    return joined([tag("h2", "Architectures compared", id="compared"), *written], "\n")


def points(data: ReportData) -> Html:
    """Every point with what was measured and what it cost."""
    if not data.points:
        return Html("")
    names = words.measured(data)
    shown = names[: words.MOST_METRIC_COLUMNS]
    columns = [
        Column(title="Point"),
        Column(title="Status", kind="text"),
        Column(title="N"),
        Column(title="own N"),
        Column(title="D"),
    ]
    columns += [Column(title=words.metric_label(name)) for name in shown]
    columns += [Column(title="FLOPs"), Column(title="6ND"), Column(title="Time")]
    ordered = words.ordered_points(data)
    rows, last = [], []
    for index, point in enumerate(ordered):
        status = tag("span", point.status, class_=STATUS_CLASS[point.status])
        cells: list[object] = [
            point.name,
            status,
            words.count(point.num_params),
            words.count(point.num_params_own),
            words.count(point.tokens if point.status == "done" else None),
        ]
        cells += [_metric_cell(point, name) for name in shown]
        cells += [words.scientific(point.train_flops), words.scientific(point.six_nd), words.duration(point.seconds)]
        rows.append(cells)
        last.append(index + 1 == len(ordered) or ordered[index + 1].architecture != point.architecture)
    caption = "All points. N: parameters of Full without embeddings; own N: the architecture's; D: tokens really seen."
    rest = f" {len(names) - len(shown)} further metrics are in the ledger." if len(names) > len(shown) else ""
    cost = (
        "FLOPs: training this point alone, three forward passes, attention and head included; 6ND only for comparison. "
        "Time: this point's own decay and evaluations; its trunk's is under Cost." + rest
    )
    return joined(
        [
            tag("h2", "Points", id="points"),
            table(caption, columns, rows, last_of_group=last),
            tag("p", cost, class_="note"),
        ]
    )


def _metric_cell(point: PointRow, name: str) -> Html:
    metric = point.metrics.get(name)
    if metric is None and name in point.outcomes:
        return tag("small", point.outcomes[name])
    value = words.metric_text(name, metric)
    if metric is None or finite(metric.low) is None or finite(metric.high) is None:
        return safe(value)
    show = words.percent if words.is_share(name, metric) else words.significant
    return joined([value, Html(" "), tag("small", f"[{show(metric.low)}, {show(metric.high)}]")])


def failures(data: ReportData) -> Html:
    """What did not succeed, each with its reason."""
    if not data.points and not data.failures:
        return Html("")
    rows: list[list[object]] = []
    named = {(row.name, row.kind): row for row in data.failures}
    for point in data.points:
        if point.status != "done":
            extra = named.pop((point.name, "point"), None)
            reason = point.reason or (extra.reason if extra else "") or words.MISSING
            attempts = extra.attempts if extra else words.MISSING
            rows.append(
                [point.name, "point", tag("span", point.status, class_=STATUS_CLASS[point.status]), attempts, reason]
            )
    for row in named.values():
        rows.append(
            [
                row.name,
                row.kind,
                tag("span", row.status, class_=STATUS_CLASS.get(row.status, "")),
                row.attempts,
                row.reason,
            ]
        )
    heading = tag("h2", "Failed, diverged and missing", id="failed")
    if not rows:
        return joined([heading, tag("p", "Nothing: every point finished and every evaluation and fit succeeded.")])
    columns = [
        Column(title="Name"),
        Column(title="Kind", kind="text"),
        Column(title="Status", kind="text"),
        Column(title="Attempts"),
        Column(title="Reason", kind="wrap"),
    ]
    return joined([heading, table("What did not succeed. Nothing here enters a law.", columns, rows)])


def cost(data: ReportData) -> Html:
    """Tokens, FLOPs and time per architecture, and what shared trunks saved."""
    if not data.points:
        return Html("")
    parts: list[object] = [tag("h2", "Cost", id="cost")]
    if data.savings and data.savings.tokens_without_sharing > 0:
        parts.append(_savings_bars(data))
    columns = [
        Column(title="Architecture"),
        Column(title="Points"),
        Column(title="Tokens", group="each point alone"),
        Column(title="FLOPs", group="each point alone"),
        Column(title="6ND", group="each point alone"),
        Column(title="Trunks", group="really spent"),
        Column(title="Trunk tokens", group="really spent"),
        Column(title="Trunk time", group="really spent"),
        Column(title="Decay and evaluation", group="really spent"),
    ]
    rows = [
        _cost_cells(name, [p for p in data.points if p.architecture == name], data)
        for name in words.architectures(data)
    ]
    if rows:
        total = _cost_cells("All", list(data.points), data)
        caption = "Finished points by architecture. Times are device time: wall clock summed over devices."
        parts.append(table(caption, columns, rows, total=total if len(rows) > 1 else None))
    return joined(parts, "\n")


def _cost_cells(name: str, mine: Sequence[PointRow], data: ReportData) -> list[object]:
    done = [point for point in mine if point.status == "done"]
    trunks = [trunk for trunk in data.trunks if name == "All" or trunk.architecture == name]

    def add(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None and finite(value) is not None]
        return sum(known) if known else None

    return [
        name,
        len(done),
        words.count(add([p.tokens for p in done])),
        words.scientific(add([p.train_flops for p in done])),
        words.scientific(add([p.six_nd for p in done])),
        len(trunks) or words.MISSING,
        words.count(add([t.tokens for t in trunks])),
        words.duration(add([t.device_seconds for t in trunks])),
        words.duration(add([p.device_seconds for p in done])),
    ]


def _savings_bars(data: ReportData) -> Html:
    savings = data.savings
    assert savings is not None, "bars are drawn only where savings are known"
    largest = max(savings.tokens_trained, savings.tokens_without_sharing)
    rows = []
    for label, tokens, flops, kind in (
        ("trained, trunks shared", savings.tokens_trained, savings.train_flops, ""),
        ("each point alone", savings.tokens_without_sharing, savings.train_flops_without_sharing, "ghost"),
    ):
        bar = tag("span", "", class_=f"bar {kind}".strip(), style=f"width:{42 * tokens / largest:.1f}%")
        value = f"{words.count(tokens)} tokens" + (
            f", {words.scientific(flops)} FLOPs" if finite(flops) is not None else ""
        )
        rows.append(
            tag(
                "div",
                joined([tag("span", label), tag("div", joined([bar, tag("span", value, class_="value")]))]),
                class_="row",
            )
        )
    saved = f"saved {words.percent(savings.fraction_saved, 0)} of the tokens"
    sentence = f"Sharing trunks between budgets {saved if savings.fraction_saved > 0 else 'has saved nothing so far'}."
    return joined([tag("p", sentence), tag("div", joined(rows), class_="bars")])


def training(data: ReportData, figures: Figures, style: Style) -> Html:
    """The trunks' loss curves."""
    panels = charts.training_panels(data, style)
    if not panels:
        return Html("")
    return joined([
        tag("h2", "Training curves", id="training"),
        tag("p", "Training loss of the trunks, thinned; decays are not drawn.", class_="muted"),
        scale_legend("training", style),
        panels_box([figures.figure(panel, "training") for panel in panels]),
    ], "\n")  # fmt: skip


def made(data: ReportData) -> Html:
    """How the numbers were made: hardware, settings, versions, the grid file."""
    grid = data.grid
    entries = [
        ("Hardware", data.hardware),
        ("Data", grid.data),
        ("Context", f"{grid.context:,} tokens" if grid.context else ""),
        ("Training", grid.training),
        ("Architectures", ", ".join(grid.architectures)),
        ("Scales", ", ".join(grid.scales)),
        ("Budgets", ", ".join(grid.budgets)),
        ("Seeds", ", ".join(map(str, grid.seeds))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in data.versions.items())),
    ]
    items = [part for name, value in entries if value for part in (tag("dt", name), tag("dd", value))]
    parts = [tag("h2", "How it was made", id="made"), tag("dl", joined(items), class_="plain")]
    if grid.yaml:
        code = tag("pre", grid.yaml, tabindex="0", aria_label="grid file")
        parts.append(tag("details", joined([tag("summary", "The grid file"), code])))
    return joined(parts, "\n")
