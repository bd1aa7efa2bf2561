"""Whatever stands in a grid file: a spec or a BadInput, never another exception."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import grid_from_mapping, load_grid, parse_grid

FULL: dict[str, Any] = {
    "name": "fuzz",
    "architectures": ["full", {"name": "mine", "pattern": ["swa-8", "full"], "training": {"clip": 2}}],
    "scales": ["n1", {"name": "own", "layers": 2}],
    "budgets": ["5N", "2M"],
    "seeds": [0, 1],
    "also": [{"scales": ["n3"], "seeds": [4]}],
    "data": {"context": 64, "mixture": [{"source": "a", "weight": 2}], "heldout": {"documents": 3}},
    "training": {"batch_tokens": 128, "optimizer": {"lr": 0.1}, "schedule": {"warmup_steps": 1}},
    "evaluate": ["loss", {"niah": {"depths": [1, 2]}}],
    "laws": [{"target": "loss", "verify": {"points": ["n1/2M"]}, "exclude": ["own/5N"], "fit": {"seeds": [0]}}],
    "run": {"devices": {"n1": 1}, "keep": {"every_tokens": "1B"}, "evaluations": {"niah": {"devices": 1}}},
}
STAGED: dict[str, Any] = {
    "name": "fuzz",
    "data": {"context": 64},
    "stages": [
        {"name": "a", "architectures": ["full"], "scales": ["n1"], "budgets": ["5N"]},
        {"name": "b", "from": "a/full/5N", "architectures": ["swa-8"], "budgets": [0], "training": {"clip": 1}},
    ],
}
WORDS = st.sampled_from(
    ["full", "n1", "5N", "0", "loss", "nd", "a/full/5N", "x:y", ":", "/", "hf:", "", "seed0", "name", "from", "of"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5)
KEYS = WORDS | st.sampled_from(
    ["architectures", "scales", "budgets", "seeds", "also", "stages", "data", "training", "run", "laws", "points"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
QUICK = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def spec_or_bad_input(make: Callable[[], GridSpec]) -> None:
    try:
        spec = make()
    except BadInput:
        return
    else:  # what was accepted can be asked everything
        assert len(spec.points()) == len({point.name for point in spec.points()})
        for point in spec.points():
            spec.training_for(point.architecture, point.stage)
            spec.data_for(point.stage)
            spec.parent_of(point)
            spec.architecture_for(point.architecture)
            spec.scale_for(point.scale)
        for law in spec.laws:
            spec.roles(law)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def with_value(base: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(base)
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return changed


def test_the_unchanged_files_are_good() -> None:
    for base in (FULL, STAGED):
        grid_from_mapping(base, source="fuzz", base_folder=Path())


@QUICK
@given(st.sampled_from([(base, place) for base in (FULL, STAGED) for place in places(base)]), VALUES)
def test_any_value_at_any_place(where: tuple[Any, tuple[Any, ...]], value: Any) -> None:
    base, place = where
    text = yaml.safe_dump(with_value(base, place, value))
    spec_or_bad_input(lambda: parse_grid(text, source="fuzz", base_folder=Path()))


@QUICK
@given(st.sampled_from([(base, place) for base in (FULL, STAGED) for place in places(base)]), KEYS, VALUES)
def test_any_further_key(where: tuple[Any, tuple[Any, ...]], key: str, value: Any) -> None:
    base, place = where
    target = base
    for part in place:
        target = target[part]
    if isinstance(target, dict):
        text = yaml.safe_dump(with_value(base, (*place, key), value))
        spec_or_bad_input(lambda: parse_grid(text, source="fuzz", base_folder=Path()))


@QUICK
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_mapping_of_a_program(value: dict[str, Any]) -> None:
    spec_or_bad_input(lambda: grid_from_mapping(value, source="fuzz", base_folder=Path()))


@QUICK
@given(st.text(max_size=80) | st.text(alphabet="-:[]{}&*!|>'\"#%@`,? \n\tan1", max_size=40))
def test_any_text(text: str) -> None:
    spec_or_bad_input(lambda: parse_grid(text, source="fuzz", base_folder=Path()))


@QUICK
@given(st.binary(max_size=60))
def test_any_bytes(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(content)
    spec_or_bad_input(lambda: load_grid(path, shipped_folder=path.parent))
