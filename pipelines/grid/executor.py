"""Stage functions as Ray tasks, one at a time per core or device, every end turned into an ``Outcome``.

One remote function serves all stages, so a worker that has imported torch once is used again by the next task (the
import costs 5 s, a warm task milliseconds). Ray itself retries nothing: the driver decides what is tried again, because
only it knows whether the store still holds a checkpoint to go on from.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gridlaw.pipelines.grid.graph import NodeKey
from gridlaw.pipelines.grid.outcome import Failure, Outcome, failure_of
from gridlaw.pipelines.submit import credentials
from gridlaw.platform.cluster import Request
from gridlaw.platform.errors import Surroundings
from gridlaw.platform.store.cache import local_folder
from gridlaw.platform.store.local import gone_message, is_gone
from gridlaw.platform.store.open import attach_store, is_remote

# Stage functions by name; imported in the worker, so that the driver stays free of torch.
STAGES: Mapping[str, str] = {
    "prepare": "gridlaw.pipelines.stages.prepare:prepare",
    "segment": "gridlaw.pipelines.stages.train:train_segment",
    "decay": "gridlaw.pipelines.stages.train:decay",
    "adopt": "gridlaw.pipelines.stages.train:adopt",
    "examples": "gridlaw.pipelines.stages.evaluate:examples",
    "evaluate": "gridlaw.pipelines.stages.evaluate:evaluate",
    "refit": "gridlaw.pipelines.stages.refit:refit",
}
WITHOUT_FILES = ("refit",)


def run_stage(stage: str, task: dict[str, Any], store: str) -> dict[str, Any]:
    """Call a stage function with its JSON-able task; its result, or how it failed, as a dict.

    store: the address of the store that the task works in. If that vanished, whatever became of the task is told as
    that: a checkpoint that cannot be found is no mistake of the task, and a result in a vanished store is none.
    """
    try:
        credentials.load()  # of a Ray Job, whose folder is a worker's working directory
        _require(store)
        module, name = STAGES[stage].split(":")
        function = getattr(importlib.import_module(module), name)
        if stage not in WITHOUT_FILES:
            task = _with_weights(task, store)
        if stage in WITHOUT_FILES or not is_remote(store):
            result = function(task)
        else:
            from gridlaw.pipelines.stages.remote import run_remotely

            result = run_remotely(stage, function, task, attach_store(store))
        _require(store)
    except BaseException as error:  # a record for the driver; nothing is swallowed, the driver tells it
        failure = failure_of(error, store=store)
        if failure.kind in ("exception", "input") and is_gone(store):
            failure = replace(failure, kind="store", reason=gone_message(store))
        return {"failure": asdict(failure)}
    return {"result": result}


def _with_weights(task: dict[str, Any], store: str) -> dict[str, Any]:
    """``task`` with the weights that it starts from on this machine, if they are in S3 and outside its own store."""
    place = task.get("job", task)
    address = place.get("start_weights")
    if not address or not is_remote(address) or address.startswith(f"{store}/"):
        return task
    parent, _, name = address.rpartition("/")
    here = {**place, "start_weights": str(local_folder(attach_store(parent), name))}
    return {**task, "job": here} if "job" in task else here


def _require(store: str) -> None:
    if is_gone(store):
        raise Surroundings(gone_message(store))


@dataclass
class RayExecutor:
    """Submits to the Ray that is connected in this process.

    store: the address of the submission's store.
    """

    store: str
    _running: dict[Any, NodeKey] = field(default_factory=dict)
    _remote: Any = None

    def submit(self, key: NodeKey, stage: str, task: dict[str, Any], request: Request) -> None:
        import ray

        if self._remote is None:
            self._remote = ray.remote(max_retries=0)(run_stage)
        self._running[self._remote.options(**request.as_options()).remote(stage, task, self.store)] = key

    def num_running(self) -> int:
        return len(self._running)

    def wait(self, timeout_seconds: float) -> list[tuple[NodeKey, Outcome]]:
        """Tasks that ended within the time, as soon as there is one."""
        import ray

        if not self._running:
            return []
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout_seconds)
        if ready:  # take whatever else ended meanwhile
            ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return [(self._running.pop(ref), _outcome(ref)) for ref in ready]

    def kill_all(self) -> None:
        """Give up on what still runs (it was asked to stop first and had its time)."""
        import ray

        for ref in self._running:
            ray.cancel(ref, force=True)
        self._running.clear()


def _outcome(ref: Any) -> Outcome:
    import ray.exceptions

    try:
        record = ray.get(ref)
    except ray.exceptions.OutOfMemoryError as error:
        return Outcome(failure=Failure(kind="memory", reason=f"out of memory on its node: {_first_line(error)}"))
    except ray.exceptions.RayError as error:
        return Outcome(failure=Failure(kind="lost", reason=f"worker lost: {_first_line(error)}"))
    if "failure" in record:
        return Outcome(failure=Failure(**record["failure"]))
    return Outcome(result=record["result"])


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]
