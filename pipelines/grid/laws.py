"""Which laws can be fitted now: values of points as they arrive, and the identity of each law's newest fit."""

from __future__ import annotations

from typing import Any

from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.pipelines.grid.state import GridState, law_name
from gridlaw.pipelines.laws.forms import get_form
from gridlaw.pipelines.plan import GridPlan, LawPlan, PointPlan
from gridlaw.platform import identity

Refit = tuple[int, str, int, int]
"""(position of the law, architecture, number of measured points, resamples of the intervals)."""

QUICK_RESAMPLES = 200
"""While more points are on their way: a refit costs a fifth, and its interval is replaced by the next."""
FINAL_RESAMPLES = 1000


class LawBook:
    """Values of done points by evaluation, and what each law of each architecture is fitted to."""

    def __init__(self, plan: GridPlan, state: GridState) -> None:
        self._plan, self._state = plan, state
        self._metrics = {point.name: state.metrics(point.name) for point in plan.points}
        self._without = {point.name: state.without_value(point.name, plan) for point in plan.points}
        self._trunks = {trunk.name: trunk for trunk in plan.trunks}
        self._fitted: dict[tuple[int, str], str] = {}
        self.architectures = tuple(dict.fromkeys(trunk.architecture for trunk in plan.trunks))

    def outdated(self) -> list[Refit]:
        """Laws whose newest fit is missing, unfinished, quick, or of other points than there are now."""
        found = []
        for index, law in enumerate(self._plan.laws):
            for architecture in self.architectures:
                run = self._state.laws.get(law_name(law, architecture))
                stored = run.fingerprint if run is not None and run.finished else ""
                newest = self._fitted.get((index, architecture), stored)
                if newest != self.identity_of(index, architecture, FINAL_RESAMPLES)[1]:
                    found += self._refit(index, architecture, FINAL_RESAMPLES)
        return found

    def fitted(self, index: int, architecture: str, fingerprint: str) -> None:
        """A fit is in the ledger."""
        self._fitted[index, architecture] = fingerprint

    def gained(
        self,
        point: PointPlan,
        evaluation: Evaluation,
        metrics: dict[str, float],
        *,
        outcome: str | None,
        more_to_come: bool,
    ) -> list[Refit]:
        """Take a point's new metrics in; the refits that they call for.

        outcome: why some of the evaluation's metrics have no value. more_to_come: for this architecture.
        """
        self._metrics.setdefault(point.name, {}).update(metrics)
        missing = evaluation.kind.metrics.keys() - metrics.keys()
        self._without.setdefault(point.name, {}).update(dict.fromkeys(missing, outcome or "no value"))
        found = []
        for index, law in enumerate(self._plan.laws):
            measured = law.metric in metrics and law.metric in evaluation.kind.metrics
            if measured and law.roles.get(point.name) in ("fit", "verify"):
                resamples = QUICK_RESAMPLES if more_to_come else FINAL_RESAMPLES
                found += self._refit(index, point.id.architecture, resamples)
        return found

    def metrics_of(self, point: str) -> dict[str, float]:
        """What is known of a point by now."""
        return self._metrics[point]

    def task(self, index: int, architecture: str, num_resamples: int) -> dict[str, Any]:
        """The refit stage's task: every point of the architecture that has its value now."""
        law = self._plan.laws[index]
        return {
            "architecture": architecture,
            "target": law.target,
            "form": law.form,
            "num_resamples": num_resamples,
            "points": [
                {
                    "name": point.name,
                    "scale": point.id.scale,
                    "num_params": self._trunks[point.trunk].num_params,
                    "tokens": point.tokens,
                    "value": self._metrics[point.name][law.metric],
                    "trunk": point.trunk,
                    "role": law.roles[point.name],
                }
                for point in self._measured(law, architecture)
            ],
            "excluded": self._excluded(law, architecture),
        }

    def identity_of(self, index: int, architecture: str, num_resamples: int) -> tuple[dict[str, Any], str]:
        """Identity and fingerprint of the fit to what is there now: evaluations' fingerprints and fit settings."""
        law = self._plan.laws[index]
        prints: dict[str, list[str]] = {"fit": [], "verify": []}
        for point in self._measured(law, architecture):
            evaluation = next(each for each in self._plan.evaluations if law.metric in each.kind.metrics)
            prints[law.roles[point.name]].append(self._plan.evaluation_fingerprint(point, evaluation))
        values = identity.law_identity(
            fitted=prints["fit"],
            verified=prints["verify"],
            fit={"target": law.target, "form": law.form, "num_resamples": num_resamples},
        )
        return values, identity.fingerprint(values)

    def _refit(self, index: int, architecture: str, num_resamples: int) -> list[Refit]:
        """A refit once the form has as many points as parameters; the number of points tells refits apart."""
        law = self._plan.laws[index]
        measured = self._measured(law, architecture)
        fitted = sum(law.roles[point.name] == "fit" for point in measured)
        enough = fitted >= get_form(law.form).num_parameters
        return [(index, architecture, len(measured), num_resamples)] if enough else []

    def _measured(self, law: LawPlan, architecture: str) -> list[PointPlan]:
        return [
            point
            for point in self._plan.points
            if point.id.architecture == architecture
            and law.roles.get(point.name) in ("fit", "verify")
            and law.metric in self._metrics[point.name]
        ]

    def _excluded(self, law: LawPlan, architecture: str) -> dict[str, str]:
        own = [point for point in self._plan.points if point.id.architecture == architecture]
        excluded = {p.name: "left out by exclude:" for p in own if law.roles.get(p.name) == "exclude"}
        without = {
            point.name: self._without[point.name][law.metric]
            for point in own
            if law.roles.get(point.name) in ("fit", "verify") and law.metric in self._without[point.name]
        }
        return excluded | without
