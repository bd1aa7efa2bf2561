"""The learning rate is a function of the step, and budgets split into trunk and branch as DESIGN says."""

from __future__ import annotations

import math

import pytest

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training.schedule import Plan, ScheduleSettings, branch_plan, plan_for, steps_for_tokens


def test_warmup_rises_linearly_to_the_full_rate():
    plan = Plan(warmup_steps=4)
    assert [plan.factor(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("1-sqrt", [1 - math.sqrt(x) for x in (0.25, 0.5, 0.75)]),
        ("linear", [0.75, 0.5, 0.25]),
        ("cosine", [0.5 * (1 + math.cos(math.pi * x)) for x in (0.25, 0.5, 0.75)]),
    ],
)
def test_decay_follows_its_shape_and_never_reaches_zero(shape: str, expected: list[float]):
    plan = Plan(warmup_steps=0, shape=shape, decay_start_step=10, decay_steps=3)
    assert [plan.factor(step) for step in (9, 10, 11, 12)] == pytest.approx([1.0, *expected])


def test_final_fraction_is_what_the_decay_tends_to():
    plan = Plan(warmup_steps=0, shape="linear", final_fraction=0.2, decay_start_step=0, decay_steps=3)
    assert plan.factor(1) == pytest.approx(0.2 + 0.8 * 0.5)


def test_a_decay_of_one_step_decays():
    assert 0 < Plan(warmup_steps=0, decay_start_step=5, decay_steps=1).factor(5) < 1


def test_a_trunk_and_its_branch_agree_up_to_the_branch_point():
    schedule = ScheduleSettings(warmup_steps=7)
    budget = branch_plan(100, schedule)
    trunk, branch = plan_for(schedule, None, None), plan_for(schedule, budget.decay_start_step, budget.decay_steps)
    assert (budget.trunk_steps, budget.decay_steps) == (90, 10)
    assert trunk.first_difference(branch, budget.trunk_steps) is None
    assert trunk.first_difference(branch, 100) == 90


def test_the_first_difference_of_two_schedules_is_found():
    assert Plan(warmup_steps=10).first_difference(Plan(warmup_steps=20), 50) == 0
    assert Plan(warmup_steps=0).first_difference(Plan(warmup_steps=0, decay_start_step=30, decay_steps=5), 30) is None


@pytest.mark.parametrize(("total", "decay"), [(1, 1), (4, 1), (15, 2), (1000, 100)])
def test_a_decay_takes_its_share_of_the_budget_and_at_least_one_step(total: int, decay: int):
    budget = branch_plan(total, ScheduleSettings())
    assert (budget.decay_steps, budget.trunk_steps) == (decay, total - decay)


def test_a_cosine_run_shares_no_trunk_and_decays_from_the_end_of_its_warmup():
    schedule = ScheduleSettings(name="cosine", warmup_steps=10)
    budget = branch_plan(50, schedule)
    assert (budget.trunk_steps, budget.decay_start_step, budget.decay_steps) == (0, 10, 40)
    plan = plan_for(schedule, budget.decay_start_step, budget.decay_steps)
    assert plan.factor(9) == 1.0
    assert plan.factor(29) == pytest.approx(0.5 * (1 + math.cos(math.pi * 20 / 41)))
    with pytest.raises(BadSetting, match="cosine run knows its budget"):
        plan_for(schedule, None, None)


def test_a_cosine_budget_shorter_than_its_warmup_is_refused():
    with pytest.raises(BadSetting, match="warmup_steps is 100"):
        branch_plan(100, ScheduleSettings(name="cosine", warmup_steps=100))


def test_budgets_are_rounded_up_to_whole_steps():
    assert [steps_for_tokens(tokens, 4096) for tokens in (1, 4096, 4097, 40_960.5)] == [1, 1, 2, 11]


def test_the_paper_grid_costs_1150_n_with_branches():
    """Budgets 100 to 1000 N: one trunk of 900 N (the last branch point) plus 10 % decays, not 2,500 N apart."""
    plans = [branch_plan(100 * k, ScheduleSettings()) for k in (1, 2, 3, 4, 5, 10)]
    assert max(plan.trunk_steps for plan in plans) + sum(plan.decay_steps for plan in plans) == 1150
    assert sum(plan.total_steps for plan in plans) == 2500
