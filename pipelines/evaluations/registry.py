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
    """

    settings: type[EvaluationSettings]
    module: str
    metrics: dict[str, str]


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
        ),
        EvaluationKind(
            settings=LongpplSettings,
            module=f"{_FOLDER}.longppl",
            metrics={"longppl": "min"},
        ),
        EvaluationKind(
            settings=RecallSettings,
            module=f"{_FOLDER}.recall",
            metrics={"recall_accuracy": "max"},
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
class Evaluation:
    """One evaluation that a file asks for: a name and checked settings."""

    name: str
    settings: EvaluationSettings

    @property
    def kind(self) -> EvaluationKind:
        """Its row of the registry."""
        return KINDS[self.name]

    @property
    def needs_point(self) -> str | None:
        """Another point of the grid that must be finished before this evaluation can run (longppl's evaluator)."""
        return getattr(self.settings, "evaluator_point", None)

    @property
    def corpus(self) -> dict[str, Any] | None:
        """A source of its own, as ``modules.data.sources.resolve_source`` takes it; None: the held-out documents."""
        source = getattr(self.settings, "corpus", None)
        column = getattr(self.settings, "text_column", None)
        return None if source is None else {"source": source, **({} if column is None else {"text_column": column})}

    def settings_dict(self, *, evaluator: str | None = None, corpus: dict[str, Any] | None = None) -> dict[str, Any]:
        """What enters the evaluation's fingerprint beside its point: all settings and the metric's version.

        evaluator: fingerprint of the point in ``needs_point``. corpus: identity of the source in ``corpus``. Given,
        they stand in for the names, so that an evaluator trained anew or another text is another evaluation.
        """
        values = self.settings.to_dict()
        if evaluator is not None:
            values["evaluator"] = evaluator
        if corpus is not None:
            values["corpus"] = corpus
        return {"name": self.name, "version": self.settings.version, **values}


def evaluation_names() -> list[str]:
    """Names of all evaluations."""
    return list(KINDS)


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
