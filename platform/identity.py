"""Identity: canonical JSON, fingerprints, what enters them, and how two of them differ.

An identity is a mapping of resolved, JSON-able values with a ``kind``: trunk, point, evaluation or law. Its fingerprint
is a hash of its canonical JSON. The rules of the canonical form:

* keys are text and sorted by code point; no white space; text is written as UTF-8, not escaped;
* numbers are compared by value: 1 and 1.0 are one, and so are 1e3 and 1000, because a person's ``clip: 1`` and
  ``clip: 1.0`` mean one thing. Integral numbers are written as integers, others in the shortest form that reads back
  to the same double;
* true is not 1, "1" is not 1, null is not an absent key; tuples are lists;
* NaN, the infinities and everything JSON has no form for (paths, sets, enums, arrays) are our own bug: TypeError.

A field that a later version adds changes no fingerprint while it has its **legacy value**: what the code did before
the field existed. ``LEGACY`` holds these as ``KIND.path.to.field`` (``*`` for every key or list position); such a field
is left out before hashing, wherever an identity of that kind stands, a point's trunk included.

What enters is decided here and nowhere else: no experiment name, nothing under ``run:``, no hardware, no path, no other
point, evaluation or law is an argument of the functions below.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any, Final

FINGERPRINT_DIGITS = 20
DECAY_KEYS = ("decay_fraction", "decay_shape", "final_fraction")
"""Keys of a wsd schedule that a branch has and its trunk does not know."""
NOT_IDENTITY = {"data": ("max_epochs",)}

LEGACY: Mapping[str, Any] = {
    "trunk.training.gamma_controller": None,
    "trunk.training.distill": None,
    "trunk.model.rope_scaling.beta_fast": 32.0,
    "trunk.model.rope_scaling.beta_slow": 1.0,
    "trunk.model.rope_scaling.attention_factor": None,
}
"""``KIND.path.to.field`` → the value that the code had before the field existed.

Entries are added at the end and never removed: they are taken back in reverse order, so that a field added to a section
which was itself added goes before the section is compared. A new section is one entry, with a mapping as its value.
"""


class _Absent:
    """Stands for a field that one side of a difference lacks."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()


class _NoForm(TypeError):
    """A value that JSON has no form for. Its place is put together on the way out, as hardly any value needs one."""

    def __init__(self, problem: str) -> None:
        self.place, self.problem = "", problem

    def inside(self, step: str) -> None:
        self.place = f"{step}.{self.place}" if self.place and self.place[0] != "[" else step + self.place

    def __str__(self) -> str:
        return f"{self.place or 'identity'} {self.problem}"


def canonical_json(value: Any) -> str:
    """The canonical form (module docstring) of a JSON-able value; TypeError for anything else."""
    return _text(_plain(value))


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """A copy with integral floats as integers and tuples as lists; TypeError names the place of what has no form."""
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return value
    if kind is float:
        if not isfinite(value):
            raise _NoForm(f"is {value!r}: an identity holds finite numbers only")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        plain = {}
        for key, inner in value.items():
            if type(key) is not str:
                raise _NoForm(f"has the key {key!r}: keys of an identity are text")
            try:
                plain[key] = _plain(inner)
            except _NoForm as error:
                error.inside(key)
                raise
        return plain
    if not isinstance(value, (list, tuple)):
        raise _NoForm(f"is a {kind.__name__}: an identity holds JSON values only")
    row = []
    for index, inner in enumerate(value):
        try:
            row.append(_plain(inner))
        except _NoForm as error:
            error.inside(f"[{index}]")
            raise
    return row


def fingerprint(identity: Mapping[str, Any], legacy: Mapping[str, Any] = LEGACY) -> str:
    """20 hexadecimal digits of the SHA-256 of the canonical JSON, fields at their legacy values left out."""
    text = _text(without_legacy(identity, legacy))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:FINGERPRINT_DIGITS]


def without_legacy(identity: Mapping[str, Any], legacy: Mapping[str, Any] = LEGACY) -> dict[str, Any]:
    """A copy of ``identity`` in plain values without the fields that have their legacy values."""
    result: dict[str, Any] = _plain(identity)
    _drop_by_kind(result, _usual_by_kind() if legacy is LEGACY else _by_kind(legacy))
    return result


