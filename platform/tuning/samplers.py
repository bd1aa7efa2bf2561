"""Optuna's samplers, made so that a study that was interrupted goes on as if it had not been.

A sampler's random numbers are not kept in a storage: one that is made anew with the same seed would propose the first
trials again. Here each trial's numbers come from the study's seed, the trial's number and, for parameters that are
drawn one by one, the parameter's name; so neither a restart nor the order of earlier draws changes them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna import samplers
from optuna.samplers import BaseSampler

from gridlaw.platform.tuning.space import Space, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial, TrialState

_NSGA2_POPULATION = 50
_TPE_STARTUP = 10


@dataclass(frozen=True, kw_only=True)
class SamplerChoice:
    """``tune.sampler`` with what it leaves open as None."""

    name: str
    seed: int
    startup_trials: int | None = None
    population: int | None = None

    def identity(self) -> dict[str, Any]:
        """JSON-able, defaults filled in."""
        own: dict[str, Any] = {"name": self.name, "seed": self.seed}
        if self.name == "tpe":
            own["startup_trials"] = self.startup_trials or _TPE_STARTUP
        if self.name == "nsga2":
            own["population"] = self.population or _NSGA2_POPULATION
        if self.name == "cmaes":
            own |= {"startup_trials": self.startup_trials or 1, "population": self.population}
        return own


def make_sampler(choice: SamplerChoice, space: Space, *, first: dict[str, Value]) -> BaseSampler:
    """The sampler of a study. first: parameters of its first trial, which ``grid`` does not propose again."""
    if choice.name == "grid":
        return GridSampler(grid_order(space, seed=choice.seed, first=first))
    return SeededSampler(choice.seed, lambda seed: _plain_sampler(choice, space, seed))


def grid_order(space: Space, *, seed: int, first: dict[str, Value]) -> list[dict[str, Value]]:
    """Every combination but the first trial's, shuffled by the seed."""
    combinations = [each for each in space.grid() if each != first]
    random.Random(seed).shuffle(combinations)
    return combinations


def _plain_sampler(choice: SamplerChoice, space: Space, seed: int) -> BaseSampler:
    own = choice.identity()
    if choice.name == "random":
        return samplers.RandomSampler(seed=seed)
    if choice.name == "tpe":
        # With conditions, parameters that never meet in one trial are modelled apart.
        joint: dict[str, Any] = {"multivariate": True, "group": True} if space.is_conditional else {}
        return samplers.TPESampler(n_startup_trials=own["startup_trials"], seed=seed, **joint)
    if choice.name == "nsga2":
        return samplers.NSGAIISampler(population_size=own["population"], seed=seed)
    if choice.name == "cmaes":
        return samplers.CmaEsSampler(
            n_startup_trials=own["startup_trials"], popsize=own["population"], seed=seed,
            warn_independent_sampling=False,
        )  # fmt: skip
    assert choice.name == "qmc", f"no sampler {choice.name!r}"
    # One sequence for all trials: its place in it is kept in the storage.
    return samplers.QMCSampler(
        scramble=True, seed=choice.seed, independent_sampler=samplers.RandomSampler(seed=seed),
        warn_independent_sampling=False,
    )  # fmt: skip


def derived_seed(seed: int, number: int, name: str = "") -> int:
    """32 bits from a study's seed, a trial's number and a parameter's name."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}/{name}".encode()).digest()[:4], "big")


class SeededSampler(BaseSampler):
    """A fresh sampler for each trial, and for each parameter that is drawn by itself (module docstring)."""

    def __init__(self, seed: int, make: Callable[[int], BaseSampler]) -> None:
        self._seed, self._make = seed, make
        self._number, self._joint = -1, None  # type: tuple[int, BaseSampler | None]

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        alone = self._make(derived_seed(self._seed, trial.number, param_name))
        return alone.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._of(trial).before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._of(trial).after_trial(study, trial, state, values)

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        if self._joint is None or self._number != trial.number:
            self._number, self._joint = trial.number, self._make(derived_seed(self._seed, trial.number))
        return self._joint


class GridSampler(BaseSampler):
    """Combinations in a fixed order, conditions included; a trial asked again (enqueued) uses none up.

    Optuna's own knows no conditions, proposes some twice and ends a study from inside ``tell``.
    """

    def __init__(self, combinations: list[dict[str, Value]]) -> None:
        self._combinations = combinations

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        earlier = study.get_trials(deepcopy=False)
        index = sum("fixed_params" not in each.system_attrs for each in earlier if each.number < trial.number)
        return self._combinations[index % len(self._combinations)][param_name]
