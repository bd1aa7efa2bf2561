"""Which settings a tune file may vary, by what names, and a grid file with such settings laid over its last point."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gridlaw.modules.catalog import resolve_architecture
from gridlaw.modules.training.schedule import ScheduleSettings
from gridlaw.modules.training.settings import OptimizerSettings, TrainingSettings
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.problems import listed, nearest
from gridlaw.platform.tuning.space import Value

ARCHITECTURE, TRAINING, ROPE = "architecture", "training", "rope"
STUDY_KEYS = ("storage", "parallel", "max_hours", "max_flops")
"""Keys of ``run:`` that a grid file without ``tune:`` does not have."""
TUNED_SUFFIX = "-tuned"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting. path: ("architecture", "gamma_base"), ("training", "optimizer", "lr"), ("rope", "base")."""

    path: tuple[str, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)


class Settings:
    """The settings of a file's last point: its mixers', all of training, and the base of its positions."""

    def __init__(self, spec: GridSpec) -> None:
        (entry,) = spec.blocks()[-1].architectures
        mixers = resolve_architecture(spec.architecture_for(entry.name)).pattern
        paths: list[tuple[str, ...]] = [(ARCHITECTURE, key) for mixer in mixers for key in mixer.setting_names()]
        paths += [(TRAINING, "optimizer", field.name) for field in dataclasses.fields(OptimizerSettings)]
        paths += [(TRAINING, "schedule", field.name) for field in dataclasses.fields(ScheduleSettings)]
        own = [field.name for field in dataclasses.fields(TrainingSettings)]
        paths += [(TRAINING, key) for key in own if key not in ("optimizer", "schedule")]
        paths.append((ROPE, "base"))
        self._known = [Setting(path=path) for path in dict.fromkeys(paths)]

    def resolve(self, name: str, place: str) -> Setting:
        """The setting that a file means by ``name``: its path, or an ending of it that no other has."""
        parts = tuple(name.split("."))
        found = [each for each in self._known if each.path[-len(parts) :] == parts]
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInput(
                place, allowed="a setting's name that means one", hint=f"Write {' or '.join(s.name for s in found)}"
            )
        names = [self.short(each) for each in self._known]
        meant = nearest(parts[-1], [each.path[-1] for each in self._known])
        full = [self.short(each) for each in self._known if each.path[-1] == meant]
        raise BadInput(
            place,
            allowed=f"a setting of the training or the architecture: {listed(names, 40)}",
            hint=f"Did you mean {' or '.join(full)}?" if full else "",
        )

    def short(self, setting: Setting) -> str:
        """The shortest ending of a setting's path that no other has: its parameter's name in the study."""
        for length in range(1, len(setting.path)):
            ending = setting.path[-length:]
            if sum(each.path[-length:] == ending for each in self._known) == 1:
                return ".".join(ending)
        return setting.name


def with_settings(spec: GridSpec, values: Mapping[Setting, Value], *, name: str | None = None) -> dict[str, Any]:
    """The tune file as a grid file, as plain values, with settings laid over its last point.

    The architecture is written out as a variant of itself where one of its own or of training's settings changes.
    name: of the experiment, if another.
    """
    whole: dict[str, Any] = copy.deepcopy(spec.given())
    whole.pop("tune", None)
    for key in STUDY_KEYS:
        whole.get("run", {}).pop(key, None)
    if name is not None:
        whole["name"] = name
    block = whole["stages"][-1] if whole.get("stages") else whole
    (entry,) = block["architectures"]
    own = {setting.path[1]: value for setting, value in values.items() if setting.path[0] == ARCHITECTURE}
    training = _nested((*setting.path[1:], value) for setting, value in values.items() if setting.path[0] == TRAINING)
    if own or training:
        if isinstance(entry, str):
            entry = {"name": entry}
        if "of" not in entry and "pattern" not in entry:
            entry = {**entry, "name": entry["name"] + TUNED_SUFFIX, "of": entry["name"]}
        entry = entry | own
        if training:
            entry["training"] = _laid_over(entry.get("training", {}), training)
        block["architectures"] = [entry]
    for setting, value in values.items():
        if setting.path[0] == ROPE:
            block["rope"] = {**block.get("rope", {}), setting.path[1]: value}
    return whole


def _nested(paths: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """(a, b, value) → {a: {b: value}}."""
    found: dict[str, Any] = {}
    for *keys, last, value in paths:
        inner = found
        for key in keys:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **{key: {**base.get(key, {}), **v} if isinstance(v, dict) else v for key, v in over.items()}}
