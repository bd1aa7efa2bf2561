"""What an evaluation needs beside the evaluated model: who finds key tokens, a corpus, and examples made once for all.

Torch-free and without tokenising: a plan asks here what enters fingerprints, and everything that can be refused before
anything starts is refused here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gridlaw.modules.data.hashing import file_sha256
from gridlaw.modules.data.sources import resolve_source
from gridlaw.modules.errors import BadSetting
from gridlaw.pipelines.evaluations.key_tokens import KeyTokenFile
from gridlaw.pipelines.evaluations.registry import CorpusSource, Evaluation, EvaluatorSource
from gridlaw.pipelines.evaluations.settings import LongpplSettings
from gridlaw.platform.errors import BadInput
from gridlaw.platform.identity import fingerprint

MODEL_FILES = (".json", ".safetensors", ".model", ".txt")
"""Endings of a model folder's files that its numbers depend on: config, weights, tokenizer."""
NOT_EXAMPLES = {"longppl": ("min_key_tokens",)}
"""Settings that judge a model's losses and change no example."""
ALLOWED = "a point of this grid (full/n3/20N), a Hugging Face model (NAME or ORGANISATION/NAME), or ./FOLDER"

FindPoint = Callable[[str], tuple[str, str, int]]
"""A point of the grid by parts of its name: (name, fingerprint, context); ValueError says why it is none."""


def with_sources(evaluation: Evaluation, *, base_folder: Path, find_point: FindPoint | None) -> Evaluation:
    """The evaluation with its evaluator and corpus looked up. BadInput for what cannot be used.

    base_folder: where relative paths start. find_point: None where there is no grid.
    """
    settings = evaluation.settings
    if not isinstance(settings, LongpplSettings):
        return evaluation
    evaluator = _evaluator(settings, base_folder, find_point)
    corpus = None
    if settings.corpus is not None:
        column = {} if settings.text_column is None else {"text_column": settings.text_column}
        try:
            entry = {"source": settings.corpus, **column}
            identity, location = resolve_source(entry, base_folder=base_folder, field=settings.field("corpus"))
        except BadSetting as error:
            field = error.field.removesuffix(".source")
            raise BadInput(field, seen=error.seen, allowed=error.allowed, hint=error.hint) from None
        corpus = CorpusSource(identity=identity, location=location)
    elif settings.text_column is not None:
        raise BadInput(
            settings.field("text_column"), seen=settings.text_column, allowed="nothing without a corpus of its own"
        )
    return replace(evaluation, evaluator=evaluator, corpus=corpus)


def _evaluator(settings: LongpplSettings, base_folder: Path, find_point: FindPoint | None) -> EvaluatorSource:
    field, name = settings.field("evaluator"), settings.evaluator
    outside = settings.evaluator_path
    is_named = outside is None and settings.evaluator_point is None
    if settings.evaluator_revision is not None and not is_named:
        raise BadInput(
            settings.field("evaluator_revision"),
            seen=settings.evaluator_revision,
            allowed="nothing beside a point or a path, which are told by their content",
            hint="Remove it",
        )
    if outside is not None:
        return _local(settings, (base_folder / Path(outside).expanduser()).resolve())
    if settings.evaluator_point is not None:
        if find_point is None:
            raise BadInput(
                field, seen=name, allowed="a Hugging Face model or ./FOLDER", hint="Points are known within a grid only"
            )
        try:
            point, fingerprint, context = find_point(name)
        except ValueError as error:
            hint = f"{error}. A folder is written ./{name}"
            raise BadInput(field, seen=name, allowed=ALLOWED, hint=hint) from None
        settings.check_evaluator_context(context)
        return EvaluatorSource(identity=fingerprint, point=point)
    if (base_folder / name).is_dir():
        raise BadInput(field, seen=name, allowed=ALLOWED, hint=f"There is a folder of this name: write ./{name}")
    return EvaluatorSource(identity=name)


def _local(settings: LongpplSettings, path: Path) -> EvaluatorSource:
    """A model's folder, or a file of key tokens."""
    if path.is_file():
        KeyTokenFile.read_shared(path, settings.thresholds)
        return EvaluatorSource(identity={"key_tokens_sha256": file_sha256(path)}, file=str(path))
    config = path / "config.json"
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            settings.field("evaluator"),
            seen=settings.evaluator,
            allowed="a folder with the config.json of a causal LM, or a file of key tokens",
            hint=f"{config} cannot be read: {error}",
        ) from None
    for key in ("context", "max_position_embeddings"):
        if isinstance(values, dict) and isinstance(values.get(key), int):
            settings.check_evaluator_context(values[key])
    files = sorted(each for each in path.iterdir() if each.is_file() and each.suffix in MODEL_FILES)
    whole = hashlib.sha256("".join(f"{each.name}:{file_sha256(each)}\n" for each in files).encode())
    return EvaluatorSource(identity={"sha256": whole.hexdigest()}, folder=str(path))


@dataclass(frozen=True, kw_only=True)
class ExamplesPlan:
    """Examples that an evaluation asks all models on some data: made once, shared by all points and experiments.

    data: fingerprint of the prepared data, whose tokenizer they are cut with. context: positions of the models.
    """

    evaluation: Evaluation
    data: str
    context: int
    identity: dict[str, Any]
    fingerprint: str

    @property
    def name(self) -> str:
        """Of its run in the ledger."""
        return f"examples/{self.evaluation.name}/{self.fingerprint}"

    @property
    def label(self) -> str:
        """For people."""
        evaluator = self.evaluation.evaluator
        by = f" by {evaluator.point or getattr(self.evaluation.settings, 'evaluator', '')}" if evaluator else ""
        return f"{self.evaluation.name} {self.evaluation.kind.examples}{by}"


def plan_examples(evaluation: Evaluation, *, data: str, tokenizer: dict[str, Any], context: int) -> ExamplesPlan | None:
    """The examples of an evaluation on some data; None for an evaluation without any.

    Texts of a corpus of their own depend on the tokenizer alone, all others on the prepared data that they come from.
    """
    if not evaluation.kind.examples:
        return None
    left_out = NOT_EXAMPLES.get(evaluation.name, ())
    own = evaluation.corpus
    identity: dict[str, Any] = {
        "kind": "examples",
        "settings": {key: value for key, value in evaluation.settings_dict().items() if key not in left_out},
        "context": context,
        "text": {"data": data} if own is None else {"corpus": own.identity, "tokenizer": tokenizer},
    }
    return ExamplesPlan(
        evaluation=evaluation, data=data, context=context, identity=identity, fingerprint=fingerprint(identity)
    )
