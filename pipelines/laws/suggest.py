"""What to run next: the points that are expected to narrow a prediction most per FLOP, and a batch that fits a budget.

Method. The draws of a law give the joint spread of its log curve at the target and at every candidate. Measuring a
candidate is conditioning that joint normal approximation on one noisy value: the variance at the target falls by
cov(target, candidate)² / (var(candidate) + noise²), whatever the value turns out to be, so a batch can be planned
before any of it is run. Candidates of one trunk share the estimated part of their noise. Costs are marginal: a
candidate pays for the extension of its trunk beyond what is trained (or chosen before it) and for its own decay.

Limits. The form of the law is taken as true: the method does not spend on testing it. The spread is linearised, so
with exponents that are not identified the expected narrowing is rough (the order is more reliable than the size).
Noise that a candidate shares with points already measured on its trunk is not credited. Laws of different
architectures are independent: a run of one narrows nothing for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from gridlaw.pipelines.laws.fit import LawFit
from gridlaw.pipelines.laws.forms import Array
from gridlaw.platform.errors import BadInput

OPENINGS = (
    8  # first picks tried besides the best per FLOP: a greedy batch can starve a large point that is worth its price
)
CLIP_PERCENT = 1.0  # of the draws on each side, against runaway refits

TrunkKey = tuple[str, str, int]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A point that could be run. ``flops_per_token``: of training (3 × forward) at its context; ``budget``: as in a
    grid file.
    """

    architecture: str
    scale: str
    budget: str
    seed: int
    num_params: float
    num_tokens: float
    flops_per_token: float

    @property
    def name(self) -> str:
        return f"{self.architecture}/{self.scale}/{self.budget}/seed{self.seed}"

    @property
    def trunk(self) -> TrunkKey:
        return self.architecture, self.scale, self.seed


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Marginal cost of a candidate: tokens its trunk is extended by, tokens of its decay, FLOPs of both."""

    extension_tokens: float
    decay_tokens: float
    flops: float


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One candidate, its cost and what it is expected to do to the interval at the target (relative half-widths)."""

    candidate: Candidate
    cost: Cost
    half_width_before: float
    half_width_after: float
    line: str

    @property
    def narrowing_per_flop(self) -> float:
        return (self.half_width_before - self.half_width_after) / self.cost.flops

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.candidate.name,
            **self.candidate.__dict__,
            **self.cost.__dict__,
            "half_width_before": self.half_width_before,
            "half_width_after": self.half_width_after,
            "narrowing_per_flop": self.narrowing_per_flop,
            "line": self.line,
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``ranked``: every candidate by itself, best per FLOP first; ``batch``: in the order to run, each after the ones
    before.

    half_widths: architecture → relative half-width of the curve's interval at the target (before, expected after the
    batch).
    """

    at: tuple[float, float]
    ranked: tuple[Suggestion, ...]
    batch: tuple[Suggestion, ...]
    flops: float
    spent_flops: float
    half_widths: dict[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "at": {"num_params": self.at[0], "num_tokens": self.at[1]},
            "flops": self.flops,
            "spent_flops": self.spent_flops,
            "half_widths": {name: list(pair) for name, pair in self.half_widths.items()},
            "batch": [suggestion.to_dict() for suggestion in self.batch],
            "ranked": [suggestion.to_dict() for suggestion in self.ranked],
        }

    def grid_blocks(self) -> list[dict[str, Any]]:
        """The batch as blocks of a grid file (architectures, scales, budgets, seeds), one per trunk."""
        blocks: dict[TrunkKey, list[str]] = {}
        for suggestion in self.batch:
            blocks.setdefault(suggestion.candidate.trunk, []).append(suggestion.candidate.budget)
        return [
            {"architectures": [architecture], "scales": [scale], "budgets": budgets, "seeds": [seed]}
            for (architecture, scale, seed), budgets in blocks.items()
        ]


def marginal_cost(candidate: Candidate, trunks: Mapping[TrunkKey, float], *, decay_fraction: float) -> Cost:
    """Cost of a candidate when its trunk already has ``trunks[candidate.trunk]`` tokens at the stable learning rate."""
    decay = decay_fraction * candidate.num_tokens
    extension = max(0.0, candidate.num_tokens - decay - trunks.get(candidate.trunk, 0.0))
    return Cost(extension_tokens=extension, decay_tokens=decay, flops=(extension + decay) * candidate.flops_per_token)


class _State:
    """Joint normal of the log curves at the targets and of the values that candidates would measure, noise included.

    covariance: one row per architecture's target, then one per candidate. Measuring conditions on a candidate's row.
    """

    def __init__(self, laws: Mapping[str, LawFit], candidates: Sequence[Candidate], at: tuple[float, float]) -> None:
        self.names = list(laws)
        self.candidates = list(candidates)
        self.places = np.array([self.names.index(candidate.architecture) for candidate in candidates])
        size = len(self.names) + len(candidates)
        self.covariance = np.zeros((size, size))
        for place, name in enumerate(self.names):
            mine = np.flatnonzero(self.places == place)
            own = [self.candidates[int(i)] for i in mine]
            n = np.array([at[0], *(c.num_params for c in own)])
            d = np.array([at[1], *(c.num_tokens for c in own)])
            rows = np.array([place, *(len(self.names) + mine)])
            self.covariance[np.ix_(rows, rows)] = _log_covariance(laws[name].predict_draws(n, d))
            self.covariance[np.ix_(rows[1:], rows[1:])] += _noise(laws[name], [c.trunk for c in own])
        self.chosen: list[int] = []

    def copy(self) -> _State:
        other = object.__new__(_State)
        other.__dict__ = {**self.__dict__, "chosen": list(self.chosen)}
        return other

    def target_sd(self) -> Array:
        """Of each architecture, [A]."""
        return np.sqrt(np.maximum(np.diag(self.covariance)[: len(self.names)], 0.0))

    def target_sd_after(self) -> Array:
        """Standard deviation at each candidate's own target if it were measured next, [candidates]."""
        num = len(self.names)
        cross = self.covariance[self.places, num + np.arange(len(self.candidates))]
        own = np.maximum(np.diag(self.covariance)[num:], 1e-300)
        return np.sqrt(np.maximum(np.diag(self.covariance)[self.places] - cross**2 / own, 0.0))

    def measure(self, index: int) -> None:
        """Condition on the value of one candidate."""
        row = self.covariance[:, len(self.names) + index]
        self.covariance = self.covariance - np.outer(row, row) / max(row[len(self.names) + index], 1e-300)
        self.chosen.append(index)


