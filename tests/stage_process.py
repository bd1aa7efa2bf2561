"""A stage in a process of its own that can be killed, with an environment of its own: as on another node."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any


def context() -> ForkServerContext:
    """Processes forked from a server that has imported everything: real ones, without the seconds of imports."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["gridlaw.pipelines.stages.train", "gridlaw.pipelines.stages.remote", "boto3"])
    return found


def start(stage: str, task: dict[str, Any], store: str, environment: Mapping[str, str]) -> ForkServerProcess:
    """Start a stage as a worker would."""
    process = context().Process(target=_run, args=(stage, task, store, dict(environment)))
    process.start()
    return process


def _run(stage: str, task: dict[str, Any], store: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    from gridlaw.pipelines.grid.executor import run_stage
    from gridlaw.pipelines.stages import remote

    remote.BRING_SECONDS = 0.2  # so that little steps suffice
    record = run_stage(stage, task, store)
    raise SystemExit(0 if "result" in record else str(record["failure"]))
