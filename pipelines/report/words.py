"""Numbers and findings in words: how the report writes tokens, FLOPs, time and intervals, and what it says first.

Plain text throughout: whoever puts it into HTML or Markdown escapes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from gridlaw.pipelines.report.data import LawPoint, LawRow, MetricValue, PointRow, ReportData, finite

MISSING = "–"
MOST_METRIC_COLUMNS = 8
LUCK = 0.025  # share of 95% intervals that lie wholly above chance without any ability
METRIC_LABELS = {
    "loss": "Held-out loss",
    "bits_per_byte": "Bits per byte",
    "niah": "Needle retrieval",
    "niah_rank_accuracy": "Needle retrieval by ranking",
    "niah_generate_accuracy": "Needle retrieval by generation",
    "longppl": "LongPPL",
    "recall_accuracy": "Associative recall",
    "recall_generate_accuracy": "Associative recall by generation",
    "full_ratio": "Share of full attention",
}
METRIC_UNITS = {"loss": "nats per token"}
FORM_LABELS = {
    "nd": "N and D",
    "nde": "N, D and constant",
    "n": "N alone",
    "d": "D alone",
    "ne": "N and constant",
    "de": "D and constant",
}
INTERVAL_METHODS = {
    "noise": "redrawing the noise around the fit",
    "noise-trunks": "redrawing the noise around the fit, in part shared within trunks",
    "points": "bootstrap over points",
    "trunks": "bootstrap over trunks",
}
PARAMETER_LABELS = {"alpha": "α", "beta": "β"}


def count(value: float | None) -> str:
    """A count of tokens or parameters: 19,680 → 19.7K, 2,211,840 → 2.21M."""
    value = finite(value)
    if value is None:
        return MISSING
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= limit * 0.9995:
            return f"{value / limit:.3g}" + unit
    return f"{value:.0f}"


def significant(value: float | None, digits: int = 4) -> str:
    """Rounded to significant digits, without an exponent where the number is of ordinary size."""
    value = finite(value)
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e7:
        return scientific(value, digits)
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(decimals, 0)}f}".replace("-", "−")


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def scientific(value: float | None, digits: int = 3) -> str:
    """3.12e13 → 3.12×10¹³."""
    value = finite(value)
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}".replace("-", "−")


def percent(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """0.034 → 3.4%; with sign: +3.4%."""
    value = finite(value)
    if value is None:
        return MISSING
    return f"{value * 100:{'+' if sign else ''}.{digits}f}%".replace("-", "−")


def duration(seconds: float | None) -> str:
    """4.2 → 4.2 s, 262 → 4 min 22 s, 7,500 → 2 h 5 min, 200,000 → 2 d 8 h."""
    seconds = finite(seconds)
    if seconds is None:
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """[low, high], or nothing where there is none."""
    if finite(low) is None or finite(high) is None:
        return ""
    return f"[{significant(low, digits)}, {significant(high, digits)}]"


def metric_label(name: str) -> str:
    """A metric's or a target's name for people; unknown names stay as they are."""
    if name.startswith("log:"):
        return f"log {METRIC_LABELS.get(name[4:], name[4:])}"
    return METRIC_LABELS.get(name, name)


def inline_label(name: str) -> str:
    """The label inside a sentence: known labels without their capital, except names such as LongPPL."""
    label = metric_label(name)
    return label if name not in METRIC_LABELS or label[1:] != label[1:].lower() else label[0].lower() + label[1:]


def is_share(name: str, metric: MetricValue) -> bool:
    """Whether the metric is a share of 1, to be written in percent."""
    return metric.chance is not None or name.endswith(("accuracy", "ratio"))


def measured(data: ReportData) -> list[str]:
    """Names of the points' metrics, those without any value included."""
    return list(dict.fromkeys(name for point in data.points for name in (*point.metrics, *point.outcomes)))


def ordered_points(data: ReportData) -> list[PointRow]:
    """By stage, architecture, size, budget (in the file's order) and seed, whether or not a point has run."""
    names = architectures(data)
    budgets = list(dict.fromkeys([*data.grid.budgets, *(point.budget for point in data.points)]))
    return sorted(
        data.points, key=lambda p: (p.stage, names.index(p.architecture), p.num_params, budgets.index(p.budget), p.seed)
    )


def metric_text(name: str, metric: MetricValue | None) -> str:
    """A metric's value: shares in percent, others with four digits."""
    if metric is None:
        return MISSING
    return percent(metric.value) if is_share(name, metric) else significant(metric.value)


