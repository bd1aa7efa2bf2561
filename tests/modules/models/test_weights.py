"""Names and shapes of weights without torch: as the built modules have them, and what goes over by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

import tiny
from gridlaw.modules.catalog import architecture_names, model_config, resolve_architecture
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.checkpoint import save_model
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.models.weights import model_shapes, saved_shapes, transfer_by_name
from gridlaw.modules.scale import SCALES


def config_of(name: str, scale: str = "n3") -> ModelConfig:
    return model_config(tiny.tiny_architecture(name), SCALES[scale], vocab_size=257, context=64)


@pytest.mark.parametrize("scale", ["n2", "S2", "switch-1.5b"])
@pytest.mark.parametrize("name", [*architecture_names(), *tiny.ARCHITECTURES])
def test_shapes_told_without_torch_are_the_built_models(name: str, scale: str) -> None:
    config = config_of(name, scale)
    with torch.device("meta"):
        built = {key: tuple(tensor.shape) for key, tensor in DecoderLM(config).named_parameters()}
    assert model_shapes(config) == built


def test_a_saved_models_shapes_are_read_from_the_header(tmp_path: Path) -> None:
    model = tiny.tiny_model(resolve_architecture("gdn-conv"))
    save_model(model, tmp_path)
    assert saved_shapes(tmp_path) == {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "long header", "no offsets"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    save_model(tiny.tiny_model(resolve_architecture("full")), tmp_path)
    path = tmp_path / "model.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [2]}}).encode()
    path.write_bytes(
        {
            "cut": path.read_bytes()[:-8],
            "empty": b"",
            "text": b"not a model at all",
            "long header": struct.pack("<Q", 2**60) + b"{}",
            "no offsets": struct.pack("<Q", len(header)) + header,
        }[damage]
    )
    with pytest.raises(BadSetting, match="a whole safetensors file"):
        saved_shapes(tmp_path)


@pytest.mark.parametrize(
    ("child", "new"),
    [
        ("swiattn", "layers.0–3.mixer.router.weight, layers.0–3.mixer.router.bias"),
        ("duo", "layers.0–3.mixer.gate"),
        ("swa-only", "nothing"),
        ("sh-3to1", "nothing"),
    ],
)
def test_from_full_only_routers_and_gates_are_new(child: str, new: str) -> None:
    own, given = model_shapes(config_of(child)), model_shapes(config_of("full"))
    assert own is not None and given is not None
    found = transfer_by_name(own, given, where="full")
    assert found.words() == f"{len(given)} tensors taken over; new: {new}; left aside: nothing"
    back = transfer_by_name(given, own, where=child)
    assert (back.new, set(back.unused)) == ((), set(found.new))


def test_a_layer_of_another_shape_is_refused_with_its_name() -> None:
    own, given = model_shapes(config_of("lightning")), model_shapes(config_of("full"))
    assert own is not None and given is not None
    with pytest.raises(BadSetting, match=r"pretrain: layers.0.ffn.gate_proj.weight is \(120, 48\).*\(112, 48\)"):
        transfer_by_name(own, given, where="pretrain")


def test_layers_apart_are_told_apart() -> None:
    own, given = model_shapes(config_of("gdn")), model_shapes(config_of("full"))
    assert own is not None and given is not None
    given = {name: shape for name, shape in given.items() if "layers.0" not in name and "layers.2" not in name}
    assert "layers.0, 2.mixer.A_log" in transfer_by_name(own, given, where="full").words()
