"""Tables over architectures: one metric at every (stage, scale, budget), best and second best marked.

As Markdown, as CSV (one row a cell, for other programs) and as HTML in the report. A mark is an order of values, not a
test: neighbours whose intervals overlap may well be equal, which the tables' captions say. A value that cannot be told
from chance gets a dagger and never a mark.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gridlaw.pipelines.evaluations.registry import better_of
from gridlaw.pipelines.report import words
from gridlaw.pipelines.report.data import MetricValue, PointRow, ReportData, finite
from gridlaw.pipelines.report.markdown import escaped
from gridlaw.pipelines.report.markup import Column, Html, joined, safe, table, tag

CSV_COLUMNS = (
    "metric", "stage", "scale", "budget", "num_params", "architecture", "value", "low", "high", "chance", "num_samples",
    "num_seeds", "rank", "outcome",
)  # fmt: skip
# 97.5% quantiles of Student's t for 1 to 10 degrees of freedom, from there on close to the normal one
_T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A column: what all of its cells have in common."""

    stage: str
    scale: str
    budget: str
    num_params: int

    @property
    def label(self) -> str:
        """pretrain/n3/20N, without the stage where there is only one."""
        return "/".join(filter(None, (self.stage, self.scale, self.budget)))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The metric's mean over seeds. rank: 1 best, 2 second best, equal values share it; None where nothing is marked.

    metric: with several seeds, its interval is Student's over the seeds and num_samples their sum.
    """

    metric: MetricValue
    num_seeds: int
    rank: int | None = None
    at_chance: bool = False


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric over architectures (rows) and settings (columns); cells by (architecture, setting).

    outcomes: why a cell that was measured has no value, in words.
    """

    metric: str
    better: str
    architectures: tuple[str, ...]
    settings: tuple[Setting, ...]
    cells: Mapping[tuple[str, Setting], Cell]
    outcomes: Mapping[tuple[str, Setting], str] = field(default_factory=dict)


def compare(data: ReportData, metric: str, *, better: str | None = None) -> Comparison:
    """The table of one metric over finished points. better: "min" or "max", by default as its evaluation says."""
    better = better or better_of(metric.removeprefix("log:"))
    if better not in ("min", "max"):
        raise ValueError(f"better is {better!r}; allowed: min, max")
    groups: dict[tuple[str, Setting], list[MetricValue]] = {}
    outcomes: dict[tuple[str, Setting], str] = {}
    for point in data.points:
        value = point.metrics.get(metric)
        if point.status == "done" and value is not None and finite(value.value) is not None:
            groups.setdefault((point.architecture, _setting(point)), []).append(value)
        elif point.status == "done" and metric in point.outcomes:
            outcomes[point.architecture, _setting(point)] = point.outcomes[metric]
    budgets = list(dict.fromkeys([*data.grid.budgets, *(point.budget for point in data.points)]))
    found = {setting for _, setting in (*groups, *outcomes)}
    settings = sorted(found, key=lambda each: (each.stage, each.num_params, each.scale, budgets.index(each.budget)))
    named = {architecture for architecture, _ in (*groups, *outcomes)}
    cells = {key: _mean(values) for key, values in groups.items()}
    for setting in settings:
        cells |= _ranked({key: cell for key, cell in cells.items() if key[1] == setting}, better)
    return Comparison(
        metric=metric,
        better=better,
        architectures=tuple(name for name in words.architectures(data) if name in named),
        settings=tuple(settings),
        cells=cells,
        outcomes={key: outcome for key, outcome in outcomes.items() if key not in cells},
    )


def _setting(point: PointRow) -> Setting:
    return Setting(stage=point.stage, scale=point.scale, budget=point.budget, num_params=point.num_params)


def _mean(values: Sequence[MetricValue]) -> Cell:
    if len(values) == 1:
        return Cell(metric=values[0], num_seeds=1, at_chance=words.above_chance(values[0]) is False)
    numbers, count = [value.value for value in values], len(values)
    mean = sum(numbers) / count
    spread = math.sqrt(sum((number - mean) ** 2 for number in numbers) / (count - 1))
    half = (_T_QUANTILES[count - 2] if count - 2 < len(_T_QUANTILES) else 1.96) * spread / math.sqrt(count)
    samples = [value.num_samples for value in values if value.num_samples is not None]
    chances = [value.chance for value in values if value.chance is not None]
    metric = MetricValue(
        value=mean,
        low=mean - half,
        high=mean + half,
        chance=sum(chances) / len(chances) if chances else None,
        num_samples=sum(samples) if samples else None,
    )
    return Cell(metric=metric, num_seeds=count, at_chance=words.above_chance(metric) is False)


def _ranked(cells: Mapping[tuple[str, Setting], Cell], better: str) -> dict[tuple[str, Setting], Cell]:
    """Marks for one column; a column of one architecture has nothing to compare."""
    eligible = {cell.metric.value for cell in cells.values() if not cell.at_chance}
    order = sorted(eligible, reverse=better == "max")[:2] if len(cells) > 1 else []
    return {
        key: Cell(
            metric=cell.metric,
            num_seeds=cell.num_seeds,
            at_chance=cell.at_chance,
            rank=order.index(cell.metric.value) + 1 if cell.metric.value in order and not cell.at_chance else None,
        )
        for key, cell in cells.items()
    }


