"""What a report shows, as plain values: filled from the ledger by the grid, read by the page, the summaries and people.

Not a store and not a fit: every number here was measured or fitted elsewhere. All classes are frozen and JSON-able:
``ReportData.from_dict(json.loads(json.dumps(data.to_dict()))) == data`` as long as its numbers are finite. JSON has no
NaN or infinity: both are written as null and read back as NaN, or as None where a value may be missing.

Units: tokens, seconds, FLOPs; losses in nats per token unless a metric's name says otherwise. Intervals are two-sided
and closed, [low, high]. ``N`` is the number of non-embedding parameters of Full at that scale, ``D`` the tokens really
seen.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Self

POINT_STATUSES = ("done", "failed", "diverged", "blocked", "not run")


class Plain:
    """Base of the report's dataclasses: to plain JSON values and back."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values; floats that JSON cannot hold become None."""
        return typing.cast(dict[str, Any], _to_plain(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``. Unknown keys raise TypeError, so a report of a newer version is not half read."""
        return typing.cast(Self, _from_plain(cls, values))


@dataclass(frozen=True, kw_only=True)
class MetricValue(Plain):
    """One measured number.

    low, high: its 95% interval; chance: what guessing would give; num_samples: what the number is a mean over.
    """

    value: float
    low: float | None = None
    high: float | None = None
    chance: float | None = None
    num_samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class PointRow(Plain):
    """One point of the grid: (stage, architecture, scale, budget, seed) and what came of it.

    num_params: N of Full at this scale (what laws use); num_params_own: the architecture's own count.
    tokens: D really seen, trunk and decay; None before the point has run.
    status: one of POINT_STATUSES, with the reason in words unless done.
    metrics: name → value, for example loss, bits_per_byte, niah. outcomes: name → why a measured metric has no value.
    train_flops: what training this point alone would cost, 3 × forward (the project's one definition); six_nd: 6·N·D.
    seconds, device_seconds: spent on this point's decay and evaluations, wall clock and summed over devices.
    routing: details of the evaluation ``routing`` where a layer chooses, with ``training``, the share of full attention
    over tokens (``tokens``, ``mean``); empty for other points.
    """

    name: str
    architecture: str
    scale: str
    budget: str
    seed: int
    num_params: int
    stage: str = ""
    num_params_own: int | None = None
    tokens: int | None = None
    status: str = "done"
    reason: str = ""
    metrics: dict[str, MetricValue] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    train_flops: float | None = None
    six_nd: float | None = None
    seconds: float | None = None
    device_seconds: float | None = None
    routing: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in POINT_STATUSES:
            raise ValueError(f"PointRow.status is {self.status!r}; allowed: {', '.join(POINT_STATUSES)}")


@dataclass(frozen=True, kw_only=True)
class TrunkRow(Plain):
    """One trunk: its length so far, its cost, and its training loss thinned for drawing.

    curve_tokens, curve_loss: equally long; tokens seen and training loss there. train_flops: of the steps really run.
    """

    name: str
    architecture: str
    scale: str
    seed: int = 0
    stage: str = ""
    steps: int = 0
    tokens: int = 0
    seconds: float | None = None
    device_seconds: float | None = None
    tokens_per_second: float | None = None
    train_flops: float | None = None
    status: str = "done"
    reason: str = ""
    curve_tokens: tuple[float, ...] = ()
    curve_loss: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.curve_tokens) != len(self.curve_loss):
            raise ValueError(
                f"TrunkRow {self.name}: curve_tokens has {len(self.curve_tokens)} values, "
                f"curve_loss {len(self.curve_loss)}"
            )


@dataclass(frozen=True, kw_only=True)
class LawParameter(Plain):
    """One fitted parameter, named a, alpha, b, beta or E, with its interval where there is one."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class LawPoint(Plain):
    """A point as a law sees it, fitted or held out. measured, predicted, low, high: in the law's target."""

    name: str
    num_params: float
    tokens: float
    measured: float | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    scale: str = ""

    @property
    def relative_error(self) -> float | None:
        """(predicted − measured) / |measured|; None where either is missing or measured is 0."""
        if self.measured is None or self.predicted is None or self.measured == 0:
            return None
        return (self.predicted - self.measured) / abs(self.measured)

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the measured value; None without an interval."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True)
class LawRow(Plain):
    """One fitted law of one architecture.

    target: a metric's name, or ``log:`` and a metric's name. form: which terms there are, n for a·N^-alpha, d for
    b·D^-beta, e for the constant E. identified: whether the data identify every exponent, None if that was not
    examined.
    verdict: the same in plain words. interval_level: 0.9 for a 90% interval; interval_method: how it was made.
    reason: why there is no fit, when ``parameters`` is empty. excluded: point name → why it was left out.
    fit: the whole fit with its resamples, as ``LawFit.to_dict`` gives it, for the figures; empty without one.
    """

    target: str
    architecture: str
    form: str
    parameters: tuple[LawParameter, ...] = ()
    r2: float | None = None
    r2_held_out: float | None = None
    converged: bool = False
    identified: bool | None = None
    verdict: str = ""
    reason: str = ""
    interval_level: float | None = None
    interval_method: str = ""
    fitted: tuple[LawPoint, ...] = ()
    held_out: tuple[LawPoint, ...] = ()
    excluded: dict[str, str] = field(default_factory=dict)
    fit: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HeatMap(Plain):
    """Needles of one point by where they stood. measure: what counts as right, in words.

    shares: of the samples that were right, lengths × depths. chance: what guessing would give, None where that is
    nothing.
    """

    point: str
    architecture: str
    measure: str
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]
    samples_per_cell: int
    chance: float | None = None


@dataclass(frozen=True, kw_only=True)
class FailureRow(Plain):
    """What did not succeed. kind: point, trunk, evaluation, law, report; status: failed, diverged, blocked."""

    name: str
    kind: str
    status: str
    reason: str
    attempts: int = 1


@dataclass(frozen=True, kw_only=True)
class Savings(Plain):
    """What sharing trunks between budgets saved: tokens (and FLOPs) trained, and had every point been trained alone."""

    tokens_trained: int
    tokens_without_sharing: int
    train_flops: float | None = None
    train_flops_without_sharing: float | None = None

    @property
    def fraction_saved(self) -> float:
        """Share of tokens not trained twice, 0 to 1; 0 when nothing was to be trained."""
        if self.tokens_without_sharing <= 0:
            return 0.0
        return 1.0 - self.tokens_trained / self.tokens_without_sharing


@dataclass(frozen=True, kw_only=True)
class GridSummary(Plain):
    """The grid file in short. All names in the file's order (scales from small to large). yaml: the file's text."""

    architectures: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    context: int | None = None
    data: str = ""
    training: str = ""
    yaml: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportData(Plain):
    """Everything the report shows. created: ISO 8601 with zone. wall_seconds: of the submissions reported on, if known.

    notes: sentences to be shown near the top, such as warnings and differences in code versions.
    """

    experiment: str
    created: str
    versions: dict[str, str] = field(default_factory=dict)
    hardware: str = ""
    grid: GridSummary = GridSummary()
    points: tuple[PointRow, ...] = ()
    trunks: tuple[TrunkRow, ...] = ()
    laws: tuple[LawRow, ...] = ()
    heat_maps: tuple[HeatMap, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    savings: Savings | None = None
    wall_seconds: float | None = None
    notes: tuple[str, ...] = ()


def finite(value: float | None) -> float | None:
    """The value, or None where there is none to show (missing, NaN, infinite)."""
    return value if value is not None and math.isfinite(value) else None


def _to_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    return finite(float(value))


def _from_plain(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        unknown = sorted(set(value) - set(hints))
        if unknown:
            raise TypeError(f"{kind.__name__} has no field {unknown[0]!r}; known: {', '.join(hints)}")
        return kind(**{name: _from_plain(hints[name], item) for name, item in value.items()})
    if origin in (typing.Union, types.UnionType):
        inner = next(item for item in typing.get_args(kind) if item is not type(None))
        return None if value is None else _from_plain(inner, value)
    if origin is tuple:
        return tuple(_from_plain(typing.get_args(kind)[0], item) for item in value)
    if origin is dict:
        return {key: _from_plain(typing.get_args(kind)[1], item) for key, item in value.items()}
    if kind is float:
        return math.nan if value is None else float(value)
    return value
