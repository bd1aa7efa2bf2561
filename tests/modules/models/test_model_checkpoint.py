"""Folders of safetensors and config: what is refused, and with which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tiny
from gridlaw.modules.catalog import resolve_architecture
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.checkpoint import load_model, load_weights, save_model, transfer_weights
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.models.weights import load_config


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_model(tiny.tiny_model(resolve_architecture("swa-16")), tmp_path / "model")


def test_loaded_in_another_precision(saved: Path) -> None:
    model = load_model(saved, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not model.training
    assert load_config(saved) == model.config


def test_nothing_but_the_two_files_is_written(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]


def test_another_scale_is_refused(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["ffn_dim"] += 8
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        BadSetting, match=r"ffn.gate_proj.weight is \(48, 32\); allowed: shape \(56, 32\).*another scale"
    ):
        load_model(saved)


def test_another_depth_is_refused(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    layers = config["layers"]
    config["layers"] = layers * 2
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadSetting, match=r"allowed: a tensor layers.2.*It has none"):
        load_model(saved)
    config["layers"] = layers[:1]
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadSetting, match=r"tensors is \['layers.1.*the model's own"):
        load_model(saved)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "last.ckpt"])
def test_a_pickle_is_refused_unopened(tmp_path: Path, name: str) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "opened"),))  # type: ignore[return-value]

    torch.save({"weight": Trap()}, tmp_path / name)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(BadSetting, match=r"allowed: safetensors \(model.safetensors\)\. A pickle can run code"):
            load_weights(path)
    (tmp_path / name).rename(tmp_path / "model.safetensors")  # under the right name, too
    with pytest.raises(BadSetting, match="A pickle can run code"):
        load_weights(tmp_path)
    assert not (tmp_path / "opened").exists()


def test_a_cut_file_is_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadSetting, match="a whole safetensors file"):
        load_model(saved)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(BadSetting, match=r"a folder with model.safetensors and config.json"):
        load_model(tmp_path / "nothing")
    (saved / "config.json").unlink()
    with pytest.raises(BadSetting, match=r"config.json is missing"):
        load_model(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(BadSetting, match="allowed: JSON"):
        load_model(saved)
    (saved / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(BadSetting, match="model_type 'gridlaw'"):
        load_model(saved)


def test_weights_go_over_by_name_and_what_is_new_is_listed() -> None:
    full = tiny.tiny_model(resolve_architecture("full"))
    duo = DecoderLM(tiny.tiny_model(resolve_architecture("duo-16")).config).initialise(1)
    report = transfer_weights(duo, full.state_dict(), where="pretrain/full/100N")
    assert report.new == ("layers.0.mixer.gate", "layers.1.mixer.gate")
    assert report.unused == ()
    assert torch.equal(duo.embedding.weight, full.embedding.weight)
    back = transfer_weights(full, duo.state_dict())
    assert back.unused == report.new
    wide = tiny.tiny_model(resolve_architecture("full")).state_dict()
    wide["head.weight"] = torch.zeros(99, 32)
    with pytest.raises(BadSetting, match=r"pretrain/full/100N: head.weight is \(99, 32\); allowed: shape \(61, 32\)"):
        transfer_weights(duo, wide, where="pretrain/full/100N")
    with pytest.raises(BadSetting, match="tensors named as the model's"):
        transfer_weights(duo, {"x": torch.zeros(1)})
