"""docs/grid-file.md names every key of the grid file, says each key's identity, and its defaults are the real ones."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import gridlaw.platform.spec.load as load_module
from gridlaw.modules.data.declaration import DEFAULT_HELDOUT_FRACTION, DEFAULT_MIXTURE
from gridlaw.modules.data.sources import DEFAULT_SPLIT, DEFAULT_TEXT_COLUMN
from gridlaw.modules.training.schedule import ScheduleSettings
from gridlaw.modules.training.settings import (
    DistillSettings,
    GammaControllerSettings,
    OptimizerSettings,
    TrainingSettings,
)
from gridlaw.platform.spec.blocks import ArchitectureSection, BlockSection, ScaleSection
from gridlaw.platform.spec.forms import keys_of
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import parse_grid
from gridlaw.platform.spec.sections import (
    DataSection,
    DistillSection,
    EvaluationSection,
    GammaControllerSection,
    HardwareSection,
    HeldoutSection,
    KeepSection,
    LawSection,
    OptimizerSection,
    ResourcesSection,
    RopeSection,
    RunSection,
    ScheduleSection,
    SelectionSection,
    SourceSection,
    TrainingSection,
    YarnSection,
)
from gridlaw.platform.spec.stages import StageSection
from gridlaw.platform.spec.tuning import ParameterSection, PruneSection, SamplerSection, TuneSection

DOC = Path(load_module.__file__).resolve().parents[2] / "docs" / "grid-file.md"
SECTIONS: dict[str, type[BaseModel]] = {
    "grid": GridSpec,
    "architectures": ArchitectureSection,
    "scales": ScaleSection,
    "also": BlockSection,
    "stages": StageSection,
    "data": DataSection,
    "data.mixture": SourceSection,
    "data.heldout": HeldoutSection,
    "rope": RopeSection,
    "rope.yarn": YarnSection,
    "training": TrainingSection,
    "training.optimizer": OptimizerSection,
    "training.schedule": ScheduleSection,
    "training.gamma_controller": GammaControllerSection,
    "training.distill": DistillSection,
    "evaluate": EvaluationSection,
    "laws": LawSection,
    "laws.fit": SelectionSection,
    "tune": TuneSection,
    "tune.space": ParameterSection,
    "tune.sampler": SamplerSection,
    "tune.prune": PruneSection,
    "run": RunSection,
    "run.keep": KeepSection,
    "run.evaluations": ResourcesSection,
    "run.hardware": HardwareSection,
}


def tables() -> dict[str, dict[str, list[str]]]:
    """Section → key → its row's other cells."""
    found: dict[str, dict[str, list[str]]] = {}
    for part in re.split(r"^### ", DOC.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in body.splitlines() if line[:3] == "| `"]
        found[name.strip("` ")] = {row[0].strip("`"): row[1:] for row in rows}
    return found


def sections_below(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    def inside(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            sections_below(annotation, seen)
        for argument in getattr(annotation, "__args__", ()):
            inside(argument)

    if model not in seen:
        seen.add(model)
        for info in model.model_fields.values():
            inside(info.annotation)
    return seen


def test_every_section_of_the_file_has_a_table() -> None:
    assert sections_below(GridSpec, set()) == set(SECTIONS.values())
    assert set(tables()) == set(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_has_a_row_with_its_identity(name: str) -> None:
    rows = tables()[name]
    assert set(rows) == set(keys_of(SECTIONS[name]))
    assert all(len(cells) == 4 and cells[0] and cells[1] and cells[3] for cells in rows.values())
    if name.startswith("run"):
        assert all(cells[3] == "–" for cells in rows.values())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("training", TrainingSettings),
        ("training.optimizer", OptimizerSettings),
        ("training.schedule", ScheduleSettings),
        ("training.gamma_controller", GammaControllerSettings),
        ("training.distill", DistillSettings),
    ],
)
def test_defaults_of_training_are_the_modules(name: str, settings: Any) -> None:
    compared = 0
    for field in dataclasses.fields(settings):
        told = tables()[name][field.name][1]
        if field.default is not dataclasses.MISSING and field.default is not None:
            assert yaml.safe_load(told.strip("`").replace("1e-8", "1.0e-8")) == field.default, field.name
            compared += 1
    assert compared >= 3


def test_defaults_of_data_are_the_modules() -> None:
    data, source, heldout = (tables()[name] for name in ("data", "data.mixture", "data.heldout"))
    assert yaml.safe_load(data["mixture"][1].strip("`")) == DEFAULT_MIXTURE
    assert float(heldout["fraction"][1].strip("`")) == DEFAULT_HELDOUT_FRACTION
    assert source["split"][1] == f"`{DEFAULT_SPLIT}`"
    assert source["text_column"][1] == f"`{DEFAULT_TEXT_COLUMN}`"


def test_required_keys_are_said_to_be() -> None:
    for name, model in SECTIONS.items():
        for field, info in model.model_fields.items():
            if info.is_required():
                assert tables()[name][info.alias or field][1] == "required", (name, field)


def test_the_example_is_a_grid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOC.read_text(encoding="utf-8"), flags=re.DOTALL)
    spec = parse_grid(example, source="docs", base_folder=Path())
    assert len(spec.points()) == 18


def test_links_lead_to_headings() -> None:
    text = DOC.read_text(encoding="utf-8")
    headings = {re.sub(r"[^a-z0-9_ -]", "", line.lower()).replace(" ", "-")
                for line in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}  # fmt: skip
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= headings
