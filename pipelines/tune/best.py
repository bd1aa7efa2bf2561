"""Choosing a trial of a study, and a grid file with its settings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from gridlaw.pipelines.tune.plan import TunePlan, trial_name
from gridlaw.pipelines.tune.results import Results, read_results, values_text
from gridlaw.pipelines.tune.settings import with_settings
from gridlaw.pipelines.tune.submission import storage_of
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.load import grid_from_mapping
from gridlaw.platform.spec.problems import did_you_mean, listed
from gridlaw.platform.tuning.storage import check_storage
from gridlaw.platform.tuning.study import TrialRecord, open_study

_BOUND = re.compile(r"\s*([^<>=\s]+)\s*(<=|>=)\s*([-+0-9.eE]+)\s*")


def choose(
    plan: TunePlan, *, weights: Sequence[str] = (), bounds: Sequence[str] = (), number: int | None = None
) -> TrialRecord:
    """The best trial that meets the study's constraints.

    With one objective that is clear. With several: of the front by ``weights`` (METRIC=W, over each metric's range on
    the front), or by ``bounds`` (METRIC<=X) on all but one objective, which is then sought. number: this trial,
    whatever else. ``BadInput`` for a study without such a trial and for a choice that names none.
    """
    url = storage_of(plan)
    check_storage(url)
    results = read_results(plan, open_study(url, plan.declaration, create=False))
    if not results.complete:
        raise BadInput(
            "study", seen=results.study, allowed="a study with a complete trial", hint="Run it first: gridlaw tune run"
        )
    if number is not None:
        found = [each for each in results.complete if each.number == number]
        if not found:
            numbers = listed(each.number for each in results.complete)
            raise BadInput("--trial", seen=number, allowed=f"a complete trial: {numbers}")
        return found[0]
    if not results.front:
        raise BadInput(
            "study", seen=results.study, allowed="a study with a trial that meets its constraints",
            hint="Take one by --trial, or relax the constraints under another name:",
        )  # fmt: skip
    able = [results.trial(each) for each in results.front]
    if len(results.objectives) == 1 and not bounds:
        return able[0]
    if bounds:
        able = _within(results, bounds)
        left = [name for name in results.objectives if name not in {_bound(text, results)[0] for text in bounds}]
        if not weights:
            if len(left) != 1:
                raise BadInput(
                    "--where", seen=" ".join(bounds), allowed="bounds on all objectives but one, or --weight besides",
                    hint=f"Objectives: {', '.join(results.objectives)}",
                )  # fmt: skip
            (sought,) = left
            sign = 1 if results.objectives[sought] == "min" else -1
            return min(able, key=lambda each: (sign * each.values[sought], each.number))
    if not weights:
        shown = "; ".join(f"{trial_name(each.number)}: {values_text(each)}" for each in able[:10])
        raise BadInput(
            "the best of several objectives", allowed="--weight METRIC=W, --where METRIC<=X, or --trial N",
            hint=f"On the front: {shown}",
        )  # fmt: skip
    return _weighted(results, able, weights)


def write_grid(plan: TunePlan, trial: TrialRecord, path: Path) -> None:
    """A grid file whose last point has the trial's settings; it is checked before it is written."""
    if path.exists():
        raise BadInput("--write", seen=str(path), allowed="a file that does not exist yet", hint="Give another name")
    values = {plan.settings[name]: value for name, value in trial.params.items()}
    whole = with_settings(plan.spec, values, name=f"{plan.spec.name}-{trial_name(trial.number)}")
    grid_from_mapping(whole, source=str(path), base_folder=path.absolute().parent)
    head = f"# Settings of {trial_name(trial.number)} of the study {plan.spec.name}: {values_text(trial)}.\n"
    path.write_text(head + yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")


def _within(results: Results, bounds: Sequence[str]) -> list[TrialRecord]:
    able = [each for each in results.complete if each.feasible]
    for text in bounds:
        name, operator, bound = _bound(text, results)
        met = [
            each for each in able
            if (each.values[name] <= bound if operator == "<=" else each.values[name] >= bound)
        ]  # fmt: skip
        if not met:
            values = [each.values[name] for each in able]
            nearest = f"Smallest: {min(values):.5g}" if operator == "<=" else f"Largest: {max(values):.5g}"
            raise BadInput("--where", seen=text, allowed="a bound that some trial meets", hint=nearest)
        able = met
    return able


def _bound(text: str, results: Results) -> tuple[str, str, float]:
    matched = _BOUND.fullmatch(text)
    try:
        if matched is None:
            raise ValueError
        name, operator, bound = matched[1], matched[2], float(matched[3])
    except ValueError:
        raise BadInput("--where", seen=text, allowed='"METRIC<=X" or "METRIC>=X"') from None
    _check_objective("--where", name, results)
    return name, operator, bound


def _weighted(results: Results, able: list[TrialRecord], texts: Sequence[str]) -> TrialRecord:
    """The smallest sum of weights times values, each over its range among ``able``."""
    weights: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            weights[name] = float(number)
            if not equals or not 0 < weights[name] < math.inf:
                raise ValueError
        except ValueError:
            raise BadInput("--weight", seen=text, allowed="METRIC=W with a finite W above 0") from None
        _check_objective("--weight", name, results)
    columns = {name: [each.values[name] for each in able] for name in weights}
    ranges = {name: max(values) - min(values) or 1.0 for name, values in columns.items()}

    def cost(trial: TrialRecord) -> float:
        return sum(
            weight * (1 if results.objectives[name] == "min" else -1) * trial.values[name] / ranges[name]
            for name, weight in weights.items()
        )

    return min(able, key=lambda each: (cost(each), each.number))


def _check_objective(option: str, name: str, results: Results) -> None:
    if name not in results.objectives:
        known = list(results.objectives)
        raise BadInput(option, seen=name, allowed=f"an objective: {listed(known)}", hint=did_you_mean(name, known))