def _by_kind(legacy: Mapping[str, Any]) -> Mapping[str, list[tuple[list[str], str]]]:
    """kind → (path, canonical JSON of the legacy value), in the order in which they are taken back."""
    by_kind: dict[str, list[tuple[list[str], str]]] = {}
    for dotted, value in reversed(list(legacy.items())):
        kind, _, path = dotted.partition(".")
        assert path, f"a legacy value needs KIND.path.to.field, not {dotted!r}"
        by_kind.setdefault(kind, []).append((path.split("."), canonical_json(value)))
    return by_kind


@cache
def _usual_by_kind() -> Mapping[str, list[tuple[list[str], str]]]:
    return _by_kind(LEGACY)


def _drop_by_kind(value: dict[str, Any] | list[Any], by_kind: Mapping[str, list[tuple[list[str], str]]]) -> None:
    """value: of plain values."""
    for inner in value.values() if isinstance(value, dict) else value:
        if type(inner) is dict or type(inner) is list:
            _drop_by_kind(inner, by_kind)
    kind = value.get("kind") if isinstance(value, dict) else None
    for path, legacy_json in by_kind.get(kind, ()) if isinstance(kind, str) else ():
        _drop(value, path, legacy_json)


def _drop(value: Any, path: list[str], legacy_json: str) -> None:
    """Delete the fields at ``path`` that have the legacy value."""
    first, *rest = path
    if isinstance(value, list):
        for index, inner in enumerate(value):
            if rest and first in ("*", str(index)):
                _drop(inner, rest, legacy_json)
        return
    if not isinstance(value, dict):
        return
    for key in list(value) if first == "*" else [first] if first in value else []:
        if not rest:
            if canonical_json(value[key]) == legacy_json:
                del value[key]
            continue
        _drop(value[key], rest, legacy_json)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field that differs. field: its dotted path. old, new: plain values, ABSENT where one side lacks it."""

    field: str
    old: Any
    new: Any


def differences(old: Mapping[str, Any], new: Mapping[str, Any], legacy: Mapping[str, Any] = LEGACY) -> list[Difference]:
    """The fields in which two identities differ, in order of their paths; none exactly if the fingerprints agree."""
    found: list[Difference] = []
    _compare(without_legacy(old, legacy), without_legacy(new, legacy), "", found)
    return found


def _compare(old: Any, new: Any, path: str, found: list[Difference]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            here = f"{path}.{key}" if path else key
            _compare(old.get(key, ABSENT), new.get(key, ABSENT), here, found)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            _compare(left, right, f"{path}[{index}]", found)
    elif type(old) is not type(new) or old != new:
        found.append(Difference(field=path, old=old, new=new))


def drift_text(found: Sequence[Difference]) -> str:
    """``lr 1e-3 → 2e-3, window 64 → 128``: fields by the shortest ending of their paths that tells them apart.

    Layers that differ alike are told once: ``layers[0, 2].mixer.window 64 → 128``.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    for each in found:
        shape, position = _positions(each.field)
        alike.setdefault((shape, show(each.old), show(each.new)), []).append(position)
    shapes = [shape for shape, _, _ in alike]
    told = []
    for (shape, old, new), positions in alike.items():
        name = _short_name(shape, shapes)
        if "[]" in name:
            name = name.replace("[]", f"[{', '.join(dict.fromkeys(positions))}]", 1)
        told.append(f"{name} {old} → {new}")
    return ", ".join(told)


def _positions(field: str) -> tuple[str, str]:
    """``a[3].b`` → (``a[].b``, ``3``): the first list position taken out of a path."""
    start = field.find("[")
    if start < 0:
        return field, ""
    end = field.index("]", start)
    return f"{field[: start + 1]}{field[end:]}", field[start + 1 : end]


def _short_name(shape: str, shapes: Iterable[str]) -> str:
    others = [other.split(".") for other in set(shapes) if other != shape]
    parts = shape.split(".")
    for length in range(1, len(parts)):
        ending = parts[-length:]
        is_unique = not any(other[-length:] == ending for other in others)
        if is_unique and ("[]" in "".join(ending)) == ("[]" in shape):
            return ".".join(ending)
    return shape


