"""What to run next: marginal costs, conditioning, greedy batches, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gridlaw.pipelines.laws.fit import LawFit, fit_law
from gridlaw.pipelines.laws.suggest import Candidate, _State, marginal_cost, suggest
from gridlaw.platform.errors import BadInput

TARGET = (4.77e8, 4.77e11)


def _law(n: np.ndarray, d: np.ndarray, seed: int = 0) -> LawFit:
    y = (700 * n**-0.36 + 1200 * d**-0.32) * np.exp(0.01 * np.random.default_rng(seed).standard_normal(len(n)))
    return fit_law(n, d, y, num_resamples=200)


@pytest.fixture(scope="module")
def law() -> LawFit:
    n = np.repeat([15e6, 31e6], 3)
    return _law(n, n * np.tile([100, 200, 300], 2))


def _candidate(size: float, multiple: int, *, architecture: str = "full", seed: int = 0) -> Candidate:
    return Candidate(
        architecture=architecture, scale=f"{size:g}", budget=f"{multiple}N", seed=seed, num_params=size,
        num_tokens=size * multiple, flops_per_token=18 * size,
    )  # fmt: skip


CANDIDATES = [_candidate(size, multiple) for size in (15e6, 31e6, 65e6, 104e6) for multiple in (400, 500, 1000)]


def test_a_budget_on_a_trunk_costs_its_extension_and_its_decay() -> None:
    candidate = _candidate(15e6, 400)
    tokens = 400 * 15e6
    fresh = marginal_cost(candidate, {}, decay_fraction=0.1)
    assert fresh.flops == pytest.approx(tokens * candidate.flops_per_token)
    begun = marginal_cost(candidate, {candidate.trunk: 0.5 * tokens}, decay_fraction=0.1)
    assert begun.extension_tokens == pytest.approx(0.4 * tokens)
    assert begun.flops == pytest.approx(0.5 * tokens * candidate.flops_per_token)
    passed = marginal_cost(candidate, {candidate.trunk: 2 * tokens}, decay_fraction=0.1)
    assert passed.extension_tokens == 0
    assert passed.flops == pytest.approx(0.1 * tokens * candidate.flops_per_token)


def test_expected_narrowing_matches_conditioning_by_hand(law: LawFit) -> None:
    state = _State({"full": law}, CANDIDATES[:1], TARGET)
    draws = np.log(law.predict_draws(np.array([TARGET[0], 15e6]), np.array([TARGET[1], 6e9])))
    low, high = np.percentile(draws, [1, 99], axis=0)
    spread = np.cov(np.clip(draws, low, high), rowvar=False)
    by_hand = spread[0, 0] - spread[0, 1] ** 2 / (spread[1, 1] + law.residual_sd**2)
    assert state.target_sd_after()[0] ** 2 == pytest.approx(by_hand, rel=1e-6)
    promised = float(state.target_sd_after()[0])
    state.measure(0)
    assert state.target_sd()[0] == pytest.approx(promised)


def test_the_expected_narrowing_comes_true_on_average(law: LawFit) -> None:
    """The large point named best narrows the refitted interval, about as much as was said."""
    best = max(
        suggest({"full": law}, CANDIDATES, at=TARGET, flops=1e21).ranked,
        key=lambda s: s.half_width_before - s.half_width_after,
    )
    n, d = (
        np.append(law.points.num_params, best.candidate.num_params),
        np.append(law.points.num_tokens, best.candidate.num_tokens),
    )
    widths = []
    for seed in range(6):
        low, high = _law(n, d, seed=seed).predict_interval(*TARGET, kind="curve")
        widths.append(np.log(high / low) / 2)
    assert np.median(widths) < best.half_width_before
    assert np.median(widths) == pytest.approx(best.half_width_after, rel=0.6)


def test_ranked_by_narrowing_per_flop_and_explained(law: LawFit) -> None:
    plan = suggest({"full": law}, CANDIDATES, at=TARGET, flops=1e20)
    values = [suggestion.narrowing_per_flop for suggestion in plan.ranked]
    assert values == sorted(values, reverse=True)
    assert len(plan.ranked) == len(CANDIDATES)
    assert "FLOPs" in plan.ranked[0].line
    assert "±" in plan.ranked[0].line


def test_a_batch_fits_its_budget_and_narrows_at_every_step(law: LawFit) -> None:
    plan = suggest({"full": law}, CANDIDATES, at=TARGET, flops=1e20)
    assert 0 < plan.spent_flops <= 1e20
    assert plan.spent_flops == pytest.approx(sum(s.cost.flops for s in plan.batch))
    for first, second in zip(plan.batch, plan.batch[1:], strict=False):
        assert second.half_width_before == pytest.approx(first.half_width_after)
        assert second.half_width_after < second.half_width_before
    assert plan.half_widths["full"][1] == pytest.approx(plan.batch[-1].half_width_after)
    larger = suggest({"full": law}, CANDIDATES, at=TARGET, flops=4e20)
    assert larger.half_widths["full"][1] < plan.half_widths["full"][1]


def test_points_of_one_trunk_in_a_batch_pay_for_the_trunk_once(law: LawFit) -> None:
    only = [_candidate(65e6, 400), _candidate(65e6, 500)]
    plan = suggest({"full": law}, only, at=TARGET, flops=1e21)
    separate = sum(marginal_cost(candidate, {}, decay_fraction=0.1).flops for candidate in only)
    assert len(plan.batch) == 2
    assert plan.spent_flops < 0.75 * separate


def test_a_second_seed_narrows_less_than_the_first(law: LawFit) -> None:
    twins = [_candidate(104e6, 1000), _candidate(104e6, 1000, seed=1)]
    plan = suggest({"full": law}, twins, at=TARGET, flops=1e22)
    first, second = (s.half_width_before - s.half_width_after for s in plan.batch)
    assert second < first


def test_correlated_points_of_a_trunk_are_worth_less_together(law: LawFit) -> None:
    pair = [_candidate(104e6, 400), _candidate(104e6, 500)]
    ends = []
    for correlation in (0.0, 0.9):
        correlated = replace(law, trunk_correlation=correlation, residual_sd=0.03)
        ends.append(suggest({"full": correlated}, pair, at=TARGET, flops=1e22).half_widths["full"][1])
    assert ends[1] > ends[0]


def test_architectures_narrow_only_their_own_law(law: LawFit) -> None:
    plan = suggest({"full": law, "gdn": law}, CANDIDATES, at=TARGET, flops=1e20)
    assert plan.half_widths["gdn"][1] == pytest.approx(plan.half_widths["gdn"][0])
    assert plan.half_widths["full"][1] < plan.half_widths["full"][0]


def test_the_batch_becomes_blocks_of_a_grid(law: LawFit) -> None:
    plan = suggest({"full": law}, CANDIDATES, at=TARGET, flops=3e20)
    blocks = plan.grid_blocks()
    assert sum(len(block["budgets"]) for block in blocks) == len(plan.batch)
    assert {tuple(block) for block in blocks} == {("architectures", "scales", "budgets", "seeds")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": []}, "at least one point"),
        ({"flops": 1e3}, "cheapest"),
        ({"flops": -1.0}, "above 0"),
        ({"candidates": [_candidate(15e6, 400, architecture="gdn")]}, "an architecture with a law"),
        ({"decay_fraction": 1.5}, "below 1"),
    ],
)
def test_wrong_requests_are_refused(law: LawFit, change: dict, message: str) -> None:
    request = {"candidates": CANDIDATES, "flops": 1e20, "at": TARGET, **change}
    with pytest.raises(BadInput, match=message):
        suggest({"full": law}, **request)


def test_a_law_without_intervals_is_refused(law: LawFit) -> None:
    bare = replace(law, draws=law.draws[:0])
    with pytest.raises(BadInput, match="no intervals"):
        suggest({"full": bare}, CANDIDATES, at=TARGET, flops=1e20)
