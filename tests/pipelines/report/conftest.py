"""Reports to draw: tables made from a known law with noise, in the shape the grid fills them.

These stand in for a ledger, not for the report: every figure and sentence is made by the code under test.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gridlaw.pipelines.report.data import (
    FailureRow,
    GridSummary,
    LawRow,
    MetricValue,
    PointRow,
    ReportData,
    Savings,
    TrunkRow,
)
from gridlaw.pipelines.stages.refit import refit

NUM_PARAMS = {"n1": 19_680, "n2": 47_360, "n3": 110_592, "n4": 262_144, "S1": 2_800_000, "S2": 7_100_000}
TRUE = {"a": 14.0, "alpha": 0.33, "b": 36.0, "beta": 0.30}


def true_loss(num_params: float, tokens: float, shift: float = 0.0) -> float:
    return TRUE["a"] * num_params ** -TRUE["alpha"] + TRUE["b"] * tokens ** -TRUE["beta"] + 0.9 + shift


def make_points(architectures, scales, budgets, seeds=(0,)) -> list[PointRow]:
    generator = np.random.default_rng(3)
    points = []
    for index, architecture in enumerate(architectures):
        for scale in scales:
            for budget in budgets:
                for seed in seeds:
                    num_params = NUM_PARAMS[scale]
                    tokens = math.ceil(num_params * budget / 8192) * 8192
                    loss = true_loss(num_params, tokens, 0.03 * index) * math.exp(generator.normal(0, 0.004))
                    accuracy = 0.125 + 0.01 * generator.normal() + (0.18 if scale == scales[-1] and index else 0.0)
                    points.append(
                        PointRow(
                            name=f"{architecture}/{scale}/{budget}N/seed{seed}",
                            architecture=architecture,
                            scale=scale,
                            budget=f"{budget}N",
                            seed=seed,
                            num_params=num_params,
                            num_params_own=int(num_params * (1 + 0.05 * index)),
                            tokens=tokens,
                            metrics={
                                "loss": MetricValue(value=loss, num_samples=120_000),
                                "bits_per_byte": MetricValue(value=loss / math.log(2)),
                                "niah": MetricValue(
                                    value=accuracy,
                                    low=accuracy - 0.04,
                                    high=accuracy + 0.04,
                                    chance=0.125,
                                    num_samples=256,
                                ),
                            },
                            train_flops=9.5 * num_params * tokens,
                            six_nd=6.0 * num_params * tokens,
                            seconds=4.2 + num_params * tokens / 1e10,
                            device_seconds=4.2 + num_params * tokens / 1e10,
                        )
                    )
    return points


def make_trunks(points: list[PointRow]) -> list[TrunkRow]:
    trunks: dict[str, TrunkRow] = {}
    for point in points:
        name = f"{point.architecture}/{point.scale}/seed{point.seed}"
        tokens = point.tokens or 0
        if name in trunks and trunks[name].tokens >= tokens:
            continue
        seen = np.geomspace(8192, max(tokens, 16384), 60)
        loss = [5.5 * math.exp(-t / 60_000) + true_loss(point.num_params, t) for t in seen]
        trunks[name] = TrunkRow(
            name=name,
            architecture=point.architecture,
            scale=point.scale,
            seed=point.seed,
            steps=tokens // 8192,
            tokens=tokens,
            seconds=tokens / 30_000,
            device_seconds=tokens / 30_000,
            tokens_per_second=30_000.0,
            train_flops=9.5 * point.num_params * tokens,
            curve_tokens=tuple(map(float, seen)),
            curve_loss=tuple(loss),
        )
    return list(trunks.values())


def make_law(points: list[PointRow], architecture: str, form: str, *, identified: bool = True) -> LawRow:
    """A real fit of the points by the grid's own stage, the largest one held out; only the verdict is chosen."""
    mine = [point for point in points if point.architecture == architecture and point.status == "done"]
    largest = max(mine, key=lambda point: (point.num_params, point.tokens or 0))
    task = {
        "architecture": architecture,
        "target": "loss",
        "form": form,
        "num_resamples": 40,
        "excluded": {},
        "points": [
            {
                "name": point.name,
                "scale": point.scale,
                "num_params": point.num_params,
                "tokens": point.tokens,
                "value": point.metrics["loss"].value,
                "trunk": f"{point.scale}/seed{point.seed}",
                "role": "verify" if point is largest else "fit",
            }
            for point in mine
        ],
    }
    done = refit(task)
    verdict = (
        "alpha and beta are identified by these points."
        if identified
        else "alpha is not identified: its 90% interval spans a factor of four; other values fit as well."
    )
    return replace(LawRow.from_dict(done["row"]), fit=done["fit"], identified=identified, verdict=verdict)


def make_report(architectures=("full", "swa-64", "gdn"), scales=("n1", "n2", "n3"), budgets=(5, 10, 20), seeds=(0,)):
    points = make_points(architectures, scales, budgets, seeds)
    tokens = sum(point.tokens or 0 for point in points)
    return ReportData(
        experiment="quickstart",
        created="2026-11-29T12:00:00+00:00",
        versions={"gridlaw": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "commit": "dfd3c16"},
        hardware="2 CPU cores, 8 GB, Linux",
        wall_seconds=262.0,
        grid=GridSummary(
            architectures=tuple(architectures),
            scales=tuple(scales),
            budgets=tuple(f"{b}N" for b in budgets),
            seeds=tuple(seeds),
            context=512,
            data="embedded:python, bytes",
            training="AdamW, WSD, 8192 tokens a step",
            yaml="name: quickstart\n",
        ),
        points=tuple(points),
        trunks=tuple(make_trunks(points)),
        laws=tuple(
            make_law(points, architecture, form, identified=architecture != architectures[-1])
            for architecture in architectures
            for form in ("nd", "d")
        ),
        savings=Savings(
            tokens_trained=int(tokens * 0.66),
            tokens_without_sharing=tokens,
            train_flops=3.1e13,
            train_flops_without_sharing=4.9e13,
        ),
    )


def with_failures(report: ReportData) -> ReportData:
    points = list(report.points)
    points[1] = replace(
        points[1],
        status="failed",
        reason="RuntimeError: the worker ran out of memory (3 attempts)",
        metrics={},
        tokens=None,
    )
    points[5] = replace(
        points[5],
        status="diverged",
        reason="non-finite loss at step 38 (311,296 tokens)",
        metrics={"loss": MetricValue(value=math.nan)},
    )
    points[7] = replace(points[7], status="blocked", reason="its trunk failed", metrics={}, tokens=None)
    points[8] = replace(points[8], status="not run", reason="", metrics={}, tokens=None)
    failure = FailureRow(
        name="gdn/n1/5N/seed0 niah",
        kind="evaluation",
        status="failed",
        reason="ValueError: haystack shorter than the context",
        attempts=1,
    )
    return replace(report, points=tuple(points), failures=(failure,))


@pytest.fixture(name="make_report")
def _make_report():
    return make_report


@pytest.fixture(name="with_failures")
def _with_failures():
    return with_failures


@pytest.fixture
def sample_report():
    return make_report()
