"""What is known of a model's weights without torch: names and shapes, and what goes over from one model to another.

A saved model is a folder with ``model.safetensors`` and ``config.json``; only the header of the former is read here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.config import ModelConfig

WEIGHTS, CONFIG = "model.safetensors", "config.json"
MODEL_TYPE = "gridlaw"
_MAX_HEADER_BYTES = 100_000_000  # as the safetensors library has it

Shape = tuple[int, ...]


def load_config(folder: str | Path) -> ModelConfig:
    """The config of a saved model."""
    path = Path(folder) / CONFIG
    try:
        values = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise BadSetting(
            "checkpoint", seen=str(folder), allowed=f"a folder with {WEIGHTS} and {CONFIG}", hint=f"{path} is missing"
        ) from None
    except ValueError as error:
        raise BadSetting("checkpoint: config", seen=str(path), allowed="JSON", hint=str(error)) from None
    if not isinstance(values, dict) or values.pop("model_type", None) != MODEL_TYPE:
        raise BadSetting(
            "checkpoint: config", seen=str(path), allowed=f"model_type {MODEL_TYPE!r}, as gridlaw writes it"
        )
    return ModelConfig.from_dict(values)


def saved_shapes(folder: str | Path) -> dict[str, Shape]:
    """Shapes by name of the tensors in a saved model, from the header of its file; BadSetting for a cut-off one."""
    path = Path(folder) / WEIGHTS
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length) if length <= _MAX_HEADER_BYTES else b"")
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in entries.items()}
        end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except OSError as error:
        raise BadSetting(
            "checkpoint", seen=str(path), allowed=f"a file {WEIGHTS}", hint=error.strerror or str(error)
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise _not_whole(path) from None
    if path.stat().st_size < end:
        raise _not_whole(path)
    return shapes


def _not_whole(path: Path) -> BadSetting:
    return BadSetting(
        "checkpoint", seen=str(path), allowed="a whole safetensors file", hint="Copy it again or export it anew"
    )


def model_shapes(config: ModelConfig) -> dict[str, Shape] | None:
    """Shapes by name of a model's parameters; None if one of its mixers does not tell (``weight_shapes``)."""
    scale, width = config.scale, config.d_model
    shapes: dict[str, Shape] = {"embedding.weight": (config.vocab_size, width)}
    for index, spec in enumerate(config.mixers()):
        own = spec.weight_shapes(scale)
        if own is None:
            return None
        ffn = spec.ffn_dim(scale)
        layer: dict[str, Shape] = {
            "mixer_norm.weight": (width,),
            **{f"mixer.{name}": shape for name, shape in own.items()},
            "ffn_norm.weight": (width,),
            "ffn.gate_proj.weight": (ffn, width),
            "ffn.up_proj.weight": (ffn, width),
            "ffn.down_proj.weight": (width, ffn),
        }
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | {"final_norm.weight": (width,), "head.weight": (config.vocab_size, width)}


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What goes over from one model's weights to another's, by parameter name.

    transferred: taken over. new: those of the other model that keep their initial values. unused: left aside.
    """

    transferred: tuple[str, ...]
    new: tuple[str, ...]
    unused: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"transferred": list(self.transferred), "new": list(self.new), "unused": list(self.unused)}

    def words(self) -> str:
        """For people: ``42 tensors taken over; new: layers.0–3.mixer.gate; left aside: nothing``."""
        return (
            f"{len(self.transferred)} tensors taken over; new: {grouped(self.new)}; left aside: {grouped(self.unused)}"
        )


def transfer_by_name(own: Mapping[str, Shape], given: Mapping[str, Shape], *, where: str) -> Transfer:
    """What a model with shapes ``own`` takes over of weights with shapes ``given``: all that both have by name.

    where: how messages call the weights. BadSetting if nothing goes over, or if a shape differs.
    """
    common = [name for name in own if name in given]
    if not common:
        raise BadSetting(where, seen=sorted(given)[:3], allowed=f"tensors named as the model's: {list(own)[:3]}")
    for name in common:
        if tuple(given[name]) != tuple(own[name]):
            raise BadSetting(
                f"{where}: {name}", seen=tuple(given[name]), allowed=f"shape {tuple(own[name])}",
                hint="The weights are of another scale, vocabulary or kind of layer than the model",
            )  # fmt: skip
    return Transfer(
        transferred=tuple(common),
        new=tuple(name for name in own if name not in given),
        unused=tuple(sorted(given.keys() - own.keys())),
    )


def grouped(names: Iterable[str]) -> str:
    """Names with equal parts in several layers told once: ``layers.0, 2.mixer.sink``."""
    layers: dict[str, list[int]] = {}
    for name in names:
        parts = name.split(".")
        is_layer = parts[0] == "layers" and len(parts) > 2 and parts[1].isdigit()
        found = layers.setdefault(".".join(parts[2:]) if is_layer else name, [])
        if is_layer:
            found.append(int(parts[1]))
    told = [f"layers.{_ranges(sorted(indices))}.{name}" if indices else name for name, indices in layers.items()]
    return ", ".join(told) or "nothing"


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] → ``0–2, 5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in spans)