def plural(number: int, one: str, many: str | None = None) -> str:
    """1 point, 2 points."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listing(items: Iterable[str], limit: int = 8) -> str:
    """a, b and c; long lists are cut with their number."""
    names = list(items)
    if len(names) > limit:
        return ", ".join(names[:limit]) + f" and {len(names) - limit} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def target_value(point: PointRow, target: str) -> float | None:
    """The point's value of a law's target: a metric, or its logarithm for ``log:`` targets."""
    metric = point.metrics.get(target.removeprefix("log:"))
    value = finite(metric.value) if metric else None
    if value is None or not target.startswith("log:"):
        return value
    return math.log(value) if value > 0 else None


def targets(data: ReportData) -> list[str]:
    """The laws' targets, or the loss (else the first metric) where no law was asked."""
    named = list(dict.fromkeys(law.target for law in data.laws))
    if named:
        return named
    metrics = list(dict.fromkeys(name for point in data.points for name in point.metrics))
    return ["loss"] if "loss" in metrics else metrics[:1]


def main_law(data: ReportData, target: str, architecture: str) -> LawRow | None:
    """The law that is drawn: the fitted one of this target and architecture that uses most of N and D."""
    mine = [law for law in data.laws if law.target == target and law.architecture == architecture and law.parameters]
    order = ("nd", "nde", "d", "n")
    return min(mine, key=lambda law: order.index(law.form) if law.form in order else len(order), default=None)


def architectures(data: ReportData) -> list[str]:
    """In the grid file's order, then any others that points or laws name."""
    seen = [*data.grid.architectures, *(p.architecture for p in data.points), *(law.architecture for law in data.laws)]
    return list(dict.fromkeys(seen))


def scales(data: ReportData) -> list[str]:
    """Every scale that points name, from small N to large."""
    sizes: dict[str, int] = {}
    for point in data.points:
        sizes[point.scale] = max(sizes.get(point.scale, 0), point.num_params)
    return sorted(sizes, key=lambda scale: (sizes[scale], scale))


def summary(data: ReportData) -> list[str]:
    """Sentences, most telling first: what ran, what failed, what was found, and whether exponents are identified."""
    sentences = [_what_ran(data), *_what_failed(data)]
    for target in targets(data):
        sentences += [*_identified(data, target), *_held_out(data, target), *_lowest(data, target)]
    return [sentence for sentence in [*sentences, *_retrieval(data), *_saved(data)] if sentence]


def _what_ran(data: ReportData) -> str:
    done = sum(point.status == "done" for point in data.points)
    shape = " × ".join(
        plural(len(items), word)
        for items, word in (
            (architectures(data), "architecture"),
            (scales(data), "scale"),
            (list(dict.fromkeys(point.budget for point in data.points)), "budget"),
            (list(dict.fromkeys(point.seed for point in data.points)), "seed"),
        )
    )
    if not data.points:
        return "The grid has no points yet."
    return f"{done:,} of {plural(len(data.points), 'point')} finished ({shape})."


def _what_failed(data: ReportData) -> list[str]:
    groups = Counter(point.status for point in data.points if point.status != "done")
    if not groups and not data.failures:
        return ["Nothing failed."] if data.points else []
    parts = []
    for status, number in groups.items():
        names = listing((point.name for point in data.points if point.status == status), 3)
        parts.append(f"{number:,} {status} ({names})")
    sentences = (
        [f"{plural(sum(groups.values()), 'point has', 'points have')} no result: {'; '.join(parts)}."] if parts else []
    )
    others = [row for row in data.failures if row.name not in {point.name for point in data.points}]
    if others:
        sentences.append(
            "Also not successful: " + listing((f"{row.kind} {row.name} ({row.status})" for row in others), 4) + "."
        )
    return sentences


def _identified(data: ReportData, target: str) -> list[str]:
    laws = [law for name in architectures(data) if (law := main_law(data, target, name))]
    label = inline_label(target)
    missing = [law for law in data.laws if law.target == target and not law.parameters]
    sentences = [
        f"No law of {label} for {law.architecture} in {FORM_LABELS.get(law.form, law.form)}: "
        f"{law.reason or 'not fitted'}."
        for law in missing[:4]
    ]
    if not laws:
        return sentences
    good = [law for law in laws if law.identified]
    barely = [law for law in laws if identification(law) == "barely identified"]
    poor = [law for law in laws if identification(law) == "not identified"]
    unsure = [law for law in laws if not law.converged]
    if good:
        which = "every architecture" if len(good) == len(laws) > 1 else listing(law.architecture for law in good)
        sentences.append(f"The exponents of the law of {label} are identified for {which}.")
    if barely:
        texts = (f"{law.architecture} ({exponents_text(law)})" for law in barely)
        sentences.append(f"The exponents of the law of {label} are barely identified for {listing(texts)}.")
    if poor:
        texts = (f"{law.architecture} ({exponents_text(law)})" for law in poor)
        start = "They are" if good else f"The exponents of the law of {label} are"
        sentences.append(f"{start} not identified for {listing(texts)}: other values fit these points as well.")
    if unsure:
        sentences.append(f"The fit did not converge for {listing(law.architecture for law in unsure)}; do not use it.")
    return sentences


def method_text(name: str) -> str:
    """How intervals were made, in words where the method is known."""
    return INTERVAL_METHODS.get(name, name)