def show(value: Any, max_characters: int = 60) -> str:
    """A value as drift messages show it: numbers in their shorter notation (0.001 as 1e-3), long values cut."""
    if isinstance(value, float):
        plain = repr(value)
        mantissa, _, exponent = f"{value:.16e}".partition("e")
        digits = next(
            (f"{value:.{n}e}" for n in range(17) if float(f"{value:.{n}e}") == value), f"{mantissa}e{exponent}"
        )
        mantissa, _, exponent = digits.partition("e")
        scientific = f"{mantissa}e{int(exponent)}"
        return scientific if len(scientific) < len(plain) else plain
    text = "absent" if value is ABSENT else value if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


def trunk_identity(
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    training: Mapping[str, Any] | None,
    seed: int,
    parent: str | None = None,
    budget_tokens: int | None = None,
) -> dict[str, Any]:
    """The identity of a trunk.

    model: resolved layers and settings, scale numbers, vocabulary, positions; no name of an architecture or scale.
    data: the declaration (content, tokenizer, context, packing). training: every setting resolved (learning rate by the
    rule as a number); None under a point that is not trained. parent: fingerprint of the point, or content hash of the
    weights, that it starts from; None for a fresh start. budget_tokens: D in whole steps; it enters under a cosine
    schedule, which knows it from the first step, and is required there; a wsd trunk serves every budget and leaves it
    out, and the decay with it.
    """
    identity: dict[str, Any] = {
        "kind": "trunk",
        "model": dict(model),
        "data": {key: value for key, value in data.items() if key not in NOT_IDENTITY["data"]},
        "seed": seed,
    }
    if training is not None:
        identity["training"] = _trunk_training(training, budget_tokens)
    if parent is not None:
        identity["parent"] = parent
    return _checked(identity)


def _trunk_training(training: Mapping[str, Any], budget_tokens: int | None) -> dict[str, Any]:
    schedule = dict(training["schedule"])
    known = {key: value for key, value in schedule.items() if key not in DECAY_KEYS}
    if shares_trunk(training):
        assert schedule["name"] == "wsd", f"no identity rule for the schedule {schedule['name']!r}"
    else:
        assert budget_tokens is not None, "a cosine schedule knows its budget: its trunk's identity needs it"
        known |= {"final_fraction": schedule.get("final_fraction", 0.0), "budget_tokens": budget_tokens}
    return {**{key: value for key, value in training.items() if key != "schedule"}, "schedule": known}


def shares_trunk(training: Mapping[str, Any]) -> bool:
    """True if points that differ in their budgets alone share a trunk: under every schedule but cosine."""
    return bool(training["schedule"]["name"] != "cosine")


def point_identity(
    trunk: Mapping[str, Any], *, budget_tokens: int, training: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The identity of a point: its trunk's, D in whole optimizer steps, and the decay (None under cosine).

    trunk: enters as it is, for all points of a trunk have the same. budget_tokens: tokens really seen, so that 20N and
    as many tokens written out are one point; 0 for no training: such a point and its trunk have no ``training``, for no
    setting of it changes a number.
    """
    decay = None
    if training is not None and shares_trunk(training):
        decay = {key: training["schedule"][key] for key in DECAY_KEYS if key in training["schedule"]}
    return {"kind": "point", "trunk": trunk, "budget_tokens": budget_tokens, "decay": _plain(decay)}


def evaluation_identity(
    point: Mapping[str, Any], *, name: str, settings: Mapping[str, Any], corpus: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The identity of an evaluation of a point.

    point: its identity, which enters as it is. settings: resolved; an evaluator that is a point enters by its
    fingerprint. corpus: its declaration, by content; None where the point's own held-out data are meant.
    """
    return {
        "kind": "evaluation",
        "point": point,
        "name": name,
        "settings": _plain(settings),
        "corpus": _plain(corpus),
    }


def law_identity(
    *,
    fitted: Iterable[str],
    fit: Mapping[str, Any],
    verified: Iterable[str] = (),
) -> dict[str, Any]:
    """The identity of one fitted law.

    fitted, verified: fingerprints of the evaluations that are fitted and predicted, in any order. fit: the settings of
    the fit: target, form, loss, delta, and what else changes its numbers.
    """
    return _checked({"kind": "law", "fitted": sorted(fitted), "verified": sorted(verified), "fit": dict(fit)})


def _checked(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity in plain values, as it is stored on a run."""
    plain: dict[str, Any] = _plain(identity)
    return plain
