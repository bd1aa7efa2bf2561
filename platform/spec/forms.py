"""The base of all sections of a grid file and the types of their values; from pydantic's errors to ``Problem``.

Sections are strict (a quoted number is no number), frozen, and know their keys. What a validator here finds wrong it
raises as ``wrong(allowed, hint)``, which becomes the message of that place in the file.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from gridlaw.platform.spec.problems import Path, Problem, Shown, did_you_mean, listed, nearest
from gridlaw.platform.spec.quantities import BadQuantity, Budget, parse_budget, parse_bytes, parse_tokens

MAX_NAME_CHARACTERS = 80
NAME_ALLOWED = f"letters, digits, '.', '_' and '-', a letter or digit first, at most {MAX_NAME_CHARACTERS} characters"
MAX_SEED = 2**32 - 1

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?")
_RESERVED = re.compile(r"seed[0-9]+|[0-9]+(?:\.[0-9]+)?[NKMBT]?")


def wrong(allowed: str, hint: str = "", **more: Any) -> PydanticCustomError:
    """The error a validator raises. more: ``at`` (path below the value), ``seen`` (another value to show)."""
    return PydanticCustomError("gridlaw", "{allowed}", {"allowed": allowed, "hint": hint, **more})


class Section(BaseModel):
    """A mapping of the grid file with known keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_empty_value(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for key in keys_of(cls):
                if key in value and value[key] is None:
                    raise wrong("a value", "Give one or remove the key", at=(key,))
        return value

    def given(self) -> dict[str, Any]:
        """What the file says, without what it leaves out, as plain values: what modules fill with their defaults."""
        return self.model_dump(by_alias=True, exclude_unset=True, mode="json")


def _as_items(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if value is None or isinstance(value, dict):
        raise wrong("a list", "Write a list: [a, b], or one '- ' line per item")
    raise wrong("a list", f"Write [{value}]" if isinstance(value, (str, int)) and len(str(value)) < 60 else "")


def _not_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise wrong("a list of at least one", "Add one, or remove the key")
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value) or len(value) > MAX_NAME_CHARACTERS:
        better = re.sub(r"[^A-Za-z0-9._-]+", "-", value)[:MAX_NAME_CHARACTERS].strip("-._")
        raise wrong(
            NAME_ALLOWED,
            "Names become names of folders and of MLflow's tags" + (f": write {better}" if better else ""),
        )
    return value


def _part_name(value: str) -> str:
    _name(value)
    if _RESERVED.fullmatch(value):
        raise wrong(f"{NAME_ALLOWED}, and not the form of a budget (5N) or of a seed (seed0)", "Choose another name")
    return value


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SEED:
        raise wrong(f"a whole number from 0 to {MAX_SEED}")
    return value


def _quantity(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return parse(value)
        except BadQuantity as error:
            raise wrong(error.allowed, error.hint) from None

    return read


def _settings(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong("a mapping of settings")
    check_plain(value, ())
    return value


def check_plain(value: Any, path: Path) -> None:
    """Raise ``wrong`` at the place of a number that is not finite: identities have no form for it."""
    if isinstance(value, float) and not isfinite(value):
        raise wrong("a finite number", at=path, seen=str(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            check_plain(inner, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            check_plain(inner, (*path, index))


T = TypeVar("T")
Items = Annotated[tuple[T, ...], BeforeValidator(_as_items)]
SomeItems = Annotated[tuple[T, ...], BeforeValidator(_as_items), AfterValidator(_not_empty)]
Name = Annotated[str, AfterValidator(_name)]
PartName = Annotated[str, AfterValidator(_part_name)]
"""A name that becomes a part of points' names: architecture, scale, stage."""
Seed = Annotated[int, PlainValidator(_seed)]
BudgetValue = Annotated[Budget, PlainValidator(_quantity(parse_budget)), PlainSerializer(str)]
Tokens = Annotated[int, PlainValidator(_quantity(parse_tokens))]
Bytes = Annotated[int, PlainValidator(_quantity(parse_bytes))]
Settings = Annotated[dict[str, Any], PlainValidator(_settings)]
"""A mapping whose keys another part of gridlaw knows."""


def no_bool(value: Any) -> Any:
    """Refuse true and false where a number is wanted, before a union or a conversion takes them for 1 and 0."""
    if isinstance(value, bool):
        raise wrong("a number")
    return value


_NUMBERS = ("a number", "a whole number")
_SIMPLE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
}


def problems_of(error: ValidationError, model: type[BaseModel], value: Any, prefix: Path = ()) -> list[Problem]:
    """The mistakes that pydantic found in ``value`` (the whole mapping), as messages; prefix: where it stands."""
    every = error.errors(include_url=False)
    mistyped = {
        (*details["loc"][:-1], nearest(str(details["loc"][-1]), _known_keys(model, details["loc"][:-1])))
        for details in every
        if details["type"] == "extra_forbidden"
    }
    return [
        _problem(details, model, value, prefix)
        for details in every
        if not (details["type"] == "missing" and details["loc"] in mistyped)  # told once, as the mistyped key
    ]


def _problem(details: Any, model: type[BaseModel], value: Any, prefix: Path) -> Problem:
    kind, path = details["type"], tuple(details["loc"])
    context: Mapping[str, Any] = details.get("ctx", {})
    seen: Any = details["input"]
    hint = ""
    if kind == "gridlaw":
        at = tuple(context.get("at", ()))
        seen = Shown(context["seen"]) if "seen" in context else _value_at(value, (*path, *at))
        return Problem((*prefix, *path, *at), seen=seen, allowed=context["allowed"], hint=context["hint"])
    if kind == "missing":
        return Problem((*prefix, *path), allowed="a value: this key is required", hint=_meaning(model, path))
    if kind == "extra_forbidden":
        known = _known_keys(model, path[:-1])
        hint = did_you_mean(path[-1], known) or _elsewhere(str(path[-1]))
        return Problem((*prefix, *path), seen=Shown("unknown here"), allowed=listed(known), hint=hint)
    allowed = _SIMPLE.get(kind) or _bounds(kind, context) or details["msg"]
    if allowed in _NUMBERS:
        allowed = _number(model, path) or allowed
    if isinstance(seen, str) and kind in ("int_type", "float_type") and _is_number(seen):
        hint = f"Write it without quotes: {seen.strip()}"
    elif seen is None:
        hint = "Give a value or remove the key"
    elif kind == "string_type" and isinstance(seen, (int, float)):
        hint = f'Put it in quotes: "{seen}"'
    elif kind == "literal_error" and isinstance(seen, str):
        hint = did_you_mean(seen, re.findall(r"'([^']*)'", allowed))
    return Problem((*prefix, *path), seen=seen, allowed=allowed, hint=hint)


def _bounds(kind: str, context: Mapping[str, Any]) -> str:
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        return "a number"
    if kind == "string_too_short":
        return f"text of at least {context['min_length']} character"
    return str(context["expected"]) if kind == "literal_error" else ""


def _number(model: type[BaseModel], path: Path) -> str:
    """``a number above 0 and at most 1``: what may stand at ``path``, from the section that has it; "" if none does."""
    info = None
    for length in (len(path), len(path) - 1):  # of a list or mapping of numbers, the field that holds it
        section = model_at(model, path[: length - 1]) if length > 0 else None
        info = info or (_field(section, path[length - 1]) if section is not None else None)
    if info is None:
        return ""
    limits = []
    for constraint in (*info.metadata, *_constraints(info.annotation)):
        for key, word in (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "at most")):
            limit = getattr(constraint, key, None)
            if limit is not None:
                limits.append(f"{word} {limit:g}")
    kind = "a number" if "float" in str(info.annotation) else "a whole number"
    return f"{kind} {' and '.join(limits)}".strip()


def _constraints(annotation: Any) -> list[Any]:
    """What limits the numbers inside an annotation, through unions, lists and fields."""
    found: list[Any] = []
    for each in getattr(annotation, "__metadata__", ()):
        found += each.metadata if isinstance(each, FieldInfo) else [each]
    for argument in typing.get_args(annotation):
        found += _constraints(argument)
    return found


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return ...
    return value


def model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The section that stands at ``path`` below ``model``, found through the annotations."""
    current: type[BaseModel] | None = model
    is_key = False  # of a mapping from names to sections
    for part in path:
        if isinstance(part, int):
            continue
        if is_key:
            is_key = False
            continue
        info = _field(current, part) if current else None
        current = _section_in(info.annotation) if info is not None else None
        is_key = info is not None and typing.get_origin(info.annotation) is dict
    return current


def _field(model: type[BaseModel], key: str | int) -> FieldInfo | None:
    return next((info for name, info in model.model_fields.items() if (info.alias or name) == key), None)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in typing.get_args(annotation) if (found := _section_in(arg))), None)


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a section as the file writes them."""
    return [info.alias or name for name, info in model.model_fields.items()]


def _known_keys(model: type[BaseModel], path: Path) -> list[str]:
    found = model_at(model, path)
    return keys_of(found) if found is not None else []


def _meaning(model: type[BaseModel], path: Path) -> str:
    section = model_at(model, path[:-1])
    if section is None:
        return ""
    info = _field(section, path[-1])
    return (info.description or "") if info is not None else ""


_ELSEWHERE: Mapping[str, str] = {
    "storage": "The study's storage is run.storage",
    "trials": "The number of trials is tune.trials",
    "lr": "The learning rate is training.optimizer.lr",
    "seed": "Seeds are a list: seeds: [0]",
    "budget": "Budgets are a list: budgets: [5N]",
    "context": "The context is data.context",
    "batch_tokens": "The token batch is training.batch_tokens",
    "accelerator": "The accelerator is run.accelerator",
    "store": "The store is run.store",
    "tracking_uri": "The tracking server is run.tracking_uri",
}


def _elsewhere(key: str) -> str:
    return _ELSEWHERE.get(key, "")


def duplicates(values: Iterable[Any]) -> list[tuple[int, int]]:
    """(position, earlier position) of every value that was there before."""
    first: dict[Any, int] = {}
    found = []
    for index, value in enumerate(values):
        if value in first:
            found.append((index, first[value]))
        else:
            first[value] = index
    return found