def identification(law: LawRow) -> str:
    """identified, barely identified (the verdict says so of some exponent and nothing worse), not identified."""
    if law.identified is None:
        return "not examined"
    if law.identified:
        return "identified"
    barely = "barely identified" in law.verdict and "not identified" not in law.verdict
    return "barely identified" if barely else "not identified"


def exponents_text(law: LawRow) -> str:
    """α 0.33 [0.27, 0.41], β 0.30 [0.25, 0.38]."""
    parts = [
        " ".join(filter(None, (PARAMETER_LABELS[p.name], significant(p.value, 3), interval(p.low, p.high))))
        for p in law.parameters
        if p.name in PARAMETER_LABELS
    ]
    return ", ".join(parts)


def _held_out(data: ReportData, target: str) -> list[str]:
    errors: dict[str, list[LawPoint]] = {}
    for law in data.laws:
        if law.target == target and law.parameters:
            errors.setdefault(law.form, []).extend(p for p in law.held_out if p.relative_error is not None)
    parts = []
    for form, points in errors.items():
        if not points:
            continue
        sizes = sorted(abs(point.relative_error or 0.0) for point in points)
        known = [point for point in points if point.inside is not None]
        inside = f", {sum(bool(p.inside) for p in known)} of {len(known)} inside the interval" if known else ""
        spread = percent(sizes[0]) if len(sizes) == 1 else f"{percent(sizes[0])} to {percent(sizes[-1])}"
        parts.append(f"{spread} by the laws in {FORM_LABELS.get(form, form)}{inside}")
    if not parts:
        return []
    return [f"Points held out of the fits of {inline_label(target)} are missed by " + "; ".join(parts) + "."]


def _lowest(data: ReportData, target: str) -> list[str]:
    """The lowest value at the largest setting that every architecture finished: said with its number of seeds."""
    cells: dict[tuple[int, int, str, str], dict[str, list[float]]] = {}
    for point in data.points:
        value = target_value(point, target)
        if point.status == "done" and value is not None and point.tokens:
            key = (point.num_params, point.tokens, point.scale, point.budget)
            cells.setdefault(key, {}).setdefault(point.architecture, []).append(value)
    full = [key for key, values in cells.items() if len(values) == len(architectures(data)) > 1]
    if not full or target.removeprefix("log:") in chance_metrics(data):
        return []
    key = max(full)
    means = sorted((sum(values) / len(values), name) for name, values in cells[key].items())
    seeds = max(len(values) for values in cells[key].values())
    caution = " One seed each, so small differences say nothing." if seeds == 1 else f" Means over {seeds} seeds."
    order = ", ".join(f"{name} {significant(value)}" for value, name in means[:8])
    return [f"{metric_label(target)} at {key[2]}, {key[3]}, lowest first: {order}.{caution}"]


def above_chance(metric: MetricValue) -> bool | None:
    """Whether the whole interval lies above chance; None without chance or interval."""
    if metric.chance is None or metric.low is None or finite(metric.value) is None:
        return None
    return metric.low > metric.chance


def chance_metrics(data: ReportData) -> list[str]:
    """Names of the metrics that have a chance level."""
    return list(dict.fromkeys(n for p in data.points for n, metric in p.metrics.items() if metric.chance is not None))


def _retrieval(data: ReportData) -> list[str]:
    sentences = []
    for name in chance_metrics(data):
        metrics = [point.metrics[name] for point in data.points if name in point.metrics]
        sentences.append(chance_sentence(name, metrics))
    return sentences


def chance_sentence(name: str, metrics: Sequence[MetricValue]) -> str:
    """How many of the values are above chance, in words that do not flatter."""
    known = [metric for metric in metrics if above_chance(metric) is not None]
    levels = sorted({metric.chance for metric in metrics if metric.chance is not None})
    chance = percent(levels[0]) if len(levels) == 1 else f"{percent(levels[0])} to {percent(levels[-1])}"
    if not known:
        return f"{metric_label(name)}: no interval was measured, so nothing can be said against chance ({chance})."
    above = sum(bool(above_chance(metric)) for metric in known)
    if above == 0:
        return f"{metric_label(name)} is at chance ({chance}): none of {plural(len(known), 'point')} lies above it."
    lucky = LUCK * len(known)
    luck = f" By luck alone about {lucky:.1f} would." if lucky >= 0.2 else ""
    return (
        f"{metric_label(name)}: {above} of {plural(len(known), 'point')} lie above chance ({chance}) with their whole "
        f"interval; the others cannot be told from chance.{luck}"
    )


def _saved(data: ReportData) -> list[str]:
    savings = data.savings
    if savings is None or savings.tokens_without_sharing <= 0:
        return []
    if savings.fraction_saved <= 0:
        return [
            f"Sharing trunks has saved nothing so far: {count(savings.tokens_trained)} tokens were trained, and the "
            f"finished points alone needed {count(savings.tokens_without_sharing)}."
        ]
    return [
        f"Sharing trunks between budgets trained {count(savings.tokens_trained)} tokens instead of "
        f"{count(savings.tokens_without_sharing)}: {percent(savings.fraction_saved, 0)} saved."
    ]
