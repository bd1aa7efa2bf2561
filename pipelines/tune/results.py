"""What a study came to: trials, front, importances; kept in the ledger, told as tables and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gridlaw.pipelines.grid.driver import Driver
from gridlaw.pipelines.grid.submission import report_name
from gridlaw.pipelines.report.markdown import table_lines
from gridlaw.pipelines.tune.plan import TunePlan, trial_name
from gridlaw.platform.addresses import redacted
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.store.base import Store
from gridlaw.platform.tuning.front import front
from gridlaw.platform.tuning.space import Value, show
from gridlaw.platform.tuning.study import Study, TrialRecord

TRIALS_TABLE, IMPORTANCES = "trials.json", "importances.json"
MOST_ROWS = 40


@dataclass(frozen=True, kw_only=True)
class Results:
    """A study as it stands. objectives: metric → min or max. front: numbers of the trials that none dominates (with one
    objective the best alone). importances: by objective, of each parameter, shares of 1; empty while there are too few
    trials.
    """

    experiment: str
    study: str
    storage: str
    sampler: str
    objectives: Mapping[str, str]
    constraints: Mapping[str, str]
    parameters: tuple[str, ...]
    planned: int
    trials: tuple[TrialRecord, ...] = ()
    front: tuple[int, ...] = ()
    importances: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    """In words, by parameter."""
    logarithmic: frozenset[str] = frozenset()
    """Parameters that vary over their logarithm."""
    has_first: bool = False

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.trials)

    @property
    def complete(self) -> list[TrialRecord]:
        return [each for each in self.trials if each.state == "complete"]

    def trial(self, number: int) -> TrialRecord:
        return next(each for each in self.trials if each.number == number)

    def point(self, trial: TrialRecord) -> list[float]:
        """Values with smaller is better."""
        return [value if self.objectives[name] == "min" else -value for name, value in trial.values.items()]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "experiment": self.experiment,
            "study": self.study,
            "storage": self.storage,
            "sampler": self.sampler,
            "objectives": dict(self.objectives),
            "constraints": dict(self.constraints),
            "planned": self.planned,
            "trials": [trial_dict(each) for each in self.trials],
            "front": list(self.front),
            "importances": {name: dict(shares) for name, shares in self.importances.items()},
        }


def trial_dict(trial: TrialRecord) -> dict[str, Any]:
    """One trial, JSON-able."""
    return {
        "number": trial.number,
        "state": trial.state,
        "params": dict(trial.params),
        "values": dict(trial.values),
        "feasible": trial.feasible,
        "reason": trial.reason,
        "flops": trial.attributes.get("flops"),
        "run_id": trial.attributes.get("run_id"),
    }


def read_results(plan: TunePlan, study: Study | None) -> Results:
    """Of a study, or of one that has not begun."""
    return results_of(plan, study.trials(), study.importances()) if study is not None else results_of(plan, ())


def results_of(
    plan: TunePlan, trials: Sequence[TrialRecord], importances: Mapping[str, Mapping[str, float]] | None = None
) -> Results:
    """Of these trials, by number."""
    from gridlaw.pipelines.tune.submission import storage_of

    declaration, tune = plan.declaration, plan.tune
    results = Results(
        experiment=plan.spec.name,
        study=declaration.name,
        storage=redacted(storage_of(plan)),
        sampler=declaration.sampler.name,
        objectives=declaration.objectives,
        constraints=dict(tune.constraints),
        parameters=declaration.space.names,
        planned=plan.num_trials,
        domains={each.name: each.words() for each in declaration.space},
        logarithmic=frozenset(each.name for each in declaration.space if each.log),
        has_first=bool(declaration.first),
    )
    able = [each for each in trials if each.state == "complete" and each.feasible]
    best = front([results.point(each) for each in able])
    return replace(
        results, trials=tuple(trials), front=tuple(able[index].number for index in best), importances=importances or {}
    )


def write_results(
    plan: TunePlan,
    results: Results,
    store: Store,
    ledger: Ledger | None = None,
    run_id: str = "",
    *,
    wall_seconds: float | None = None,
) -> str:
    """The report in the store, whose name is returned; with a ledger its copy, tables and description on the run."""
    from gridlaw.pipelines.tune.page import render

    name, page = report_name(plan.base), render(results, wall_seconds=wall_seconds)
    store.write_bytes(name, page.encode())
    if ledger is not None:
        ledger.log_table(run_id, TRIALS_TABLE, table_rows(results))
        ledger.log_json(run_id, IMPORTANCES, results.importances)
        ledger.log_text(run_id, name.rpartition("/")[2], page)
        ledger.log_results(
            run_id, tags={f"num_{state}": results.count(state) for state in ("complete", "pruned", "fail")}
        )
        ledger.describe(run_id, markdown_summary(results))
    return name


def table_rows(results: Results) -> list[dict[str, Any]]:
    """Every trial as a row: number, state, parameters, values, whether it meets the constraints, why it ended."""
    rows = []
    for each in results.trials:
        row: dict[str, Any] = {"trial": each.number, "state": each.state}
        row |= {name: each.params.get(name) for name in results.parameters}
        row |= {name: each.values.get(name) for name in results.objectives}
        row |= {f"over {name}": value for name, value in each.violations.items() if name not in results.objectives}
        row |= {"on front": each.number in results.front, "feasible": each.feasible, "reason": each.reason}
        rows.append(row)
    return rows


def summary(results: Results) -> list[str]:
    """A study in sentences."""
    counts = [f"{results.count(state)} {word}" for state, word in _WORDS.items() if results.count(state)]
    told = [f"{len(results.trials)} of {results.planned} trials asked: {', '.join(counts) or 'none ended'}."]
    if results.constraints:
        able = sum(each.feasible for each in results.complete)
        bounds = ", ".join(f"{name} {bound}" for name, bound in results.constraints.items())
        told.append(f"{able} of {len(results.complete)} complete trials meet {bounds}.")
    if len(results.objectives) == 1 and results.front:
        best = results.trial(results.front[0])
        told.append(f"Best: {trial_name(best.number)}, {values_text(best)}, with {settings_text(best.params)}.")
    elif results.front:
        told.append(f"{len(results.front)} trials are on the front: {', '.join(map(trial_name, results.front))}.")
    for name, shares in results.importances.items():
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        told.append(f"What {name} hung on: " + ", ".join(f"{each} {share:.0%}" for each, share in ordered) + ".")
    return told


_WORDS = {"complete": "complete", "pruned": "pruned", "fail": "failed", "running": "running", "waiting": "waiting"}


def markdown_summary(results: Results) -> str:
    """For the description of the study's run: sentences, and the front as a table."""
    head = ["Trial", *results.objectives, *results.parameters]
    rows = []
    for number in results.front[:MOST_ROWS]:
        trial = results.trial(number)
        rows.append(
            [trial_name(number), *(f"{value:.5g}" for value in trial.values.values())]
            + [show(trial.params[name]) if name in trial.params else "–" for name in results.parameters]
        )
    parts = ["\n".join(f"- {sentence}" for sentence in summary(results))]
    return "\n\n".join([*parts, "\n".join(table_lines(head, rows))] if rows else parts)


def progress_text(plan: TunePlan, driver: Driver) -> str:
    """The study's description while it runs."""
    trials = [node for node in driver.graph.of_kind("decay") if str(node.key[1]).startswith("trial")]
    running = [str(node.key[1]) for node in driver.graph.running() if node.kind != "prepare"]
    lines = [f"**{plan.spec.name}**: {len(trials)} trials begun here, {plan.num_trials} planned."]
    if running:
        lines.append("Running: " + ", ".join(dict.fromkeys(running)) + ".")
    lines += [f"- {problem.name}: {problem.status}, {problem.reason}" for problem in driver.problems]
    return "\n\n".join(lines)


def values_text(trial: TrialRecord) -> str:
    """``loss 2.1, full_ratio 0.2``."""
    return ", ".join(f"{name} {value:.5g}" for name, value in trial.values.items())


def settings_text(params: Mapping[str, Value]) -> str:
    """``gamma_base 0.001, alpha 100``."""
    return ", ".join(f"{name} {show(value)}" for name, value in params.items())
