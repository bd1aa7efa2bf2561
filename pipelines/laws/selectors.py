"""Choosing rows of a table in one line: ``scale=S1,S2,S3``, ``N<1e8``, ``scale=S1;D>5e9``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gridlaw.platform.errors import BadInput

_PATTERN = re.compile(r"^\s*([^<>=!]+?)\s*(<=|>=|!=|=|<|>)\s*(.+?)\s*$")
_FORM = "column=value[,value…], or column with <, <=, >, >= or != and a value; several joined by ';' must all hold"


@dataclass(frozen=True, kw_only=True)
class Selector:
    """One condition on one column."""

    column: str
    operator: str
    values: tuple[str, ...]
    text: str


def parse_selectors(texts: Sequence[str] | str | None, *, option: str) -> tuple[Selector, ...]:
    """Conditions of one option, given once or several times; all must hold. BadInput shows the form expected."""
    found = []
    for text in [texts] if isinstance(texts, str) else list(texts or ()):
        for part in text.split(";"):
            match = _PATTERN.match(part)
            if match is None:
                raise BadInput(option, seen=part, allowed=_FORM, hint="For example: scale=S1,S2,S3")
            column, operator, right = match.groups()
            values = tuple(value.strip() for value in right.split(",") if value.strip())
            if not values or (operator not in ("=", "!=") and len(values) != 1):
                raise BadInput(option, seen=part, allowed=_FORM)
            found.append(Selector(column=column, operator=operator, values=values, text=part.strip()))
    return tuple(found)


def unknown_column(option: str, column: str, known: Sequence[str]) -> BadInput:
    """The message for a column that is not there: the nearest one named, then all."""
    lower = {str(name).lower(): str(name) for name in known}
    near = difflib.get_close_matches(column.lower(), list(lower), n=1, cutoff=0.5)
    hint = f"Nearest: {lower[near[0]]}" if near else ""
    return BadInput(option, seen=column, allowed=f"a column of the table ({', '.join(map(str, known))})", hint=hint)


def select_rows(frame: pd.DataFrame, selectors: Sequence[Selector], *, option: str) -> np.ndarray:
    """Which rows meet every condition. A value that no row has is BadInput: a slip would silently shrink the fit."""
    chosen = np.ones(len(frame), dtype=bool)
    for selector in selectors:
        if selector.column not in frame.columns:
            raise unknown_column(option, selector.column, list(frame.columns))
        column = frame[selector.column]
        if selector.operator in ("=", "!="):
            hits = np.zeros(len(frame), dtype=bool)
            for value in selector.values:
                equal = _equals(column, value)
                if not equal.any():
                    present = ", ".join(map(str, column.drop_duplicates().head(12)))
                    raise BadInput(
                        option, seen=f"{selector.column}={value}", allowed=f"a value in that column ({present})"
                    )
                hits |= equal
            chosen &= hits if selector.operator == "=" else ~hits
        else:
            chosen &= _compares(column, selector, option)
    return chosen


def _equals(column: pd.Series, value: str) -> np.ndarray:
    if pd.api.types.is_numeric_dtype(column):
        try:
            return np.isclose(column.to_numpy(dtype=float), float(value), rtol=1e-9, atol=0.0)
        except ValueError:
            return np.zeros(len(column), dtype=bool)
    return (column.astype(str).str.strip() == value).to_numpy()


def _compares(column: pd.Series, selector: Selector, option: str) -> np.ndarray:
    try:
        bound = float(selector.values[0])
        numbers = column.to_numpy(dtype=float)
    except ValueError as error:
        raise BadInput(option, seen=selector.text, allowed=f"{selector.operator} on a column of numbers") from error
    return {"<": numbers < bound, "<=": numbers <= bound, ">": numbers > bound, ">=": numbers >= bound}[
        selector.operator
    ]
