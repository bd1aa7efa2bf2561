"""Which mixers exist: ours by name, others through the entry-point group `gridlaw.mixers`. Free of torch.

An entry point's name is the mixer's name and its value loads a subclass of MixerSpec:

    [project.entry-points."gridlaw.mixers"]
    toy = "my_package.toy.spec:ToySpec"
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.base import MixerSpec

ENTRY_POINT_GROUP = "gridlaw.mixers"

_MIXERS: dict[str, str] = {  # name: where its spec is; one line a mixer
    "full": "gridlaw.modules.mixers.full.spec:FullSpec",
    "swa": "gridlaw.modules.mixers.swa.spec:SwaSpec",
    "headwise": "gridlaw.modules.mixers.headwise.spec:HeadwiseSpec",
    "lightning": "gridlaw.modules.mixers.lightning.spec:LightningSpec",
    "mamba2": "gridlaw.modules.mixers.mamba2.spec:Mamba2Spec",
    "gdn": "gridlaw.modules.mixers.gdn.spec:GdnSpec",
    "switch": "gridlaw.modules.mixers.switch.spec:SwitchSpec",
    "duo": "gridlaw.modules.mixers.duo.spec:DuoSpec",
}
_REGISTERED: dict[str, type[MixerSpec]] = {}


def register_mixer(spec_class: type[MixerSpec]) -> type[MixerSpec]:
    """Add a mixer in this process (a decorator); an installed package uses the entry-point group instead."""
    name = spec_class.name
    taken = _MIXERS.keys() | _REGISTERED.keys()
    if name in taken and _REGISTERED.get(name) is not spec_class:
        raise BadSetting("mixer name", seen=name, allowed="a name that is not taken", hint=f"Taken: {_names(taken)}")
    _REGISTERED[name] = spec_class
    return spec_class


def unregister_mixer(name: str) -> None:
    """Forget a mixer added with `register_mixer`."""
    _REGISTERED.pop(name, None)


@functools.cache
def _installed() -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def mixer_names() -> tuple[str, ...]:
    """Names of all mixers, ours first."""
    return tuple(dict.fromkeys([*_MIXERS, *_REGISTERED, *_installed()]))


def added_mixer_names() -> tuple[str, ...]:
    """Names of the mixers that are not ours."""
    return tuple(name for name in mixer_names() if name not in _MIXERS)


def mixer_class(name: str) -> type[MixerSpec]:
    """The spec class of a mixer; an unknown name raises BadSetting with those known and the nearest."""
    if name in _MIXERS:
        module, _, attribute = _MIXERS[name].partition(":")
        return _checked(name, getattr(importlib.import_module(module), attribute))
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _installed():
        return _checked(name, _installed()[name].load())
    raise unknown("mixer", name, mixer_names())


def _checked(name: str, loaded: Any) -> type[MixerSpec]:
    if not (isinstance(loaded, type) and issubclass(loaded, MixerSpec) and loaded.name == name):
        raise BadSetting(
            f"entry point {name!r} of group {ENTRY_POINT_GROUP}",
            seen=loaded,
            allowed=f"a subclass of gridlaw.modules.mixers.base.MixerSpec whose name is {name!r}",
            hint="Correct the entry point in the package that declares it",
        )
    return loaded


def mixer_from_dict(settings: Mapping[str, Any]) -> MixerSpec:
    """The spec from {"mixer": name, **settings}, the inverse of `MixerSpec.to_dict`."""
    rest = dict(settings)
    name = rest.pop("mixer", None)
    if not isinstance(name, str):
        raise BadSetting("layer: mixer", seen=name, allowed=_names(mixer_names()))
    return mixer_class(name).from_settings(rest)


def mixer_from_name(text: str) -> MixerSpec:
    """The spec from a pattern's word: a mixer's name and suffixes, `swa-128`, `full-nope`, `gdn-conv`."""
    parts = text.split("-")
    for length in range(len(parts), 0, -1):  # the longest name wins: a mixer may have a dash in its name
        name = "-".join(parts[:length])
        if name in mixer_names():
            return _from_suffixes(text, mixer_class(name), parts[length:])
    raise unknown("mixer", text, mixer_names())


def _from_suffixes(text: str, spec_class: type[MixerSpec], suffixes: list[str]) -> MixerSpec:
    try:
        return spec_class.from_suffixes(suffixes)
    except TypeError:
        raise BadSetting(
            "mixer",
            seen=text,
            allowed=f"{spec_class.name} with its settings: {_names(spec_class.setting_names())}",
            hint=f"Add what is missing, as in {spec_class.name}-128",
        ) from None


def unknown(kind: str, name: Any, known: Iterable[str]) -> BadSetting:
    """The error for a name that does not exist: what is known, and the nearest."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return BadSetting(kind, seen=name, allowed=_names(known), hint=f"Did you mean {near[0]!r}?" if near else "")


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)
