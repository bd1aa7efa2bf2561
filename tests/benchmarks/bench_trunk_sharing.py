"""Branches of one trunk against cosine runs of the same budgets: held-out loss over several seeds.

    python tests/benchmarks/bench_trunk_sharing.py [--scale n1] [--unit 10] [--seeds 0 1 2] [--optimizer muon]
                                                   [--ratio 1 2 3 4 5 10] [--decay-fraction 0.1]

Budgets are 1, 2, 3, 4, 5 and 10 times ``unit`` · N, the paper's ratio 100N to 1000N. The trunk and its decays (1 - sqrt
over a tenth of the budget) cost 11.5 units of tokens, the cosine runs 25. That a branch is bit-identical to a run of
its own with the same schedule is a test (tests/modules/training/test_trunk_study.py). Aim: within 0.5 % of cosine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gridlaw.modules.catalog import full_num_params, model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.prepare import prepare
from gridlaw.modules.scale import Scale
from gridlaw.modules.training.checkpoint_files import checkpoint_name
from gridlaw.modules.training.fit import FitJob, fit
from gridlaw.modules.training.schedule import branch_plan
from gridlaw.modules.training.settings import TrainingSettings
from gridlaw.pipelines.evaluations.run import evaluate

RATIO = (1, 2, 3, 4, 5, 10)


class Study:
    """One scale, one architecture; every fit in a folder of its own."""

    def __init__(self, given: argparse.Namespace, scale: Scale, folder: Path) -> None:
        self.given, self.scale, self.folder = given, scale, folder
        declaration = declare({}, base_folder=folder, context=given.context)
        self.data = folder / prepared_name(declaration)
        prepare(declaration, self.data)
        self.tokens = 0

    def settings(self, schedule: dict[str, Any]) -> TrainingSettings:
        values = {
            "batch_tokens": self.given.batch_tokens,
            "precision": "fp32",
            "optimizer": {"name": self.given.optimizer},
            "schedule": {"warmup_steps": self.given.warmup_steps, **schedule},
        }
        return TrainingSettings.from_dict(values, scale=self.scale)

    def job(self, name: str, seed: int, settings: TrainingSettings, **more: Any) -> FitJob:
        config = model_config(
            resolve_architecture(self.given.architecture), self.scale, vocab_size=257, context=self.given.context
        )
        return FitJob(
            model=config.to_dict(),
            training=settings.to_dict(),
            seed=seed,
            data=str(self.data),
            context=self.given.context,
            folder=str(self.folder / f"{name}-{seed}"),
            accelerator="cpu",
            checkpoint_every_steps=0,
            **more,
        )

    def loss(self, job: FitJob) -> float:
        """Train to the job's end; the held-out loss of its model, nats per token."""
        self.tokens += fit(job).executed_now * self.given.batch_tokens
        folder = Path(job.folder)
        result = evaluate(
            "loss",
            {"tokens": self.given.heldout_tokens},
            model_folder=folder / "model",
            prepared_folder=self.data,
            work_folder=folder / "evaluation",
        )
        return float(result["metrics"]["loss"])

    def branches(self, seed: int, budgets: list[int]) -> list[float]:
        """Losses of all budgets (in optimizer steps) from one trunk."""
        settings = self.settings({"decay_fraction": self.given.decay_fraction})
        plans = [branch_plan(steps, settings.schedule) for steps in budgets]
        kept = tuple(plan.trunk_steps for plan in plans)
        trunk = self.job("trunk", seed, settings, until_step=max(kept), keep_steps=kept)
        self.tokens += fit(trunk).executed_now * self.given.batch_tokens
        return [
            self.loss(
                self.job(
                    f"branch-{plan.total_steps}",
                    seed,
                    settings,
                    start_checkpoint=str(Path(trunk.folder) / checkpoint_name(plan.trunk_steps)),
                    until_step=plan.total_steps,
                    decay_start_step=plan.decay_start_step,
                    decay_steps=plan.decay_steps,
                )
            )
            for plan in plans
        ]

    def cosine(self, seed: int, steps: int) -> float:
        """Loss of a cosine run of its own."""
        settings = self.settings({"name": "cosine"})
        plan = branch_plan(steps, settings.schedule)
        more = {"until_step": steps, "decay_start_step": plan.decay_start_step, "decay_steps": plan.decay_steps}
        return self.loss(self.job(f"cosine-{steps}", seed, settings, **more))


def main() -> None:
    """Parse the command line and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="n1")
    parser.add_argument("--architecture", default="full")
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--unit", type=float, default=10, help="the smallest budget, in N")
    parser.add_argument("--ratio", type=int, nargs="+", default=RATIO, help="the budgets, in units")
    parser.add_argument("--decay-fraction", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--warmup-steps", type=int, default=20)
    parser.add_argument("--heldout-tokens", type=int, default=262_144)
    given = parser.parse_args()
    torch.set_num_threads(1)
    scale = resolve_scale(given.scale)
    num_params = full_num_params(scale)
    budgets = [math.ceil(given.unit * k * num_params / given.batch_tokens) for k in given.ratio]
    started = time.process_time()
    wsd: list[list[float]] = []
    cosine: list[list[float]] = []
    with tempfile.TemporaryDirectory() as name:
        study = Study(given, scale, Path(name))
        shared = apart = 0
        for seed in given.seeds:
            study.tokens = 0
            wsd.append(study.branches(seed, budgets))
            shared, study.tokens = shared + study.tokens, 0
            cosine.append([study.cosine(seed, steps) for steps in budgets])
            apart += study.tokens
            differences = ", ".join(f"{a / b - 1:+.2%}" for a, b in zip(wsd[-1], cosine[-1], strict=True))
            print(f"seed {seed}: {differences}; {time.process_time() - started:.0f} CPU s so far", flush=True)
    print(f"\n{given.architecture} at {given.scale}, {given.optimizer}, seeds {given.seeds}; held-out nats per token\n")
    print("| budget | steps | trunk and branch | cosine | difference | range over seeds |")
    print("|--:|--:|--:|--:|--:|--:|")
    for index, (k, steps) in enumerate(zip(given.ratio, budgets, strict=True)):
        mine, theirs = [row[index] for row in wsd], [row[index] for row in cosine]
        relative = [a / b - 1 for a, b in zip(mine, theirs, strict=True)]
        print(
            f"| {given.unit * k:g}N | {steps} | {statistics.mean(mine):.4f} | {statistics.mean(theirs):.4f} | "
            f"{statistics.mean(relative):+.2%} | {min(relative):+.2%} to {max(relative):+.2%} |"
        )
    print(f"\n{shared:,} tokens with trunks, {apart:,} without ({shared / apart:.0%})")


if __name__ == "__main__":
    main()
