"""Learning-rate schedules as pure functions of the optimizer step, and how a budget splits into trunk and branch.

No scheduler object exists anywhere: its state would be stored in checkpoints and would override the schedule that a
branch brings with it, which then would never decay. The factor of step s depends on s and on frozen settings alone, so
a trunk, a branch and a run from scratch agree wherever their settings agree. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training.checks import choice, mapping_of, number, whole_number

DECAY_SHAPES: Mapping[str, Callable[[float], float]] = {
    "1-sqrt": lambda x: 1.0 - math.sqrt(x),
    "linear": lambda x: 1.0 - x,
    "cosine": lambda x: 0.5 * (1.0 + math.cos(math.pi * x)),
}
SCHEDULES = ("wsd", "cosine")


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """How the learning rate runs.

    name: ``wsd`` (warmup, stable, decay over the last part) or ``cosine`` (warmup, then half a cosine to the end).
    warmup_steps: optimizer steps until the full rate; 0 for none.
    decay_fraction: share of a budget's steps that decay (wsd).
    decay_shape: a key of ``DECAY_SHAPES`` (wsd).
    final_fraction: what the decay tends to, as a share of the full rate.
    """

    name: str = "wsd"
    warmup_steps: int = 100
    decay_fraction: float = 0.1
    decay_shape: str = "1-sqrt"
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        where = "training.schedule"
        choice(f"{where}.name", self.name, SCHEDULES)
        choice(f"{where}.decay_shape", self.decay_shape, tuple(DECAY_SHAPES))
        whole_number(f"{where}.warmup_steps", self.warmup_steps, at_least=0)
        number(f"{where}.decay_fraction", self.decay_fraction, above=0.0, at_most=1.0)
        number(f"{where}.final_fraction", self.final_fraction, at_least=0.0, at_most=1.0)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form; ``from_dict`` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScheduleSettings:
        """From the grid file's ``training.schedule``; BadSetting names an unknown field and the nearest known one."""
        return cls(**mapping_of("training.schedule", data, cls))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The learning-rate factor of every step of one run: the schedule plus where this run decays, if it does."""

    warmup_steps: int
    shape: str = "1-sqrt"
    final_fraction: float = 0.0
    decay_start_step: int | None = None
    decay_steps: int = 0

    def factor(self, step: int) -> float:
        """Share of the full learning rate at optimizer step ``step``, counted from 0.

        Warmup gives the first step 1/warmup. Decay step i of n (from 0) is at x = (i + 1)/(n + 1) of the shape: the
        first one already decays, the last one still learns, and a decay of one step is a decay.
        """
        factor = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.decay_start_step is not None and step >= self.decay_start_step:
            x = min(1.0, (step - self.decay_start_step + 1) / (self.decay_steps + 1))
            factor *= self.final_fraction + (1.0 - self.final_fraction) * DECAY_SHAPES[self.shape](x)
        return factor

    def first_difference(self, other: Plan, steps: int) -> int | None:
        """The first of ``steps`` steps at which the two plans give other factors, or None."""
        return next((step for step in range(steps) if self.factor(step) != other.factor(step)), None)


@dataclass(frozen=True, kw_only=True)
class BranchPlan:
    """How a budget of ``total_steps`` is trained.

    trunk_steps: the trunk checkpoint that it starts from; 0 if nothing is shared and it is trained from scratch.
    decay_start_step, decay_steps: the decay, from the trunk's end (wsd) or from the end of the warmup (cosine).
    """

    total_steps: int
    trunk_steps: int
    decay_start_step: int
    decay_steps: int


def steps_for_tokens(tokens: int | float, batch_tokens: int) -> int:
    """Optimizer steps of ``batch_tokens`` tokens that see at least ``tokens`` tokens (rounded up)."""
    whole = math.ceil(tokens)
    return -(-whole // batch_tokens)


def branch_plan(total_steps: int, schedule: ScheduleSettings) -> BranchPlan:
    """Where the budget of ``total_steps`` optimizer steps leaves its trunk, and how long it decays.

    wsd decays over round(decay_fraction · S) steps, at least one, from trunk step S minus that. cosine decays from the
    end of the warmup, knows the budget from then on and shares no trunk. BadSetting if the budget is too short.
    """
    if total_steps < 1:
        raise BadSetting("budget", seen=f"{total_steps} optimizer steps", allowed="at least one step")
    if schedule.name == "cosine":
        start = schedule.warmup_steps
        if start >= total_steps:
            raise BadSetting(
                "training.schedule.warmup_steps",
                seen=start,
                allowed=f"fewer than the budget's {total_steps} steps",
                hint="Shorten the warmup or raise the budget",
            )
        return BranchPlan(
            total_steps=total_steps, trunk_steps=0, decay_start_step=start, decay_steps=total_steps - start
        )
    decay = max(1, round(schedule.decay_fraction * total_steps))
    start = total_steps - decay
    return BranchPlan(total_steps=total_steps, trunk_steps=start, decay_start_step=start, decay_steps=decay)


def plan_for(schedule: ScheduleSettings, decay_start_step: int | None, decay_steps: int | None) -> Plan:
    """The plan of a trunk (no decay given) or of a run that decays from ``decay_start_step`` over ``decay_steps``."""
    if decay_start_step is None:
        if schedule.name == "cosine":
            raise BadSetting(
                "decay_start_step", allowed="the end of the warmup: a cosine run knows its budget from the start"
            )
        return Plan(warmup_steps=schedule.warmup_steps)
    if not decay_steps or decay_steps < 1:
        raise BadSetting("decay_steps", seen=decay_steps, allowed="at least 1 together with decay_start_step")
    return Plan(
        warmup_steps=schedule.warmup_steps,
        shape="cosine" if schedule.name == "cosine" else schedule.decay_shape,
        final_fraction=schedule.final_fraction,
        decay_start_step=decay_start_step,
        decay_steps=decay_steps,
    )