def _noise(law: LawFit, trunks: Sequence[TrunkKey]) -> Array:
    """Covariance of the noise of candidates: the estimated part is common to those of one trunk."""
    same = np.array([[one == other for other in trunks] for one in trunks], dtype=float).reshape(
        len(trunks), len(trunks)
    )
    correlation = law.trunk_correlation or 0.0
    noise: Array = law.residual_sd**2 * (correlation * same + (1.0 - correlation) * np.eye(len(trunks)))
    return noise


def _log_covariance(values_RP: Array) -> Array:
    logs = np.log(values_RP)
    low, high = np.percentile(logs, [CLIP_PERCENT, 100.0 - CLIP_PERCENT], axis=0)
    return np.atleast_2d(np.cov(np.clip(logs, low, high), rowvar=False))


def suggest(
    laws: Mapping[str, LawFit],
    candidates: Sequence[Candidate],
    *,
    at: tuple[float, float],
    flops: float,
    trunks: Mapping[TrunkKey, float] | None = None,
    decay_fraction: float = 0.1,
) -> Plan:
    """Rank candidates and choose a batch within ``flops``.

    laws: architecture → law with intervals; candidates: points not yet run; at: target N and D; trunks: tokens
    already trained at the stable learning rate; decay_fraction: of a budget. The objective is the mean over
    architectures of the half-width of the curve's interval at the target. Raises BadInput for laws without intervals,
    candidates without a law, or a budget that affords none.
    """
    _check(laws, candidates, flops, decay_fraction)
    held = dict(trunks or {})
    state = _State(laws, candidates, at)
    width = _half_width_factor(laws)
    costs = [marginal_cost(candidate, held, decay_fraction=decay_fraction) for candidate in candidates]
    after = state.target_sd_after()
    before = state.target_sd()
    ranked = [
        _suggestion(candidate, cost, width * before[place], width * sd, at)
        for candidate, cost, place, sd in zip(candidates, costs, state.places, after, strict=True)
    ]
    ranked.sort(key=lambda suggestion: -suggestion.narrowing_per_flop)
    cheapest = min(cost.flops for cost in costs)
    if cheapest > flops:
        raise BadInput("flops", seen=flops, allowed=f"at least {cheapest:.3g}, what the cheapest candidate costs")
    batch, final = _best_batch(state, held, flops, decay_fraction, width, at)
    return Plan(
        at=at,
        ranked=tuple(ranked),
        batch=tuple(batch),
        flops=flops,
        spent_flops=float(sum(suggestion.cost.flops for suggestion in batch)),
        half_widths={
            name: (float(width * b), float(width * a))
            for name, b, a in zip(state.names, before, final.target_sd(), strict=True)
        },
    )


