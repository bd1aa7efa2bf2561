"""The measured points a law is fitted to, and every check that refuses them with a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gridlaw.pipelines.laws.forms import Array, Form
from gridlaw.platform.errors import BadInput

# log D may follow log N this closely (standard deviation of what is left) before N and D count as one variable
CONFOUNDED_SPREAD = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Checked points: N parameters, D tokens, the target's values (all positive), and the trunk that each point
    belongs to.
    """

    num_params: Array
    num_tokens: Array
    values: Array
    groups: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def log_n(self) -> Array:
        return np.log(self.num_params)

    @property
    def log_d(self) -> Array:
        return np.log(self.num_tokens)

    @property
    def log_values(self) -> Array:
        return np.log(self.values)

    @property
    def group_index(self) -> np.ndarray:
        """Number of each point's trunk, 0 … num_groups - 1."""
        names = {name: i for i, name in enumerate(dict.fromkeys(self.groups))}
        return np.array([names[name] for name in self.groups], dtype=int)

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_params": self.num_params.tolist(),
            "num_tokens": self.num_tokens.tolist(),
            "values": self.values.tolist(),
            "groups": list(self.groups),
        }


def _column(name: str, raw: ArrayLike) -> Array:
    try:
        column = np.asarray(raw, dtype=float).reshape(-1)
    except (TypeError, ValueError) as error:
        raise BadInput(name, seen=str(raw)[:80], allowed="a list of numbers", hint=str(error)) from error
    for row, value in enumerate(column):
        if not np.isfinite(value):
            raise BadInput(
                f"{name}[{row}]",
                seen=float(value),
                allowed="a finite number",
                hint="Drop or mend that row: values may not be missing",
            )
        if value <= 0:
            raise BadInput(
                f"{name}[{row}]", seen=float(value), allowed="a number above 0", hint="The law is fitted on logarithms"
            )
    return column


def check_points(
    num_params: ArrayLike, num_tokens: ArrayLike, values: ArrayLike, groups: Sequence[Any] | None = None
) -> Points:
    """Points in a checked form; rows that say the same twice are dropped with a note.

    groups: one label per point naming its trunk (architecture, scale and seed); default: one trunk per N.
    Raises BadInput for lengths that differ, missing or non-positive values, mixed-up units and contradicting rows.
    """
    n, d, y = _column("num_params", num_params), _column("num_tokens", num_tokens), _column("values", values)
    if not len(n) == len(d) == len(y):
        raise BadInput("points", seen=f"{len(n)} N, {len(d)} D, {len(y)} values", allowed="three lists of one length")
    if groups is None:
        labels = tuple(f"N={size:.12g}" for size in n)
    else:
        labels = tuple(str(label) for label in groups)
        if len(labels) != len(n):
            raise BadInput("groups", seen=f"{len(labels)} labels", allowed=f"one per point ({len(n)})")
    _check_units(n, d)
    keep, notes = _without_duplicates(n, d, y, labels, labelled=groups is not None)
    return Points(
        num_params=n[keep],
        num_tokens=d[keep],
        values=y[keep],
        groups=tuple(labels[i] for i in keep),
        notes=tuple(notes),
    )


def _check_units(n: Array, d: Array) -> None:
    hint = "Give N in parameters and D in tokens, not in thousands, millions or billions"
    for row, (size, tokens) in enumerate(zip(n, d, strict=True)):
        if size < 1000:
            raise BadInput(f"num_params[{row}]", seen=float(size), allowed="at least 1,000 parameters", hint=hint)
        if not 1e-3 <= tokens / size <= 1e5:
            raise BadInput(
                f"num_tokens[{row}] / num_params[{row}]",
                seen=f"{tokens:g} / {size:g}",
                allowed="a ratio of tokens to parameters between 0.001 and 100,000",
                hint=hint,
            )


def _without_duplicates(
    n: Array, d: Array, y: Array, labels: tuple[str, ...], *, labelled: bool
) -> tuple[list[int], list[str]]:
    first: dict[tuple[str, float, float], int] = {}
    keep, notes = [], []
    for row, key in enumerate(zip(labels, n.tolist(), d.tolist(), strict=True)):
        if key not in first:
            first[key] = row
            keep.append(row)
        elif y[first[key]] == y[row]:
            notes.append(f"row {row} repeats row {first[key]} and is left out")
        else:
            where = f"trunk {key[0]!r}, N={key[1]:g}, D={key[2]:g}" if labelled else f"N={key[1]:g}, D={key[2]:g}"
            raise BadInput(
                f"rows {first[key]} and {row} ({where})",
                seen=f"{y[first[key]]:g} and {y[row]:g}",
                allowed="one value per architecture, scale, budget and seed",
                hint="Remove the wrong row, or name the seeds (groups=, or a seed column)",
            )
    return keep, notes


def check_fittable(points: Points, form: Form) -> None:
    """BadInput when no law of this form can be told from these points, whatever the noise."""
    num, needed = len(points), form.num_parameters
    if num < needed:
        raise BadInput(
            "points",
            seen=num,
            allowed=f"at least {needed} for {form.formula}",
            hint="Add points, or fit a form with fewer parameters",
        )
    if np.ptp(points.log_values) < 1e-12:
        raise BadInput(
            "values",
            seen=f"{points.values[0]:g} at all {num} points",
            allowed="a target that varies",
            hint="Choose another target",
        )
    num_scales, num_budgets = len(np.unique(points.num_params)), len(np.unique(points.num_tokens))
    if "n" in form.letters and num_scales < 2:
        raise BadInput(
            "num_params",
            seen=f"one scale only (N={points.num_params[0]:g})",
            allowed=f"two or more scales for {form.formula}",
            hint="Add a scale, or fit form 'd'",
        )
    if "d" in form.letters and num_budgets < 2:
        raise BadInput(
            "num_tokens",
            seen=f"one budget only (D={points.num_tokens[0]:g})",
            allowed=f"two or more budgets for {form.formula}",
            hint="Add a budget, or fit form 'n'",
        )
    if "n" in form.letters and "d" in form.letters:
        _check_confounded(points, form)


def _check_confounded(points: Points, form: Form) -> None:
    ratio = points.num_tokens / points.num_params
    if np.ptp(ratio) <= 0.1 * ratio.min():
        raise BadInput(
            "num_tokens",
            seen=f"one budget only (D is about {np.median(ratio):.3g} N at every point)",
            allowed=f"two or more budgets for {form.formula}",
            hint="Add a budget, or fit form 'n' or 'd'",
        )
    slope, intercept = np.polyfit(points.log_n, points.log_d, 1)
    left = points.log_d - (slope * points.log_n + intercept)
    if float(np.std(left)) < CONFOUNDED_SPREAD:
        raise BadInput(
            "points",
            seen=f"D follows N^{slope:.2f} at every point",
            allowed="budgets that vary at a given scale",
            hint="N and D are confounded: their parts of the law cannot be told apart",
        )
