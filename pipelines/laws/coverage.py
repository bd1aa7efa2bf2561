"""How often intervals hold the truth, measured on synthetic tables: ``python -m gridlaw.pipelines.laws.coverage``.

A design says where points lie, which law is true and how noisy the points are. Many tables are drawn from it, each is
fitted, and every method's intervals are held against the truth: the exponents, the law at a target outside the table
("curve"), and a new measurement there ("new"). The figures in docs/laws.md come from this module; nothing is tuned to
them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from gridlaw.pipelines.laws.fit import evaluate
from gridlaw.pipelines.laws.forms import Array, get_form
from gridlaw.pipelines.laws.intervals import (
    METHODS,
    MIN_USABLE,
    draw_tables,
    percentile_interval,
    refit,
)
from gridlaw.pipelines.laws.points import check_points
from gridlaw.pipelines.laws.problem import Problem, best_fits, make_problem
from gridlaw.pipelines.laws.profile import profile_exponent

PROFILE = "profile"
TABLES_AT_ONCE = 20


@dataclass(frozen=True, kw_only=True)
class CoverageDesign:
    """Scales × budgets (multiples of N), the true parameters, noise of log values, and the target to predict."""

    name: str
    scales: tuple[float, ...]
    budgets: tuple[float, ...]
    truth: tuple[float, ...]  # a, alpha, b, beta
    noise_sd: float
    trunk_correlation: float
    target: tuple[float, float]  # N, D
    form: str = "nd"

    def grid(self) -> tuple[Array, Array]:
        n = np.repeat(np.array(self.scales), len(self.budgets))
        return n, n * np.tile(np.array(self.budgets), len(self.scales))

    def noise(self, rng: np.random.Generator) -> Array:
        """Log residuals of one table: a part common to each trunk (one trunk per scale) and a part of each point's
        own.
        """
        common = np.repeat(rng.standard_normal(len(self.scales)), len(self.budgets))
        own = rng.standard_normal(len(common))
        return self.noise_sd * (np.sqrt(self.trunk_correlation) * common + np.sqrt(1 - self.trunk_correlation) * own)


_PAPER = (14_999_424.0, 31_470_080.0, 64_901_760.0, 104_427_264.0)
_NANO = (23_712.0, 47_392.0, 97_200.0)
IDENTIFIED = CoverageDesign(
    name="identified: S1-S4 × 6 budgets (24 points), noise 0.5 %", scales=_PAPER,
    budgets=(100, 200, 300, 400, 500, 1000), truth=(700.0, 0.36, 1200.0, 0.32), noise_sd=0.005,
    trunk_correlation=0.0, target=(476_852_480.0, 476_852_480.0 * 1000),
)  # fmt: skip
UNIDENTIFIED = CoverageDesign(
    name="unidentified: n1-n3 × 3 budgets (9 points), noise 1 %", scales=_NANO, budgets=(5, 10, 20),
    truth=(10.0, 0.25, 22.0, 0.22), noise_sd=0.01, trunk_correlation=0.0, target=(172_608.0, 172_608.0 * 20),
)  # fmt: skip
DESIGNS = (IDENTIFIED, UNIDENTIFIED)


def measure(
    design: CoverageDesign,
    *,
    methods: Sequence[str] = (*METHODS, PROFILE),
    num_tables: int = 400,
    num_resamples: int = 200,
    level: float = 0.9,
    seed: int = 0,
) -> pd.DataFrame:
    """Coverage per method and quantity: columns method, quantity, coverage, error (standard error), width (median),
    tables.

    Every method sees the same tables. A table on which a method gives no interval counts as not covered.
    """
    cases = _Cases(design, num_tables=num_tables, seed=seed)
    rows: list[tuple[str, str, bool, float]] = []
    for method in methods:
        for begin in range(0, num_tables, TABLES_AT_ONCE):
            tables = range(begin, min(begin + TABLES_AT_ONCE, num_tables))
            if method == PROFILE:
                rows += cases.profiled(tables, level)
            else:
                rows += cases.resampled(tables, method, num_resamples, level)
    frame = pd.DataFrame(rows, columns=["method", "quantity", "covered", "width"])
    grouped = frame.groupby(["method", "quantity"], sort=False)
    result = grouped.agg(coverage=("covered", "mean"), width=("width", "median"), tables=("covered", "size"))
    result = result.reset_index()
    result["error"] = np.sqrt(result.coverage * (1 - result.coverage) / result.tables)
    return result[["method", "quantity", "coverage", "error", "width", "tables"]]


class _Cases:
    """Synthetic tables of one design with their fits; tables share N and D, so their resamples are refitted
    together.
    """

    def __init__(self, design: CoverageDesign, *, num_tables: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.design, self.form = design, get_form(design.form)
        n, d = design.grid()
        truth_1K = np.array([design.truth])
        mean_P = np.log(evaluate(self.form, truth_1K, n, d)[0])
        self.log_y_BP = mean_P + np.array([design.noise(rng) for _ in range(num_tables)])
        points = check_points(n, d, np.exp(mean_P))
        self.problem = make_problem(points, self.form, loss="huber", delta=1e-3, bounds={})
        self.found = best_fits(self.problem, self.log_y_BP, np.ones_like(self.log_y_BP), num_starts=12)
        curve = float(evaluate(self.form, truth_1K, *design.target)[0])
        fresh_B = curve * np.exp(design.noise_sd * rng.standard_normal(num_tables))
        self.truth = {name: np.full(num_tables, design.truth[self.form.index(name)]) for name in self.form.exponents}
        self.truth |= {"curve": np.full(num_tables, curve), "new": fresh_B}

    def problem_of(self, table: int) -> Problem:
        return replace(self.problem, log_y_P=self.log_y_BP[table])

    def rows(self, method: str, table: int, ends: dict[str, tuple[float, float]]) -> list[tuple[str, str, bool, float]]:
        true = {name: float(values[table]) for name, values in self.truth.items()}
        return [(method, name, low <= true[name] <= high, high - low) for name, (low, high) in ends.items()]

    def profiled(self, tables: Sequence[int], level: float) -> list[tuple[str, str, bool, float]]:
        rows = []
        for table in tables:
            problem, theta_K = self.problem_of(table), self.found.theta_BK[table]
            objective = float(self.found.objective_B[table])
            ends = {}
            for name in self.form.exponents:
                profile = profile_exponent(problem, theta_K, objective, name, level=level, num=25)
                ends[name] = (profile.low, profile.high)
            rows += self.rows(PROFILE, table, ends)
        return rows

    def resampled(
        self, tables: Sequence[int], method: str, num_resamples: int, level: float
    ) -> list[tuple[str, str, bool, float]]:
        drawn = [
            draw_tables(self.problem_of(t), self.found.theta_BK[t], method=method, num=num_resamples, seed=t)
            for t in tables
        ]
        counts = [len(one.noise_R) for one in drawn]
        refits = refit(
            self.problem,
            np.concatenate([one.log_y_RP for one in drawn]),
            np.concatenate([one.weight_RP for one in drawn]),
            np.repeat(self.found.theta_BK[list(tables)], counts, axis=0),
        )
        natural_RK = self.problem.design.to_natural(refits.theta_BK)
        rows = []
        for table, one, mine_RK in zip(tables, drawn, np.split(natural_RK, np.cumsum(counts)[:-1]), strict=True):
            if len(mine_RK) < MIN_USABLE:
                rows += [(method, name, False, np.nan) for name in self.truth]
                continue
            curve_R = evaluate(self.form, mine_RK, *self.design.target)
            held = {name: mine_RK[:, self.form.index(name)] for name in self.form.exponents}
            fresh_R = np.exp(one.noise_R * np.random.default_rng(table).standard_normal(len(curve_R)))
            held |= {"curve": curve_R, "new": curve_R * fresh_R}
            ends = {name: percentile_interval(values, level) for name, values in held.items()}
            rows += self.rows(method, table, {name: (float(low), float(high)) for name, (low, high) in ends.items()})
        return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the coverage of every method in both designs, with independent points and with correlated trunks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--level", type=float, default=0.9)
    parser.add_argument("--correlations", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument(
        "--designs", nargs="+", choices=["identified", "unidentified"], default=["identified", "unidentified"]
    )
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, PROFILE], default=[*METHODS, PROFILE])
    chosen = parser.parse_args(arguments)
    for design in (design for design in DESIGNS if design.name.split(":")[0] in chosen.designs):
        for correlation in chosen.correlations:
            case = replace(design, trunk_correlation=correlation)
            frame = measure(
                case,
                methods=chosen.methods,
                num_tables=chosen.tables,
                num_resamples=chosen.resamples,
                level=chosen.level,
            )
            print(
                f"\n{design.name}, trunk correlation {correlation:g}, nominal {chosen.level:g}, {chosen.tables} tables"
            )
            print(frame.to_string(index=False, float_format=lambda number: f"{number:.3f}"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
