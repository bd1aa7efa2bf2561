"""What each sampler can take, free of Optuna: refused before a study is made instead of failing in its middle.

Constraints: a sampler that is not steered by them may still be used where it does not learn at all (random, qmc,
grid): its trials are marked feasible or not. One that learns and would be steered into what is forbidden is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gridlaw.platform.tuning.space import Space


@dataclass(frozen=True, kw_only=True)
class Ability:
    """objectives: at most so many, None for any. constraints, conditions: whether a space or study may have them.

    numbers: at least so many numeric parameters. stepped: every range needs a step. settings: of ``tune.sampler``.
    """

    objectives: int | None = None
    constraints: bool = True
    conditions: bool = True
    numbers: int = 0
    stepped: bool = False
    settings: tuple[str, ...] = ()


SAMPLERS: Mapping[str, Ability] = {
    "tpe": Ability(settings=("startup_trials",)),
    "random": Ability(),
    "nsga2": Ability(settings=("population",)),
    "cmaes": Ability(
        objectives=1, constraints=False, conditions=False, numbers=2, settings=("startup_trials", "population")
    ),
    "qmc": Ability(conditions=False),
    "grid": Ability(stepped=True),
}


def refusal(sampler: str, *, num_objectives: int, num_constraints: int, space: Space) -> tuple[str, str, str] | None:
    """(what it is about, what is allowed, hint) for the first thing that ``sampler`` cannot take; None if it can."""
    ability = SAMPLERS[sampler]
    if ability.objectives is not None and num_objectives > ability.objectives:
        several = ", ".join(name for name, each in SAMPLERS.items() if each.objectives is None)
        return "objectives", f"at most {ability.objectives} with the sampler {sampler}", f"Several: {several}"
    if num_constraints and not ability.constraints:
        able = ", ".join(name for name, each in SAMPLERS.items() if each.constraints)
        return "constraints", f"none with the sampler {sampler}, which would not heed them", f"With constraints: {able}"
    if space.is_conditional and not ability.conditions:
        able = ", ".join(name for name, each in SAMPLERS.items() if each.conditions)
        return "space", f"no when: with the sampler {sampler}", f"With conditions: {able}"
    if sum(each.is_number for each in space) < ability.numbers:
        return "space", f"at least {ability.numbers} numeric parameters with the sampler {sampler}", "Or sampler: tpe"
    if ability.stepped and not space.grid():
        loose = [each.name for each in space if not each.grid()]
        if loose:
            return f"space.{loose[0]}", f"choices, or a range with step:, with the sampler {sampler}", ""
        return "space", "at most 100,000 combinations", "Take larger steps, or another sampler"
    return None
