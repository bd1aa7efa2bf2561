"""What Lightning restores wrongly or not at all: loop counters, and whether a checkpoint fits the run that loads it.

Lightning's counters are those of the moment of saving, in micro-batches of the accumulation of that time. Loaded as
they are, a checkpoint of another accumulation gives one step with too few or too many micro-batches. Here they are
written anew from the number of optimizer steps. This touches Lightning's private layout (2.6.6, pinned; the test of
unequal accumulations watches it).
"""

from __future__ import annotations

import json
from typing import Any

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training.schedule import Plan

RECIPE = "gridlaw_recipe"
PLAN = "gridlaw_plan"
LAST_LOSS = "gridlaw_last_loss"


def set_loop_counters(checkpoint: dict[str, Any], accumulate: int) -> None:
    """Rewrite the loop state as if saved at the end of its optimizer step, in units of ``accumulate`` micro-batches."""
    steps = int(checkpoint["global_step"])
    micros = steps * accumulate
    loop = checkpoint["loops"]["fit_loop"]
    loop["epoch_loop.state_dict"]["_batches_that_stepped"] = steps - 1
    batches = loop["epoch_loop.batch_progress"]
    batches["is_last_batch"] = False
    optimizer = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for span in ("total", "current"):
        # on_train_batch_end had not returned when the checkpoint was taken: hence one less completed.
        batches[span].update(ready=micros, started=micros, processed=micros, completed=micros - 1)
        loop["epoch_progress"][span].update(ready=1, started=1, processed=0, completed=0)
        optimizer["step"][span].update(ready=steps, completed=steps)


def mark(checkpoint: dict[str, Any], recipe: dict[str, Any], plan: Plan, last_loss: float) -> None:
    """Store what ``check`` will compare, as JSON text: checkpoints are read with ``weights_only``."""
    checkpoint[RECIPE] = json.dumps(recipe, sort_keys=True)
    checkpoint[PLAN] = json.dumps(vars(plan), sort_keys=True)
    checkpoint[LAST_LOSS] = last_loss


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """Where two JSON-able values differ, as ``a.b: old → new``."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: list[str] = []
        for key in sorted({*old, *new}):
            found += differences(old.get(key), new.get(key), f"{at}.{key}" if at else str(key))
        return found
    return [] if old == new else [f"{at}: {old!r} → {new!r}"]


def check(checkpoint: dict[str, Any], recipe: dict[str, Any], plan: Plan) -> None:
    """BadSetting unless the checkpoint comes from the same recipe and the two schedules agree on all its steps."""
    different = differences(json.loads(checkpoint[RECIPE]), recipe)
    if different:
        raise BadSetting(
            "checkpoint",
            seen="; ".join(different[:5]),
            allowed="one of a run with the same settings",
            hint="Use a new folder for other settings",
        )
    steps = int(checkpoint["global_step"])
    step = Plan(**json.loads(checkpoint[PLAN])).first_difference(plan, steps)
    if step is not None:
        raise BadSetting(
            "checkpoint",
            seen=f"step {steps}",
            allowed=f"one whose learning rates agree with this schedule: they differ from step {step} on",
            hint="A decay must start at the checkpoint's step or later",
        )