def _check(laws: Mapping[str, LawFit], candidates: Sequence[Candidate], flops: float, decay_fraction: float) -> None:
    if not candidates:
        raise BadInput("candidates", seen=0, allowed="at least one point that has not been run")
    for name, law in laws.items():
        if len(law.draws) == 0 or not np.isfinite(law.residual_sd):
            raise BadInput(
                f"law of {name}",
                seen="no intervals",
                allowed="a law with more points than parameters and with resamples",
            )
    for candidate in candidates:
        if candidate.architecture not in laws:
            raise BadInput(
                f"candidate {candidate.name}",
                seen=candidate.architecture,
                allowed=f"an architecture with a law ({', '.join(laws)})",
            )
    if not (np.isfinite(flops) and flops > 0):
        raise BadInput("flops", seen=flops, allowed="a number above 0")
    if not 0 <= decay_fraction < 1:
        raise BadInput("decay_fraction", seen=decay_fraction, allowed="from 0 to below 1")


def _half_width_factor(laws: Mapping[str, LawFit]) -> float:
    level = next(iter(laws.values())).level
    return float(stats.norm.ppf(0.5 + level / 2))


def _best_batch(
    state: _State,
    trunks: Mapping[TrunkKey, float],
    flops: float,
    decay_fraction: float,
    width: float,
    at: tuple[float, float],
) -> tuple[list[Suggestion], _State]:
    """The best of several greedy batches: by narrowing per FLOP, and the same after each of a few large first picks."""
    gain = state.target_sd()[state.places] - state.target_sd_after()
    openings: list[int | None] = [None, *(int(i) for i in np.argsort(-gain)[:OPENINGS])]
    best: tuple[float, list[Suggestion], _State] | None = None
    for opening in openings:
        batch, final = _greedy(state.copy(), dict(trunks), flops, decay_fraction, width, at, opening)
        if batch:
            total = float(final.target_sd().mean())
            if best is None or total < best[0] * (1 - 1e-9):
                best = (total, batch, final)
    assert best is not None, "a candidate is affordable, so a batch exists"
    return best[1], best[2]


def _greedy(
    state: _State,
    trunks: dict[TrunkKey, float],
    flops: float,
    decay_fraction: float,
    width: float,
    at: tuple[float, float],
    opening: int | None,
) -> tuple[list[Suggestion], _State]:
    left = flops
    batch: list[Suggestion] = []
    while True:
        costs = [marginal_cost(candidate, trunks, decay_fraction=decay_fraction) for candidate in state.candidates]
        price = np.array([cost.flops for cost in costs])
        before, after = state.target_sd()[state.places], state.target_sd_after()
        score = (before - after) / price
        score[state.chosen] = -np.inf
        score[price > left] = -np.inf
        pick = opening if opening is not None and not batch else int(score.argmax())
        if not np.isfinite(score[pick]) or score[pick] <= 0:
            return batch, state
        candidate, cost = state.candidates[pick], costs[pick]
        batch.append(_suggestion(candidate, cost, width * before[pick], width * after[pick], at))
        trunks[candidate.trunk] = max(trunks.get(candidate.trunk, 0.0), candidate.num_tokens * (1 - decay_fraction))
        left -= cost.flops
        state.measure(pick)


def _suggestion(candidate: Candidate, cost: Cost, before: float, after: float, at: tuple[float, float]) -> Suggestion:
    how = (
        "a decay from its trunk" if cost.extension_tokens == 0 else f"{cost.extension_tokens:.3g} tokens more of trunk"
    )
    line = (
        f"{candidate.name}: {cost.flops:.3g} FLOPs ({how}, decay of {cost.decay_tokens:.3g}); "
        f"interval of {candidate.architecture} at N={at[0]:.3g}, D={at[1]:.3g} from ±{before:.2%} to ±{after:.2%}"
    )
    return Suggestion(
        candidate=candidate, cost=cost, half_width_before=float(before), half_width_after=float(after), line=line
    )
