"""A sampler against random search of equal cost: hypervolumes of fronts over seeds; is the default setting beaten?

    python tests/benchmarks/compare_samplers.py switch-tune --seeds 3 --out comparison

Takes a tune file with stages. All but the last are the studies' common start: one grid, trained once. Every study has
the file's space, objectives and number of trials; only sampler and seed differ. Killed, the same command does what is
missing. Prints JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from gridlaw.pipelines.cli.tune import load_tune_plan
from gridlaw.pipelines.tune.settings import with_settings
from gridlaw.platform.tuning.front import dominates, hypervolume

IN_USE_SECONDS = 5.0


def gridlaw(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run there; its messages pass through."""
    command = [sys.executable, "-m", "gridlaw.pipelines.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def finish(folder: Path, *command: str, may_fail: bool = False) -> None:
    """Run or tune a file to its end. may_fail: some of its trials, which is told (exit code 1).

    Of a comparison that was killed the command under way lives on: what it does is waited for.
    """
    *kind, _, file = command
    while True:
        code = gridlaw(folder, *command, "--plain").returncode
        if code == 0 or (code == 1 and may_fail):
            return
        driver = json.loads(gridlaw(folder, *kind, "status", file, "--json").stdout or "{}").get("driver")
        if code != 2 or driver is None:
            raise SystemExit(f"gridlaw {' '.join(command)} ended with exit code {code}")
        time.sleep(IN_USE_SECONDS)


def files(file: str, folder: Path, *, trials: int | None, seeds: int) -> tuple[str | None, dict[tuple[str, int], str]]:
    """Write the grid of the common start, and a tune file for each sampler and seed; their names.

    No such grid where the file has one stage, from a point of another experiment in the ledger below the folder.
    """
    plan = load_tune_plan(file)
    start = plan.base.trunks[-1].base
    if start is None:
        raise SystemExit(f"{file}: its last stage has to start from a finished model")
    base = with_settings(plan.spec, {}, name=f"{plan.spec.name}-base")
    last = base["stages"].pop()
    base["evaluate"] = ["loss"]
    scales = [each.given() for each in plan.spec.blocks()[-1].scales]
    last |= {"scales": scales, "seeds": [plan.varied.id.seed]}
    if start.point is not None:
        (folder / "base.yaml").write_text(yaml.safe_dump(base))
        last["from"] = f"{base['name']}:{start.point.name}"
    whole = plan.spec.given() | {"stages": [last]}
    found = {}
    for sampler in (plan.tune.sampler.model_dump(exclude_none=True), {"name": "random"}):
        for seed in range(seeds):
            own: dict[str, Any] = copy.deepcopy(whole) | {"name": f"{plan.spec.name}-{sampler['name']}-{seed}"}
            own["tune"] |= {"sampler": {**sampler, "seed": seed}, "trials": trials or plan.tune.trials}
            found[sampler["name"], seed] = f"{sampler['name']}-{seed}.yaml"
            (folder / found[sampler["name"], seed]).write_text(yaml.safe_dump(own))
    return "base.yaml" if start.point is not None else None, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("comparison"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    base, studies = files(options.file, options.out, trials=options.trials, seeds=options.seeds)
    if base is not None:
        finish(options.out, "run", base)
    shown = {}
    for key, name in studies.items():
        finish(options.out, "tune", "run", name, may_fail=True)
        shown[key] = json.loads(gridlaw(options.out, "tune", "status", name, "--json").stdout)
    print(json.dumps(summary(shown), indent=1))


def summary(shown: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    """Hypervolume of each study below one reference (the worst of every objective over all), as a share of the box.

    shown: by sampler and seed, as ``tune status --json`` has them. Trials beyond their constraints count for nothing.
    The default is the first trial of each, None where that is none of the others' kind.
    """
    points = {
        key: {trial["number"]: [v if study["objectives"][n] == "min" else -v for n, v in trial["values"].items()]
              for trial in study["trials"] if trial["state"] == "complete" and trial["feasible"]}
        for key, study in shown.items()
    }  # fmt: skip
    columns = list(zip(*(point for each in points.values() for point in each.values()), strict=True))
    worst, best = [max(column) for column in columns], [min(column) for column in columns]
    widths = [high - low or 1.0 for high, low in zip(worst, best, strict=True)]
    scaled = {
        key: [[(v - low) / width for v, low, width in zip(point, best, widths, strict=True)] for point in each.values()]
        for key, each in points.items()
    }
    volumes = {key: hypervolume(each, [1.0] * len(best)) for key, each in scaled.items()}
    found: dict[str, Any] = {"reference": worst, "studies": {}}
    for (sampler, seed), study in shown.items():
        mine, default = points[sampler, seed], points[sampler, seed].get(0)
        found["studies"][f"{sampler}-{seed}"] = {
            "hypervolume": volumes[sampler, seed],
            "complete": len(mine),
            "front size": len(study["front"]),
            "front": study["front"],
            "default": default,
            "dominate the default": sum(default is not None and dominates(each, default) for each in mine.values()),
            "flops": sum(trial["flops"] or 0.0 for trial in study["trials"]),
        }
    for sampler in dict.fromkeys(key[0] for key in shown):
        own = [volumes[key] for key in shown if key[0] == sampler]
        found[sampler] = {"mean": statistics.mean(own), "sd": statistics.stdev(own) if len(own) > 1 else None}
    return found


if __name__ == "__main__":
    main()
