"""Quantities that people write with a unit: token budgets (``5N``, ``2B``) and bytes (``16GiB``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

TOKEN_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
BYTE_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
MIN_TOKENS = 1_000
MAX_TOKENS = 10**18
MAX_MULTIPLE = 10**6

BUDGET_ALLOWED = "a multiple of N such as 5N, or tokens such as 500M, 2B or 2000000000"
_BUDGET = re.compile(r"(?P<number>[0-9][0-9_]*(?:\.[0-9]+)?)(?P<unit>[NKMBT]?)")
_BYTES = re.compile(rf"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>{'|'.join(BYTE_UNITS)})")


class BadQuantity(ValueError):
    """What is wrong with a quantity: ``allowed`` and ``hint`` of the message to come."""

    def __init__(self, allowed: str, hint: str = "") -> None:
        super().__init__(allowed)
        self.allowed, self.hint = allowed, hint


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Training tokens D: ``multiple`` times N (the non-embedding parameters of Full at that scale), or ``tokens``.

    Exactly one of the two is set; equal budgets are equal objects however they were written (``5.0N``, ``0.5B``).
    A budget of 0 is ``multiple`` 0.
    """

    multiple: Fraction | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        assert (self.multiple is None) != (self.tokens is None), "a budget is a multiple of N or a number of tokens"

    @property
    def is_zero(self) -> bool:
        """True for a stage that trains nothing (a change of architecture without training)."""
        return self.multiple == 0

    @cached_property
    def label(self) -> str:
        """The budget's part of a point's name, the same however it was written: ``5N``, ``0.5N``, ``500M``, ``2B``.

        Of the exact ways to write tokens the shortest, with the largest unit.
        """
        if self.multiple is not None:
            return f"{_decimal(self.multiple)}N"
        assert self.tokens is not None
        with_unit = (
            f"{_decimal(Fraction(self.tokens, size))}{unit}"
            for unit, size in reversed(TOKEN_UNITS.items())
            if self.tokens >= size
        )
        return min((*with_unit, str(self.tokens)), key=len)

    def num_tokens(self, num_params: int) -> int:
        """D in tokens before rounding to optimizer steps, at ``num_params`` = N; fractions of a token round up."""
        if self.tokens is not None:
            return self.tokens
        assert self.multiple is not None
        return -(-self.multiple.numerator * num_params // self.multiple.denominator)

    def num_steps(self, num_params: int, batch_tokens: int) -> int:
        """D in whole optimizer steps of ``batch_tokens`` tokens, rounded up."""
        return -(-self.num_tokens(num_params) // batch_tokens)

    def __str__(self) -> str:
        return self.label


def _decimal(number: Fraction) -> str:
    """A fraction that has a finite decimal form, in that form, without trailing zeros."""
    whole, rest = divmod(number, 1)
    digits = ""
    while rest:
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
    return f"{whole}.{digits}" if digits else str(whole)


def parse_budget(value: Any) -> Budget:
    """``5N``, ``0.5N``, ``500M``, ``2B``, 2000000000, 2e9 or 0 → Budget; BadQuantity says what is wrong."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise BadQuantity(BUDGET_ALLOWED)
    if isinstance(value, float):
        if not value.is_integer():  # NaN and the infinities included
            raise BadQuantity(BUDGET_ALLOWED, "A part of N needs the N: 0.5N")
        value = int(value)
    if isinstance(value, int):
        if value < 0:
            raise BadQuantity(BUDGET_ALLOWED, "A budget is above 0")
        return Budget(multiple=Fraction(0)) if value == 0 else _absolute(Fraction(value))
    match = _BUDGET.fullmatch(value) if len(value) <= 40 else None
    if match is None:
        upper = value.strip().replace(" ", "").upper()
        better = upper if len(upper) <= 40 and _BUDGET.fullmatch(upper) else ""
        raise BadQuantity(BUDGET_ALLOWED, f"Write {better}" if better else "")
    number, unit = Fraction(match["number"].replace("_", "")), match["unit"]
    if number == 0:
        return Budget(multiple=Fraction(0))
    if unit == "N":
        if number > MAX_MULTIPLE:
            raise BadQuantity(f"at most {MAX_MULTIPLE}N")
        return Budget(multiple=number)
    return _absolute(number * TOKEN_UNITS.get(unit, 1))


def _absolute(tokens: Fraction) -> Budget:
    if tokens.denominator != 1:
        raise BadQuantity("whole tokens")
    if tokens < MIN_TOKENS:
        raise BadQuantity(f"at least {MIN_TOKENS} tokens", f"For {tokens} tokens per parameter write {tokens}N")
    if tokens > MAX_TOKENS:
        raise BadQuantity(f"at most {MAX_TOKENS // 10**12:,}T tokens")
    return Budget(tokens=int(tokens))


def parse_tokens(value: Any) -> int:
    """An absolute number of tokens (``1B``, 1000000) as an int; BadQuantity for multiples of N, too."""
    budget = parse_budget(value)
    if budget.tokens is None:
        raise BadQuantity("tokens above 0 such as 500M, 1B or 1000000000")
    return budget.tokens


def parse_bytes(value: Any) -> int:
    """``16GiB``, ``500MB`` or a whole number of bytes → bytes; BadQuantity says what is wrong."""
    allowed = "bytes such as 16GiB, 500MB or 17179869184"
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise BadQuantity(allowed, "It is above 0")
        return value
    match = _BYTES.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= 40 else None
    if match is None:
        raise BadQuantity(allowed)
    size = Fraction(match["number"]) * BYTE_UNITS[match["unit"]]
    if size < 1:
        raise BadQuantity(allowed, "It is above 0")
    return int(size)
