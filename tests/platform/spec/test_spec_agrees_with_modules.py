"""The grid file's keys are those that the parts behind it read: none is known to one side only."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import gridlaw.platform.spec.load as load_module
from gridlaw.modules.catalog import resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import DATA_KEYS, HELDOUT_KEYS, MIXTURE_KEYS
from gridlaw.modules.training.schedule import DECAY_SHAPES, SCHEDULES, ScheduleSettings
from gridlaw.modules.training.settings import (
    DISTILLED_TOKENS,
    OPTIMIZERS,
    PRECISIONS,
    DistillSettings,
    GammaControllerSettings,
    OptimizerSettings,
    TrainingSettings,
)
from gridlaw.pipelines.laws.forms import FORMS
from gridlaw.platform.identity import DECAY_KEYS
from gridlaw.platform.spec.forms import keys_of
from gridlaw.platform.spec.load import load_grid, shipped_grids
from gridlaw.platform.spec.sections import (
    DataSection,
    DistillSection,
    GammaControllerSection,
    HeldoutSection,
    LawSection,
    OptimizerSection,
    ScheduleSection,
    SourceSection,
    TrainingSection,
)

SHIPPED = Path(load_module.__file__).resolve().parents[2] / "pipelines" / "grids"


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        (TrainingSection, TrainingSettings),
        (OptimizerSection, OptimizerSettings),
        (ScheduleSection, ScheduleSettings),
        (GammaControllerSection, GammaControllerSettings),
        (DistillSection, DistillSettings),
    ],
)
def test_training_keys(section: type[BaseModel], settings: Any) -> None:
    assert set(keys_of(section)) == {field.name for field in dataclasses.fields(settings)}


@pytest.mark.parametrize(
    ("section", "keys"),
    [(DataSection, DATA_KEYS), (SourceSection, MIXTURE_KEYS), (HeldoutSection, HELDOUT_KEYS)],
)
def test_data_keys(section: type[BaseModel], keys: tuple[str, ...]) -> None:
    assert set(keys_of(section)) == set(keys)


def literals(section: type[BaseModel], field: str) -> set[str]:
    def inside(annotation: Any) -> set[str]:
        parts = get_args(annotation)
        return {part for part in parts if isinstance(part, str)} | {
            each for part in parts if not isinstance(part, str) for each in inside(part)
        }

    return inside(section.model_fields[field].annotation)


@pytest.mark.parametrize(
    ("section", "field", "words"),
    [
        (OptimizerSection, "name", OPTIMIZERS),
        (ScheduleSection, "name", SCHEDULES),
        (ScheduleSection, "decay_shape", DECAY_SHAPES),
        (TrainingSection, "precision", PRECISIONS),
        (DistillSection, "tokens", DISTILLED_TOKENS),
        (LawSection, "form", FORMS),
    ],
)
def test_words(section: type[BaseModel], field: str, words: Any) -> None:
    assert literals(section, field) == set(words)


def test_decay_keys_are_those_of_a_schedule() -> None:
    assert set(DECAY_KEYS) | {"name", "warmup_steps"} == {field.name for field in dataclasses.fields(ScheduleSettings)}


@pytest.mark.parametrize("name", shipped_grids(SHIPPED))
def test_shipped_grids_name_what_exists(name: str) -> None:
    spec = load_grid(name, shipped_folder=SHIPPED)
    for point in spec.points():
        scale = resolve_scale(spec.scale_for(point.scale))
        resolve_architecture(spec.architecture_for(point.architecture)).layers(scale)
        settings = TrainingSettings.from_dict(spec.training_for(point.architecture, point.stage), scale=scale)
        settings.check_context(spec.data_for(point.stage)["context"])