def to_markdown(comparison: Comparison) -> str:
    """A Markdown table: best in bold, second best in italics."""
    head = ["Architecture", *(setting.label for setting in comparison.settings)]
    lines = ["| " + " | ".join(map(escaped, head)) + " |", "|:--|" + "--:|" * len(comparison.settings)]
    for name in comparison.architectures:
        cells = []
        for setting in comparison.settings:
            cell = comparison.cells.get((name, setting))
            text = escaped(comparison.outcomes.get((name, setting)) or _text(comparison.metric, cell))
            mark = {1: "**", 2: "*"}.get(cell.rank or 0, "") if cell else ""
            cells.append(f"{mark}{text}{mark}")
        lines.append(f"| {escaped(name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{escaped(caption(comparison))}\n"


def to_csv(comparisons: Iterable[Comparison]) -> str:
    """One row a cell: every number in full precision, empty where there is none."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for comparison in comparisons:
        for (name, setting), cell in sorted(
            comparison.cells.items(),
            key=lambda item: (comparison.settings.index(item[0][1]), comparison.architectures.index(item[0][0])),
        ):
            metric = cell.metric
            numbers = [metric.value, metric.low, metric.high, metric.chance, metric.num_samples, cell.num_seeds]
            place = [setting.stage, setting.scale, setting.budget, setting.num_params, name]
            row = [comparison.metric, *place, *numbers, cell.rank, None]
            writer.writerow(["" if value is None else value for value in row])
        for (name, setting), outcome in comparison.outcomes.items():
            place = [setting.stage, setting.scale, setting.budget, setting.num_params, name]
            writer.writerow([comparison.metric, *place, *[""] * 7, outcome])
    return file.getvalue()


def all_tables(data: ReportData) -> list[Comparison]:
    """One table a metric that some finished point was measured by."""
    found = [compare(data, name) for name in words.measured(data)]
    return [each for each in found if each.cells or each.outcomes]


def markdown_page(data: ReportData) -> str:
    """All tables over architectures, a heading each."""
    parts = [f"## {words.metric_label(each.metric)}\n\n{to_markdown(each)}" for each in all_tables(data)]
    return "\n".join([f"# {escaped(data.experiment)}: architectures compared\n", *parts])


def to_html(comparison: Comparison) -> Html:
    """The report's table: best in bold, second best underlined, intervals behind the values."""
    columns = [Column(title="Architecture")]
    columns += [
        Column(title=setting.budget, group="/".join(filter(None, (setting.stage, setting.scale))))
        for setting in comparison.settings
    ]
    rows = []
    for name in comparison.architectures:
        row: list[object] = [name]
        for setting in comparison.settings:
            outcome = comparison.outcomes.get((name, setting))
            cell = comparison.cells.get((name, setting))
            row.append(tag("small", outcome) if outcome else _html_cell(comparison.metric, cell))
        rows.append(row)
    return table(caption(comparison, second="underlined"), columns, rows)


def _html_cell(name: str, cell: Cell | None) -> Html:
    if cell is None:
        return safe(words.MISSING)
    value = words.metric_text(name, cell.metric) + ("†" if cell.at_chance else "")
    marked = tag({1: "strong", 2: "u"}[cell.rank], value) if cell.rank in (1, 2) else safe(value)
    bounds = _bounds(name, cell.metric)
    return joined([marked, Html("<br>"), tag("small", bounds)]) if bounds else marked


def _text(name: str, cell: Cell | None) -> str:
    if cell is None:
        return words.MISSING
    value = words.metric_text(name, cell.metric) + ("†" if cell.at_chance else "")
    return " ".join(filter(None, (value, _bounds(name, cell.metric))))


def _bounds(name: str, metric: MetricValue) -> str:
    if finite(metric.low) is None or finite(metric.high) is None:
        return ""
    show = words.percent if words.is_share(name, metric) else words.significant
    return f"[{show(metric.low)}, {show(metric.high)}]"


def caption(comparison: Comparison, *, second: str = "in italics") -> str:
    """What the table shows: direction, marks, samples, seeds, and what the marks do not say."""
    cells = list(comparison.cells.values())
    parts = [
        f"{words.metric_label(comparison.metric)}, {'lower' if comparison.better == 'min' else 'higher'} is better; "
        f"best in bold, second best {second}."
    ]
    samples = sorted({cell.metric.num_samples for cell in cells if cell.metric.num_samples})
    if samples:
        spread = f"{samples[0]:,}" if len(samples) == 1 else f"{samples[0]:,} to {samples[-1]:,}"
        parts.append(f"{spread} samples a value.")
    seeds = sorted({cell.num_seeds for cell in cells})
    if seeds[-1:] > [1]:
        parts.append(f"Means over {'up to ' if len(seeds) > 1 else ''}{seeds[-1]} seeds.")
    if any(cell.metric.low is not None for cell in cells):
        parts.append("In brackets 95% intervals; where they overlap, the order is not shown to be real.")
    if any(cell.at_chance for cell in cells):
        chances = sorted({cell.metric.chance for cell in cells if cell.metric.chance is not None})
        parts.append(f"† not to be told from chance ({words.listing(map(words.percent, chances), 3)}), never marked.")
    return " ".join(parts)
