"""What evaluation took of a finished grid, beside training: seconds of tasks as the ledger has them.

gridlaw run quickstart
python tests/benchmarks/bench_evaluation_share.py gridlaw-runs quickstart
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from gridlaw.platform.ledger.tracking import default_tracking_uri, prepare_environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("experiment")
    given = parser.parse_args()
    prepare_environment()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=default_tracking_uri(given.store.resolve()))
    experiment = client.get_experiment_by_name(given.experiment)
    assert experiment is not None, f"no experiment {given.experiment} in {given.store}"
    seconds: dict[str, list[float]] = defaultdict(list)
    for run in client.search_runs([experiment.experiment_id], max_results=50_000):
        tags = run.data.tags
        kind = tags.get("gridlaw.kind")
        if kind in ("trunk", "point", "evaluation", "data") and "gridlaw.seconds" in tags:
            seconds[tags.get("gridlaw.evaluation", kind) if kind == "evaluation" else kind].append(
                float(tags["gridlaw.seconds"])
            )
    training = sum(seconds["trunk"]) + sum(seconds["point"])
    for kind, values in seconds.items():
        print(f"{kind:12} {len(values):4} runs {sum(values):9.1f} s {sum(values) / training:7.1%} of training")
    evaluating = sum(sum(values) for kind, values in seconds.items() if kind not in ("trunk", "point"))
    print(f"evaluation and its data: {evaluating:.1f} s, training: {training:.1f} s: {evaluating / training:.1%}")


if __name__ == "__main__":
    main()
