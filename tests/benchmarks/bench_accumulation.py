"""Losses of one run under accumulations of 1, 2 and 4: how far they part, by optimizer and precision.

    python tests/benchmarks/bench_accumulation.py [--scale n1] [--steps 20]

The gradients are equal up to the order of sums (a test). AdamW keeps the losses together; Muon's Newton-Schulz runs in
bf16 and makes a rounding of a gradient one of the update, so its losses part: the figure here says by how much.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.declaration import declare, prepared_name
from gridlaw.modules.data.prepare import prepare
from gridlaw.modules.training.fit import FitJob, fit
from gridlaw.modules.training.json_logger import JsonLinesLogger
from gridlaw.modules.training.settings import TrainingSettings

CONTEXT, WINDOWS = 256, 8


def losses(folder: Path, data: Path, given: argparse.Namespace, optimizer: str, accumulate: int) -> list[float]:
    """Training losses of all steps with ``accumulate`` micro-batches a step."""
    scale = resolve_scale(given.scale)
    config = model_config(resolve_architecture("full"), scale, vocab_size=257, context=CONTEXT)
    training = {"batch_tokens": CONTEXT * WINDOWS, "precision": "fp32", "optimizer": {"name": optimizer}}
    job = FitJob(
        model=config.to_dict(),
        training=TrainingSettings.from_dict(training, scale=scale).to_dict(),
        seed=0,
        data=str(data),
        context=CONTEXT,
        folder=str(folder / f"{optimizer}-{accumulate}"),
        until_step=given.steps,
        accelerator="cpu",
        micro_batch=WINDOWS // accumulate,
        checkpoint_every_steps=0,
    )
    log = JsonLinesLogger(job.folder + ".jsonl")
    fit(job, logger=log)
    return [row["loss"] for row in log.rows()]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="n1")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        declaration = declare({}, base_folder=folder, context=CONTEXT)
        data = folder / prepared_name(declaration)
        prepare(declaration, data)
        print(
            f"full at {given.scale}, {given.steps} steps, fp32; largest difference of a step's loss from accumulation 1"
        )
        print("\n| optimizer | accumulation 2 | accumulation 4 |\n|---|--:|--:|")
        for optimizer in ("adamw", "muon"):
            whole, *others = (losses(folder, data, given, optimizer, accumulate) for accumulate in (1, 2, 4))
            spread = [max(abs(a - b) for a, b in zip(whole, other, strict=True)) for other in others]
            print(f"| {optimizer} | {spread[0]:.1e} | {spread[1]:.1e} |")


if __name__ == "__main__":
    main()
