"""A sampler against random search of equal cost: hypervolumes of fronts over seeds; is the default setting beaten?

    python tests/benchmarks/compare_samplers.py switch-tune --seeds 3 --out comparison

Takes a tune file with two stages, of which the first is trained once for all studies. Every study has the file's space,
objectives and number of trials; only sampler and seed differ. Run again it does what is missing. Prints JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from gridlaw.pipelines.cli.tune import load_tune_plan
from gridlaw.pipelines.plan import grids_folder
from gridlaw.platform.spec.load import load_grid
from gridlaw.platform.tuning.front import dominates, hypervolume


def gridlaw(folder: Path, *arguments: str) -> str:
    """Standard output of the command, run there; its messages pass through."""
    command = [sys.executable, "-m", "gridlaw.pipelines.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def files(file: str, folder: Path, *, trials: int | None, seeds: int) -> tuple[str, dict[tuple[str, int], str]]:
    """Write the grid of the common start, and a tune file for each sampler and seed; their names."""
    load_tune_plan(file)  # says what is wrong with it
    whole = load_grid(file, shipped_folder=grids_folder()).given()
    first, last = whole["stages"]
    base = copy.deepcopy({key: value for key, value in whole.items() if key != "tune"}) | {"stages": [first]}
    base["name"] = f"{whole['name']}-base"
    base["evaluate"] = ["loss"]
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    _, architecture, *parts = last["from"].split("/")
    (scale,) = first["scales"]
    name = scale if isinstance(scale, str) else scale["name"]
    source = f"{base['name']}:{first['name']}/{architecture}/{name}/{parts[-1]}/seed0"
    found = {}
    for sampler in (whole["tune"]["sampler"], {"name": "random"}):
        for seed in range(seeds):
            own: dict[str, Any] = copy.deepcopy(whole) | {"name": f"{whole['name']}-{sampler['name']}-{seed}"}
            own["stages"] = [{**copy.deepcopy(last), "from": source, "scales": [scale]}]
            own["tune"]["sampler"] = {**sampler, "seed": seed}
            own["tune"]["trials"] = trials or own["tune"]["trials"]
            found[sampler["name"], seed] = f"{sampler['name']}-{seed}.yaml"
            (folder / found[sampler["name"], seed]).write_text(yaml.safe_dump(own))
    return "base.yaml", found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("comparison"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    base, studies = files(options.file, options.out, trials=options.trials, seeds=options.seeds)
    gridlaw(options.out, "run", base, "--plain")
    shown = {}
    for key, name in studies.items():
        gridlaw(options.out, "tune", "run", name, "--plain")
        shown[key] = json.loads(gridlaw(options.out, "tune", "status", name, "--json"))
    print(json.dumps(summary(shown), indent=1))


def summary(shown: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    """Hypervolume of each study below one reference (the worst of every objective over all), as a share of the box."""
    points = {
        key: [[v if study["objectives"][n] == "min" else -v for n, v in trial["values"].items()]
              for trial in study["trials"] if trial["state"] == "complete"]
        for key, study in shown.items()
    }  # fmt: skip
    columns = list(zip(*(point for each in points.values() for point in each), strict=True))
    worst, best = [max(column) for column in columns], [min(column) for column in columns]
    widths = [high - low or 1.0 for high, low in zip(worst, best, strict=True)]
    scaled = {
        key: [[(v - low) / width for v, low, width in zip(point, best, widths, strict=True)] for point in each]
        for key, each in points.items()
    }
    volumes = {key: hypervolume(each, [1.0] * len(best)) for key, each in scaled.items()}
    found: dict[str, Any] = {"reference": worst, "studies": {}}
    for (sampler, seed), study in shown.items():
        mine, default = points[sampler, seed], points[sampler, seed][0]
        found["studies"][f"{sampler}-{seed}"] = {
            "hypervolume": volumes[sampler, seed],
            "complete": len(mine),
            "front": study["front"],
            "default": default,
            "dominate the default": sum(dominates(point, default) for point in mine),
            "flops": sum(trial["flops"] or 0.0 for trial in study["trials"]),
        }
    for sampler in dict.fromkeys(key[0] for key in shown):
        own = [volumes[key] for key in shown if key[0] == sampler]
        found[sampler] = {"mean": statistics.mean(own), "sd": statistics.stdev(own) if len(own) > 1 else None}
    return found


if __name__ == "__main__":
    main()
