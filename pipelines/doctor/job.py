"""The doctor of a cluster that is reached through its job server: a short job looks from inside."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from gridlaw.pipelines.doctor.checks import Check
from gridlaw.pipelines.submit import credentials
from gridlaw.pipelines.submit.submit import entrypoint, new_job_id, printed
from gridlaw.platform.errors import Surroundings
from gridlaw.platform.jobs import JobServer
from gridlaw.platform.spec.sections import RunSection

LIMIT_SECONDS = 600.0
_POLL_SECONDS = 0.5


def examine_by_job(
    run: RunSection, address: str, *, environment: Mapping[str, str], shared_store: bool, python: str
) -> list[Check]:
    """``examine`` inside the cluster. ``BadInput`` for an address or a token that is wrong."""
    server = JobServer.connect(address)
    sent = credentials.collect(environment, run)
    command = ["doctor", "--address", "auto", "--json", *(["--shared-store"] if shared_store else [])]
    job_id = new_job_id("doctor")
    with tempfile.TemporaryDirectory(prefix="gridlaw-") as scratch:
        if sent:
            credentials.write(Path(scratch), sent)
        server.submit(
            entrypoint(command, run.store, credentials.public(run.tracking_uri), python=python, restarts=0),
            job_id=job_id,
            working_folder=Path(scratch),
            metadata={},
        )
    deadline = time.monotonic() + LIMIT_SECONDS
    while not server.job(job_id).ended:
        if time.monotonic() > deadline:
            server.stop(job_id)
            raise Surroundings(f"the doctor's job {job_id} has not ended within {LIMIT_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    output = printed(server.logs(job_id))
    for line in reversed(output.splitlines()):
        if line.startswith('{"ok":'):
            return [Check(**each) for each in json.loads(line)["checks"]]
    found = (output.splitlines() or ["nothing was printed"])[-1]
    missing = "No module named" in found or "not found" in found
    install = f"install gridlaw on every node, or give its interpreter by --python (now {python})"
    advice = install if missing else f"see gridlaw logs {job_id}"
    return [Check(check="gridlaw", ok=False, found=found, advice=advice)]
