"""Checks of settings that come from a person's file: each failure is one BadSetting. Imports no torch."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from gridlaw.modules.errors import BadSetting


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint that names the known word nearest to ``word``, or nothing."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else ""


def mapping_of(field: str, data: Any, cls: type) -> dict[str, Any]:
    """``data`` as keyword arguments of the dataclass ``cls``; BadSetting for no mapping and for unknown fields."""
    known = [item.name for item in dataclasses.fields(cls)]
    if not isinstance(data, Mapping):
        raise BadSetting(field, seen=data, allowed=f"a mapping with {', '.join(known)}")
    for key in data:
        if key not in known:
            raise BadSetting(f"{field}.{key}", allowed=f"one of {', '.join(known)}", hint=nearest(key, known))
    return dict(data)


def choice(field: str, value: Any, allowed: tuple[str, ...]) -> None:
    """``value`` is one of ``allowed``."""
    if value not in allowed:
        raise BadSetting(field, seen=value, allowed=f"one of {', '.join(allowed)}", hint=nearest(value, allowed))


def number(
    field: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """``value`` is a finite number within the limits."""
    limits = {"above": above, "at least": at_least, "below": below, "at most": at_most}
    allowed = "a number" + "".join(f", {word} {limit:g}" for word, limit in limits.items() if limit is not None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        hint = f"Write it as {float(value)}" if isinstance(value, str) and _is_number(value) else ""
        raise BadSetting(field, seen=value, allowed=allowed, hint=hint)
    if (
        (above is not None and value <= above)
        or (at_least is not None and value < at_least)
        or (below is not None and value >= below)
        or (at_most is not None and value > at_most)
    ):
        raise BadSetting(field, seen=value, allowed=allowed)


def _is_number(text: str) -> bool:
    """YAML 1.1 reads ``1e-3`` as text: worth a hint."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def whole_number(field: str, value: Any, *, at_least: int) -> None:
    """``value`` is an int, at least ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise BadSetting(field, seen=value, allowed=f"a whole number, at least {at_least}")
