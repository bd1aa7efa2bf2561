"""A search space as plain values: parameters with a range or choices, some of them there only under a condition.

Free of Optuna, so that a file can be read and checked without it. What a parameter's name means is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

Value = str | int | float | bool
MAX_GRID_POINTS = 100_000


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter. kind: float, int or choice; low and high included; step: from low; log: uniform in the logarithm.

    when: names of other parameters with the values under which this one exists; all must hold.
    """

    name: str
    kind: Literal["float", "int", "choice"]
    low: float | int | None = None
    high: float | int | None = None
    step: float | int | None = None
    log: bool = False
    choices: tuple[Value, ...] = ()
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    @property
    def is_number(self) -> bool:
        return self.kind != "choice"

    def contains(self, value: Any) -> bool:
        """Whether ``value`` may be taken; a whole number is one for a float, too, and true is no number."""
        if self.kind == "choice":
            return any(same(value, each) for each in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        if self.kind == "int" and not float(value).is_integer():
            return False
        assert self.low is not None and self.high is not None, f"{self.name} has no range"
        if not self.low <= value <= self.high:
            return False
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-8

    def cast(self, value: Any) -> Value:
        """A value of a file, or of Optuna, in the parameter's own type: 100 is 100.0 for a float."""
        if self.kind == "choice":
            return next(each for each in self.choices if same(value, each))
        return int(value) if self.kind == "int" else float(value)

    def grid(self) -> tuple[Value, ...]:
        """Every value, ascending; empty for a range without a step."""
        if self.kind == "choice":
            return self.choices
        step = self.step if self.step is not None else (1 if self.kind == "int" and not self.log else None)
        if step is None or self.low is None or self.high is None:
            return ()
        count = math.floor((self.high - self.low) / step + 1e-8) + 1
        return tuple(self.cast(self.low + index * step) for index in range(count)) if count <= MAX_GRID_POINTS else ()

    def ends(self) -> tuple[Value, ...]:
        """The values to try a setting with: both ends of a range, or every choice."""
        if self.kind == "choice":
            return self.choices
        assert self.low is not None and self.high is not None, f"{self.name} has no range"
        return (self.cast(self.low), self.cast(self.high))

    def words(self) -> str:
        """For messages: ``a number from 0.1 to 1``, ``one of relu, softplus``."""
        if self.kind == "choice":
            return "one of " + ", ".join(map(show, self.choices))
        kind = "a whole number" if self.kind == "int" else "a number"
        step = f" in steps of {show(self.step)}" if self.step is not None else ""
        return f"{kind} from {show(self.low)} to {show(self.high)}{step}"

    def identity(self) -> dict[str, Any]:
        """JSON-able: what of it makes a study."""
        own: dict[str, Any] = {"kind": self.kind, "when": {name: list(values) for name, values in self.when.items()}}
        if self.kind == "choice":
            return {**own, "choices": list(self.choices)}
        return {**own, "low": self.low, "high": self.high, "step": self.step, "log": self.log}


@dataclass(frozen=True, kw_only=True)
class Space:
    """Parameters in an order in which each comes after those that its condition names. Made by ``Space.of``."""

    parameters: tuple[Parameter, ...]

    @staticmethod
    def of(parameters: Iterable[Parameter]) -> Space:
        """Ordered; ``ValueError`` with the names of a circle of conditions."""
        waiting = list(parameters)
        ordered: list[Parameter] = []
        while waiting:
            there = {each.name for each in ordered}
            ready = [each for each in waiting if set(each.when) <= there]
            if not ready:
                raise ValueError(", ".join(each.name for each in waiting))
            ordered += ready
            waiting = [each for each in waiting if each not in ready]
        return Space(parameters=tuple(ordered))

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def __getitem__(self, name: str) -> Parameter:
        return next(each for each in self.parameters if each.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.parameters)

    @property
    def is_conditional(self) -> bool:
        return any(each.when for each in self.parameters)

    def is_active(self, parameter: Parameter, values: Mapping[str, Value]) -> bool:
        """Whether a parameter exists beside ``values`` of those before it."""
        return all(
            name in values and any(same(values[name], each) for each in wanted)
            for name, wanted in parameter.when.items()
        )

    def active(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """``values`` without those of parameters that do not exist beside the others, in the space's order."""
        found: dict[str, Value] = {}
        for each in self.parameters:
            if each.name in values and self.is_active(each, found):
                found[each.name] = each.cast(values[each.name])
        return found

    def grid(self) -> list[dict[str, Value]]:
        """Every different combination; empty if a range has no step or there are above ``MAX_GRID_POINTS``."""
        axes = [each.grid() for each in self.parameters]
        if not all(axes) or math.prod(map(len, axes)) > MAX_GRID_POINTS:
            return []
        found = {}
        for values in product(*axes):
            combination = self.active(dict(zip(self.names, values, strict=True)))
            found[tuple((name, type(value), value) for name, value in combination.items())] = combination
        return list(found.values())

    def identity(self) -> dict[str, Any]:
        """JSON-able, by name."""
        return {each.name: each.identity() for each in sorted(self.parameters, key=lambda each: each.name)}


def same(left: Any, right: Any) -> bool:
    """Equality of values in a file: 1 and 1.0 are one, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def show(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
