"""Which evaluations exist and what a grid file's ``evaluate:`` list asks for. Free of torch.

A new evaluation is a settings class in ``settings``, a module with ``compute(run: EvaluationRun) -> dict`` and one row
here. Benchmarks through other packages belong here, too, as rows whose module calls them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gridlaw.pipelines.evaluations.settings import (
    EfficiencySettings,
    EvaluationSettings,
    LongpplSettings,
    LossSettings,
    NiahSettings,
    RecallSettings,
    RoutingSettings,
    nearest,
)
from gridlaw.platform.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class EvaluationKind:
    """A row of the registry.

    module: where ``compute`` is. metrics: scalar results → whether smaller ("min") or larger ("max") is better.
    examples: what its ``examples`` makes once for all models, in a word; nothing where it reads prepared data alone.
    """

    settings: type[EvaluationSettings]
    module: str
    metrics: dict[str, str]
    examples: str = ""


_FOLDER = "gridlaw.pipelines.evaluations"
KINDS: dict[str, EvaluationKind] = {
    kind.settings.name: kind
    for kind in (
        EvaluationKind(
            settings=LossSettings,
            module=f"{_FOLDER}.loss",
            metrics={"loss": "min", "bits_per_byte": "min"},
        ),
        EvaluationKind(
            settings=NiahSettings,
            module=f"{_FOLDER}.niah",
            metrics={"niah_rank_accuracy": "max", "niah_generate_accuracy": "max"},
            examples="needles",
        ),
        EvaluationKind(
            settings=LongpplSettings,
            module=f"{_FOLDER}.longppl",
            metrics={"longppl": "min"},
            examples="key tokens",
        ),
        EvaluationKind(
            settings=RecallSettings,
            module=f"{_FOLDER}.recall",
            metrics={"recall_accuracy": "max"},
            examples="texts",
        ),
        EvaluationKind(
            settings=RoutingSettings,
            module=f"{_FOLDER}.routing",
            metrics={"full_ratio": "min"},
        ),
        EvaluationKind(
            settings=EfficiencySettings,
            module=f"{_FOLDER}.efficiency",
            metrics={"decode_tokens_per_second": "max", "cache_bytes": "min"},
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class EvaluatorSource:
    """Who finds key tokens. identity: what stands for it in fingerprints, never a path; the rest is where it is.

    At most one of: point (its name in this grid), folder (a model's, on this machine), file (of key tokens that were
    found already); with none of them the settings' name is a Hugging Face model's.
    """

    identity: Any
    point: str | None = None
    folder: str | None = None
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class CorpusSource:
    """A text of an evaluation's own: identity by content, and where its files lie on this machine."""

    identity: dict[str, Any]
    location: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation that a file asks for: a name and checked settings.

    evaluator, corpus: what the settings' texts of these names mean; filled in by ``sources.with_sources``, None where
    the evaluation has no such setting (for the corpus: where the held-out documents are meant).
    """

    name: str
    settings: EvaluationSettings
    evaluator: EvaluatorSource | None = None
    corpus: CorpusSource | None = None

    @property
    def kind(self) -> EvaluationKind:
        """Its row of the registry."""
        return KINDS[self.name]

    def warnings(self) -> list[str]:
        """Sentences for people about what may change under finished runs."""
        revision = getattr(self.settings, "evaluator_revision", None)
        source = self.evaluator
        if source is None or source.point or source.folder or source.file or revision is not None:
            return []
        return [f"{self.name}: {source.identity} without evaluator_revision: if that model changes, nobody notices"]

    def settings_dict(self) -> dict[str, Any]:
        """What enters the evaluation's fingerprint beside point and corpus: all settings and the metric's version.

        An evaluator enters by its identity, so that one trained anew is another evaluation; the corpus not at all: its
        identity stands beside the settings.
        """
        values = self.settings.to_dict()
        if self.evaluator is not None:
            values["evaluator"] = self.evaluator.identity
        if self.corpus is not None:
            del values["corpus"], values["text_column"]
        return {"name": self.name, "version": self.settings.version, **values}


def evaluation_names() -> list[str]:
    """Names of all evaluations."""
    return list(KINDS)


def better_of(metric: str) -> str:
    """Whether smaller ("min") or larger ("max") values of a metric are better; larger for one that nobody knows."""
    return next((kind.metrics[metric] for kind in KINDS.values() if metric in kind.metrics), "max")


def resolve_evaluation(entry: Any) -> Evaluation:
    """An entry of ``evaluate:``, a name or ``{name: {settings}}``; BadInput for anything else."""
    values: Any = None
    if isinstance(entry, dict) and len(entry) == 1:
        ((entry, values),) = entry.items()
    if not isinstance(entry, str):
        raise BadInput("evaluate", seen=entry, allowed="a name, or one name with its settings: {niah: {samples: 3}}")
    if entry not in KINDS:
        raise BadInput("evaluate", seen=entry, allowed=f"one of {', '.join(KINDS)}", hint=nearest(entry, KINDS))
    return Evaluation(name=entry, settings=KINDS[entry].settings.read(values))


def resolve_evaluations(entries: Any) -> list[Evaluation]:
    """A whole ``evaluate:`` list; every evaluation at most once, since its metrics carry its name."""
    if not isinstance(entries, list | tuple):
        raise BadInput("evaluate", seen=entries, allowed=f"a list of {', '.join(KINDS)}")
    resolved = [resolve_evaluation(entry) for entry in entries]
    names = [evaluation.name for evaluation in resolved]
    for name in names:
        if names.count(name) > 1:
            raise BadInput("evaluate", seen=names, allowed=f"{name} once", hint="Remove the repeated entry")
    return resolved
