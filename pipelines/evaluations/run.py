"""Running one evaluation of one model: a plain function, JSON-able in and out, without Ray or MLflow.

Finished parts are kept in the work folder, keyed by everything that decides their numbers, so that an evaluation killed
half-way goes on from there and parts of another model or other settings are never taken for its own.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridlaw.modules.data.prepare import PreparedData, open_prepared
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.weights import CONFIG, WEIGHTS, load_config
from gridlaw.pipelines.evaluations.examples import DataRun, examples_folder
from gridlaw.pipelines.evaluations.inputs import Inputs, Progress
from gridlaw.pipelines.evaluations.registry import KINDS, Evaluation, resolve_evaluation
from gridlaw.platform.errors import BadInput, GridlawError

if TYPE_CHECKING:
    from gridlaw.modules.models.decoder import DecoderLM

_EDGE_BYTES = 1024 * 1024


class Parts:
    """Results of finished parts, one JSON line each, appended; a torn last line is dropped."""

    def __init__(self, folder: Path, key: str) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / f"parts-{key}.jsonl"
        self._known: dict[str, Any] = {}
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        whole = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            self._known[record["part"]] = record["result"]
        os.truncate(self.path, whole)

    def __contains__(self, part: str) -> bool:
        return part in self._known

    def __len__(self) -> int:
        return len(self._known)

    def get(self, part: str, compute: Callable[[], Any]) -> Any:
        """The kept result of a part, or ``compute()`` and keep it. Results are JSON-able."""
        if part not in self._known:
            result = compute()
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part, "result": result}) + "\n")
            self._known[part] = result
        return self._known[part]


@dataclass(frozen=True, kw_only=True)
class EvaluationRun(DataRun):
    """What ``compute`` of an evaluation gets. The model is loaded when first asked for: no part left, no model."""

    parts: Parts
    model_folder: Path
    load: Callable[[], DecoderLM]


def evaluate(
    name: str,
    settings: dict[str, Any] | None,
    *,
    model_folder: Path,
    prepared_folder: Path,
    work_folder: Path,
    progress: Progress | None = None,
    inputs: Inputs | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Evaluate the model of ``model_folder`` (config.json, model.safetensors) on prepared data.

    inputs: what the evaluation needs beside the model; ``examples`` of it are made in the work folder if no folder is
    given. device: where the model runs. Returns {name, metrics: finite scalars, details: JSON-able, num_samples}; a
    metric that has no value is absent. Raises BadInput for what cannot be evaluated, GridlawError for a result that is
    not finite.
    """
    inputs = inputs or Inputs()
    try:
        run = _open(
            name, settings, Path(model_folder), Path(prepared_folder), Path(work_folder), inputs, device, progress
        )
        result = importlib.import_module(KINDS[name].module).compute(run)
    except BadSetting as error:
        raise BadInput(error.field, seen=error.seen, allowed=error.allowed, hint=error.hint) from error
    for metric, value in result["metrics"].items():
        if not math.isfinite(value):
            raise GridlawError(f"evaluation {name}: {metric} is {value}; the model's output is not finite")
    return {"name": name, **result}


def make_examples(
    name: str,
    settings: dict[str, Any] | None,
    *,
    prepared_folder: Path,
    context: int,
    inputs: Inputs,
    progress: Progress | None = None,
    device: str = "cpu",
) -> int:
    """Make the examples of an evaluation in ``inputs.examples``; returns how many there are. Goes on after a kill.

    context: positions of the models that will be asked.
    """
    try:
        run = DataRun(
            settings=resolve_evaluation({name: settings or {}}).settings,
            prepared=open_prepared(Path(prepared_folder)),
            work_folder=examples_folder(inputs, Path()),
            model_config={"context": context},
            inputs=inputs,
            device=device,
            progress=progress,
        )
        return len(importlib.import_module(KINDS[name].module).examples(run))
    except BadSetting as error:
        raise BadInput(error.field, seen=error.seen, allowed=error.allowed, hint=error.hint) from error


def _open(
    name: str,
    settings: dict[str, Any] | None,
    model_folder: Path,
    prepared_folder: Path,
    work_folder: Path,
    inputs: Inputs,
    device: str,
    progress: Progress | None,
) -> EvaluationRun:
    evaluation = resolve_evaluation({name: settings or {}})
    prepared = open_prepared(prepared_folder)
    config = load_config(model_folder).to_dict()
    if config["vocab_size"] != prepared.vocab_size:
        raise BadInput(
            f"vocabulary of the model in {model_folder}",
            seen=config["vocab_size"],
            allowed=f"{prepared.vocab_size}, the vocabulary of the prepared data",
            hint="Evaluate on data prepared with the model's own tokenizer",
        )
    return EvaluationRun(
        settings=evaluation.settings,
        prepared=prepared,
        parts=Parts(work_folder, parts_key(evaluation, prepared, model_folder, inputs)),
        work_folder=work_folder,
        model_folder=model_folder,
        model_config=config,
        load=_loader(model_folder, device),
        inputs=inputs,
        device=device,
        progress=progress,
    )


def parts_key(evaluation: Evaluation, prepared: PreparedData, model_folder: Path, inputs: Inputs) -> str:
    """Hash of settings, data and model, cheap also for large weights: their size and both ends are taken.

    The config counts, too: a point of budget 0 may have its base's weights to the byte and be another model.
    """
    weights = model_folder / WEIGHTS
    if not weights.is_file():
        raise BadInput("model folder", seen=str(model_folder), allowed=f"a folder with {WEIGHTS}")
    values = [evaluation.settings_dict(), prepared.fingerprint, inputs.identity()]
    state = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    state.update((model_folder / CONFIG).read_bytes())
    size = weights.stat().st_size
    state.update(str(size).encode())
    with open(weights, "rb") as file:
        state.update(file.read(_EDGE_BYTES))
        file.seek(max(0, size - _EDGE_BYTES))
        state.update(file.read(_EDGE_BYTES))
    return state.hexdigest()[:16]


def _loader(model_folder: Path, device: str) -> Callable[[], DecoderLM]:
    loaded: list[DecoderLM] = []

    def load() -> DecoderLM:
        if not loaded:
            from gridlaw.modules.models.checkpoint import load_model

            loaded.append(load_model(model_folder, device=device))
        return loaded[0]

    return load
