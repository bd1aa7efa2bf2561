"""A real model and real data for the evaluations' tests: small, made once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.prepare import PreparedData, prepare
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.pipelines.evaluations.registry import resolve_evaluation
from gridlaw.pipelines.evaluations.run import EvaluationRun, Parts

CONTEXT = 256

MakeRun = Callable[..., EvaluationRun]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    declaration = declare({}, base_folder=Path("."), context=CONTEXT)
    return prepare(declaration, tmp_path_factory.mktemp("data") / prepared_name(declaration))


@pytest.fixture(scope="session")
def models() -> Callable[[str], DecoderLM]:
    """An untrained model of an architecture at n1, with initial weights large enough to tell tokens apart."""
    made: dict[str, DecoderLM] = {}

    def make(architecture: str = "full") -> DecoderLM:
        if architecture not in made:
            config = model_config(
                resolve_architecture(architecture), resolve_scale("n1"), vocab_size=257, context=CONTEXT
            )
            model = DecoderLM(config).initialise(0).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() > 1:
                        parameter.mul_(6)
            made[architecture] = model
        return made[architecture]

    return make


@pytest.fixture
def make_run(prepared: PreparedData, models: Callable[[str], DecoderLM], tmp_path: Path) -> MakeRun:
    """An EvaluationRun of an entry; keywords replace its fields, ``architecture`` chooses the model."""

    def make(entry: Any, *, architecture: str = "full", **fields: Any) -> EvaluationRun:
        model = models(architecture)
        given = {
            "settings": resolve_evaluation(entry).settings,
            "prepared": prepared,
            "parts": Parts(tmp_path, "test"),
            "work_folder": tmp_path,
            "model_folder": tmp_path,
            "model_config": model.config.to_dict(),
            "load": lambda: model,
        }
        return EvaluationRun(**{**given, **fields})

    return make
