"""A model as a folder for use outside training: model.safetensors and config.json. Pickles are never opened.

Not the checkpoint for resuming (that one holds optimizer state and belongs to training).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.models.weights import CONFIG, MODEL_TYPE, WEIGHTS, Transfer, load_config, transfer_by_name

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def save_model(model: DecoderLM, folder: str | Path) -> Path:
    """Write the model; each file is written aside, synced and renamed, the config last. Returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    _write(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    config = {"model_type": MODEL_TYPE, **model.config.to_dict()}
    _write(folder / CONFIG, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode())
    return folder


def load_model(
    folder: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> DecoderLM:
    """The saved model, in evaluation mode. dtype: None keeps the saved one."""
    tensors = load_weights(folder)
    config = load_config(folder)
    with torch.device("meta"):
        model = DecoderLM(config)
    check_same_shapes(model, tensors, where=str(folder))
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.requires_grad_(True).to(device=device, dtype=dtype).eval()


def load_weights(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of a saved model by name; a pickle is refused by its name and by its first bytes."""
    path = Path(folder)
    if path.suffix in _PICKLE_SUFFIXES:
        raise _is_pickle(path)
    if path.is_dir():
        pickles = [found for found in sorted(path.iterdir()) if found.suffix in _PICKLE_SUFFIXES]
        if pickles and not (path / WEIGHTS).exists():
            raise _is_pickle(pickles[0])
        path = path / WEIGHTS
    if not path.is_file():
        raise BadSetting("checkpoint", seen=str(path), allowed=f"a folder with {WEIGHTS} and {CONFIG}")
    with open(path, "rb") as file:
        start = file.read(4)
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")) and _looks_pickled(path):
        raise _is_pickle(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise BadSetting(
            "checkpoint", seen=str(path), allowed="a whole safetensors file",
            hint=f"It cannot be read ({error}); copy it again or go back to an earlier checkpoint",
        ) from None  # fmt: skip


def _looks_pickled(path: Path) -> bool:
    """A safetensors file starts with its header's length, eight bytes, and an opening brace."""
    with open(path, "rb") as file:
        start = file.read(9)
    header = int.from_bytes(start[:8], "little")
    return start[8:9] != b"{" or header > path.stat().st_size


def _is_pickle(path: Path) -> BadSetting:
    return BadSetting(
        "checkpoint", seen=str(path), allowed=f"safetensors ({WEIGHTS})",
        hint="A pickle can run code when it is opened, so it is not opened; convert it with its own project's tools",
    )  # fmt: skip


def check_same_shapes(model: nn.Module, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """Raise BadSetting unless the tensors are the model's parameters by name and shape."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in wanted.items():
        if name not in tensors:
            raise BadSetting(f"checkpoint {where}", allowed=f"a tensor {name} of shape {shape}", hint="It has none")
        if tuple(tensors[name].shape) != shape:
            raise BadSetting(
                f"checkpoint {where}: {name}", seen=tuple(tensors[name].shape), allowed=f"shape {shape}",
                hint="The checkpoint is of another scale or vocabulary than the model",
            )  # fmt: skip
    if extra := sorted(tensors.keys() - wanted.keys()):
        raise BadSetting(f"checkpoint {where}: tensors", seen=extra[:3], allowed="the model's own, and no others")


@torch.no_grad()
def transfer_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, where: str = "weights") -> Transfer:
    """Copy by name what both have, as when a model goes on as another architecture. Another shape raises BadSetting."""
    own = dict(model.named_parameters())
    found = transfer_by_name(_shapes(own), _shapes(tensors), where=where)
    for name in found.transferred:
        own[name].copy_(tensors[name])
    return found


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
