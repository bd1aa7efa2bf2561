"""Which evaluations exist and what a grid file's ``evaluate:`` list asks for. Free of torch.

A new evaluation is a settings class in ``settings``, a module with ``compute(run: EvaluationRun) -> dict`` and one row
here. Benchmarks through other packages belong here, too, as rows whose module calls them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gridlaw.pipelines.evaluations.settings import (
    EvaluationSettings,
    LossSettings,
    NiahSettings,
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

    def settings_dict(self) -> dict[str, Any]:
        """What enters the evaluation's fingerprint beside its point: all settings and the metric's version."""
        return {"name": self.name, "version": self.settings.version, **self.settings.to_dict()}


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
