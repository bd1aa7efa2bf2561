"""Budgets in the paper's ratio, 100 to 1000: every branch of one trunk against a run of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gridlaw.modules.training.fit import fit
from gridlaw.modules.training.schedule import ScheduleSettings, branch_plan

RATIO = (1, 2, 3, 4, 5, 10)


def study(make_job, read, unit: int, *, decay_shape: str, **more) -> tuple[int, int]:
    """Train all budgets (times ``unit`` steps) both ways, compare every bit; optimizer steps made by each way."""
    schedule = ScheduleSettings(warmup_steps=5, decay_shape=decay_shape)
    training = {"schedule": vars(schedule)} | more.pop("training", {})
    plans = [branch_plan(unit * k, schedule) for k in RATIO]
    trunk = make_job("trunk", training=training, until_step=1, keep_steps=[plan.trunk_steps for plan in plans], **more)
    shared = apart = 0
    for plan in plans:
        shared += fit(replace(trunk, until_step=plan.trunk_steps)).executed_now
    for plan in plans:
        job = make_job(
            f"branch-{plan.total_steps}",
            training=training,
            start_checkpoint=str(read.checkpoint(trunk, plan.trunk_steps)),
            until_step=plan.total_steps,
            decay_start_step=plan.decay_start_step,
            decay_steps=plan.decay_steps,
            **more,
        )
        alone = replace(job, folder=f"{job.folder}-alone", start_checkpoint=None)
        branch, whole = fit(job), fit(alone)
        shared, apart = shared + branch.executed_now, apart + whole.executed_now
        assert branch.final_loss == whole.final_loss
        assert read.same(job, alone), f"the branch of {plan.total_steps} steps differs from a run of its own"
    return shared, apart


def test_every_branch_is_bit_identical_to_a_run_of_its_own_at_under_half_the_steps(make_job, read):
    assert study(make_job, read, 10, decay_shape="1-sqrt") == (115, 250)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["full", "swa-16", "gdn", "swiattn-16"])
@pytest.mark.parametrize(("precision", "decay_shape"), [("fp32", "linear"), ("bf16", "1-sqrt")])
def test_the_same_for_other_architectures_longer_budgets_and_shapes(
    make_job, read, architecture: str, precision: str, decay_shape: str
):
    more = {"architecture": architecture, "training": {"precision": precision}}
    assert study(make_job, read, 60, decay_shape=decay_shape, **more) == (690, 1500)
