"""Stop a grid's driver in order: it saves what runs, marks its runs, and leaves."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from gridlaw.pipelines.place import Place
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.jobs import STOP_WAIT_SECONDS, JobServer
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.store.lease import look

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = STOP_WAIT_SECONDS + 30.0


def stop_job(address: str, name: str) -> str:
    """Stop the job of that id, or the newest of the grid of that name, and wait for its end; says how it ended."""
    server = JobServer.connect(address)
    job = server.find(name)
    if job.ended:
        return f"{job.job_id} has ended already ({job.status})"
    server.stop(job.job_id)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if server.job(job.job_id).ended:
            return f"{job.job_id} stopped; what ran was saved. Submit it again to go on"
        time.sleep(_POLL_SECONDS)
    raise Surroundings(f"{job.job_id} has not ended within {_PATIENCE_SECONDS:.0f} s of being asked to stop")


def stop_here(spec: GridSpec) -> str:
    """Stop the driver of a grid or a study that runs on this machine, and wait until its lease is free."""
    store = Place.of_run(spec.run).store(create=False)
    name = spec.name
    seen = look(store, name)
    if seen is None or seen.stale or seen.owner is None:
        return f"no driver runs {name}"
    if not seen.owner.is_here:
        raise BadInput(
            "grid",
            seen=name,
            allowed="a grid whose driver runs on this machine",
            hint=f"It is {seen.owner}. For a job give --address of its cluster",
        )
    with suppress(ProcessLookupError):
        os.kill(seen.owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        now = look(store, name)
        if now is None or now.stale or now.content != seen.content:
            return f"{name} stopped; what ran was saved. Run it again to go on"
        time.sleep(_POLL_SECONDS)
    raise Surroundings(f"the driver of {name} ({seen.owner}) has not ended within {_PATIENCE_SECONDS:.0f} s")
