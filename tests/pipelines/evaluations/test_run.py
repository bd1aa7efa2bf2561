"""``evaluate`` from a saved folder, as the grid calls it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.prepare import PreparedData
from gridlaw.modules.models import checkpoint
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.models.weights import CONFIG, WEIGHTS
from gridlaw.modules.training.settings import TrainingSettings
from gridlaw.pipelines.evaluations.registry import KINDS
from gridlaw.pipelines.evaluations.run import evaluate
from gridlaw.platform.errors import BadInput, GridlawError

Models = Callable[[str], DecoderLM]


@pytest.fixture
def saved(models: Models, tmp_path: Path) -> Path:
    return checkpoint.save_model(models("full"), tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "settings"),
    [("loss", {"tokens": 3000}), ("niah", {"depths": 2, "lengths": 1, "samples": 2})],
)
def test_results_are_json_with_the_promised_metrics(
    saved: Path, prepared: PreparedData, tmp_path: Path, name: str, settings: dict[str, int]
) -> None:
    shown: list[tuple[int, int]] = []
    result = evaluate(
        name,
        settings,
        model_folder=saved,
        prepared_folder=prepared.folder,
        work_folder=tmp_path / "work",
        progress=lambda done, total: shown.append((done, total)),
    )
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["name"] == name
    assert KINDS[name].metrics.keys() <= result["metrics"].keys()
    assert all(isinstance(value, float) for value in result["metrics"].values())
    assert result["num_samples"] > 0
    assert shown == sorted(shown)
    assert shown[-1][0] == shown[-1][1] >= 4  # examples, not batches


def test_a_store_that_vanished_is_not_made_again(tmp_path: Path) -> None:
    """A worker makes its own folder and nothing above it: else the driver would believe an empty store."""
    from gridlaw.modules.training.build import adopt as adopt_weights
    from gridlaw.pipelines.stages.evaluate import evaluate as evaluate_stage
    from gridlaw.pipelines.stages.evaluate import examples as examples_stage
    from gridlaw.pipelines.stages.train import adopt, decay

    gone = tmp_path / "store" / "attempts" / "1"
    with pytest.raises(FileNotFoundError):
        evaluate_stage({"name": "loss", "work": str(gone)})
    with pytest.raises(FileNotFoundError):
        examples_stage({"name": "niah", "work": str(gone)})
    with pytest.raises(FileNotFoundError):
        adopt({"folder": str(gone)})
    config = model_config(resolve_architecture("full"), resolve_scale("n1"), vocab_size=257, context=64)
    source = checkpoint.save_model(DecoderLM(config).initialise(0), tmp_path / "base")
    training = TrainingSettings.from_dict({"batch_tokens": 64, "optimizer": {"lr": 0.01}}).to_dict()
    job = {"model": config.to_dict(), "training": training, "seed": 0, "data": str(tmp_path), "context": 64}
    with pytest.raises(FileNotFoundError):
        decay({"job": {**job, "folder": str(gone), "accelerator": "cpu", "until_step": 1}, "run_id": "1"})
    with pytest.raises(FileNotFoundError):
        adopt_weights(config.to_dict(), seed=0, start_weights=str(source), folder=gone)
    assert not (tmp_path / "store").exists()


def test_second_run_loads_no_model(
    saved: Path, prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> dict:
        return evaluate(
            "loss",
            {"tokens": 3000},
            model_folder=saved,
            prepared_folder=prepared.folder,
            work_folder=tmp_path / "work",
        )

    first = run()
    monkeypatch.setattr(checkpoint, "load_model", lambda *a, **k: pytest.fail("loaded again"))
    assert run() == first


def test_parts_of_other_weights_or_settings_are_not_used(
    saved: Path, models: Models, prepared: PreparedData, tmp_path: Path
) -> None:
    def measure(folder: Path, tokens: int = 3000) -> float:
        return evaluate(
            "loss",
            {"tokens": tokens},
            model_folder=folder,
            prepared_folder=prepared.folder,
            work_folder=tmp_path / "work",
        )["metrics"]["loss"]

    other = DecoderLM(models("full").config).initialise(7)
    folder = checkpoint.save_model(other, tmp_path / "other")
    assert len({measure(saved), measure(folder), measure(saved, tokens=5000)}) == 3


def test_parts_of_another_architecture_with_the_same_weights_are_not_used(
    saved: Path, prepared: PreparedData, tmp_path: Path
) -> None:
    """A point of budget 0: its base's file of weights, to the byte, under a config of its own."""
    folder = tmp_path / "zero-shot"
    folder.mkdir()
    shutil.copy(saved / WEIGHTS, folder / WEIGHTS)
    config = model_config(resolve_architecture("swa-16"), resolve_scale("n1"), vocab_size=257, context=256)
    (folder / CONFIG).write_text(json.dumps({"model_type": "gridlaw", **config.to_dict()}))

    def measure(model: Path, work: str) -> float:
        result = evaluate(
            "loss",
            {"tokens": 3000},
            model_folder=model,
            prepared_folder=prepared.folder,
            work_folder=tmp_path / work,
        )
        return result["metrics"]["loss"]

    base = measure(saved, "work")
    assert measure(folder, "work") == measure(folder, "alone") != base


def test_checkpoint_of_another_vocabulary_is_refused(prepared: PreparedData, tmp_path: Path) -> None:
    config = model_config(resolve_architecture("full"), resolve_scale("n1"), vocab_size=300, context=256)
    folder = checkpoint.save_model(DecoderLM(config).initialise(0), tmp_path / "model")
    with pytest.raises(BadInput, match=r"vocabulary of the model in .* is 300; allowed: 257"):
        evaluate("loss", {}, model_folder=folder, prepared_folder=prepared.folder, work_folder=tmp_path)


def test_missing_folders_are_bad_input(saved: Path, prepared: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="checkpoint is"):
        evaluate("loss", {}, model_folder=tmp_path / "no", prepared_folder=prepared.folder, work_folder=tmp_path)
    with pytest.raises(BadInput, match="prepared data folder is"):
        evaluate("loss", {}, model_folder=saved, prepared_folder=tmp_path / "no", work_folder=tmp_path)
    with pytest.raises(BadInput, match="Did you mean loss"):
        evaluate("los", {}, model_folder=saved, prepared_folder=prepared.folder, work_folder=tmp_path)


def test_results_that_are_not_finite_are_a_failure(models: Models, prepared: PreparedData, tmp_path: Path) -> None:
    broken = DecoderLM(models("full").config).initialise(0)
    with torch.no_grad():
        broken.head.weight.fill_(float("nan"))
    folder = checkpoint.save_model(broken, tmp_path / "model")
    with pytest.raises(GridlawError, match="loss is nan; the model's output is not finite"):
        evaluate(
            "loss",
            {"tokens": 2000},
            model_folder=folder,
            prepared_folder=prepared.folder,
            work_folder=tmp_path / "work",
        )
