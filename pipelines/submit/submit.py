"""Submit a grid as a Ray Job, and see that its driver has really started.

The job runs what ``gridlaw run`` runs. Nothing of it depends on the client, which may end as soon as the job is there.
"""

from __future__ import annotations

import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from gridlaw.pipelines.place import Place
from gridlaw.pipelines.submit import credentials
from gridlaw.pipelines.submit.package import GRID_FILE, SHIP_LIMIT_MIB, Package, make_package, without_passwords
from gridlaw.pipelines.submit.place import check_place, check_storage_place
from gridlaw.platform.addresses import redacted
from gridlaw.platform.errors import BadInput, GridlawError
from gridlaw.platform.jobs import GRID_KEY, Job, JobServer
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.tracking import sqlite_path
from gridlaw.platform.spec.grid import GridSpec

STORE_KEY, TRACKING_KEY = "gridlaw.store", "gridlaw.tracking_uri"
WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.5
_PARENT = "gridlaw.pipelines.submit.parent"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job that is there. started: the ledger has its run; False while that cannot be said. output: what it printed,
    where it has ended already. exit_code: of a job that has ended.
    """

    job: Job
    package: Package
    started: bool = False
    exit_code: int | None = None
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class Options:
    """restarts: after a death by signal. forward: names of further variables to send along. python: the cluster's
    interpreter that has gridlaw. rerun, shared_store, autoscaling: as for ``run_grid``. wait_seconds: for the driver's
    start.
    """

    restarts: int = 0
    ship_limit_mib: float = SHIP_LIMIT_MIB
    forward: Sequence[str] = ()
    python: str = "python"
    rerun: bool = False
    shared_store: bool = False
    autoscaling: bool = False
    wait_seconds: float = WAIT_SECONDS


def submit_grid(
    spec: GridSpec,
    grid_text: str,
    address: str,
    *,
    environment: Mapping[str, str],
    options: Options | None = None,
    say: Callable[[str], None],
) -> Submission:
    """Submit a grid or a study to the job server at ``address``.

    spec: planned already, with the store, the tracking server and the storage that the job shall use. grid_text: of its
    file, shipped without passwords. environment: where credentials are taken from. say: one sentence for people. Raises
    ``BadInput`` for what is refused; nothing was submitted then.
    """
    options = options or Options()
    run, name = spec.run, spec.name
    check_place(run, num_nodes=1)
    Place.of_run(run)  # refuses a store without a place for the ledger
    if spec.tune is not None:
        check_storage_place(run)
        if options.autoscaling:
            raise BadInput("--autoscaling", seen=name, allowed="a grid: a study runs on the nodes that are there")
    package = make_package(spec, without_passwords(grid_text, spec.base_folder), limit_mib=options.ship_limit_mib)
    server = JobServer.connect(address)
    check_place(run, num_nodes=len(server.nodes()), shared_store=options.shared_store)
    sent = credentials.collect(environment, run, asked=options.forward)
    for sentence in _told(package, sent, options, run.store or ""):
        say(sentence)
    job_id = new_job_id(name)
    told = {GRID_KEY: name, STORE_KEY: run.store or "", "gridlaw.version": metadata.version("gridlaw")}
    with tempfile.TemporaryDirectory(prefix="gridlaw-") as scratch:
        package.write(Path(scratch))
        if sent:
            credentials.write(Path(scratch), sent)
        server.submit(
            entrypoint(
                _command(spec, options),
                run.store,
                credentials.public(run.tracking_uri),
                python=options.python,
                restarts=options.restarts,
            ),
            job_id=job_id,
            working_folder=Path(scratch),
            metadata=told | ({TRACKING_KEY: redacted(run.tracking_uri)} if run.tracking_uri else {}),
        )
    submission = Submission(job=server.job(job_id), package=package)
    return _until_started(server, spec, submission, wait_seconds=options.wait_seconds)


def entrypoint(
    command: Sequence[str], store: str | None, tracking_uri: str | None, *, python: str, restarts: int
) -> str:
    """A job's command line for a gridlaw command. Everybody can read it: no credentials here."""
    words = [python, "-m", _PARENT, "--restarts", str(restarts), "--", *command]
    for option, value in (("--store", store), ("--tracking-uri", tracking_uri)):
        words += [option, value] if value is not None else []
    return shlex.join(words)


def _command(spec: GridSpec, options: Options) -> list[str]:
    command = ["run", GRID_FILE, "--address", "auto", "--plain"]
    if spec.tune is not None:
        storage = credentials.public(spec.run.storage)
        command = ["tune", *command, *(["--storage", storage] if storage is not None else [])]
    command += ["--rerun"] if options.rerun else []
    command += ["--autoscaling"] if options.autoscaling else []
    return command + (["--shared-store"] if options.shared_store else [])


def _told(package: Package, sent: Mapping[str, str], options: Options, store: str) -> list[str]:
    """What a person should know of what was sent and what was not."""
    names = [GRID_FILE, *package.files]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    told = [f"shipped: {', '.join(names[:5])}{more} ({package.num_bytes / 2**20:.1f} MiB)"]
    if sent:
        told.append(f"sent along, in a file of the job's owner only: {', '.join(sent)}")
    needed = [f"gridlaw {metadata.version('gridlaw')} for {options.python}, with the mixers of other packages"]
    needed += [f"the store {store}", *package.required]
    told.append("must be there already, on every node: " + "; ".join(needed))
    return told


def new_job_id(name: str) -> str:
    """With the grid's name, the time, and something that no other has."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:60] or "grid"
    return f"gridlaw-{plain}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def _until_started(server: JobServer, spec: GridSpec, submission: Submission, *, wait_seconds: float) -> Submission:
    """Wait until the ledger has the job's run, or the job has ended, or the time is over."""
    deadline = time.monotonic() + wait_seconds
    look = _LedgerLook(spec, submission.job.job_id)
    while True:
        job = server.job(submission.job.job_id)
        if job.ended:
            output = printed(server.logs(job.job_id))
            code = job.exit_code if job.exit_code is not None else 1
            return replace(submission, job=job, started=look(), exit_code=code, output=output)
        started = job.status == "RUNNING" and look()
        if started or time.monotonic() > deadline:
            return replace(submission, job=job, started=started)
        time.sleep(_POLL_SECONDS)


class _LedgerLook:
    """Whether the ledger has the run of a job; never, where this machine cannot reach the ledger."""

    def __init__(self, spec: GridSpec, job_id: str) -> None:
        self._spec, self._job_id = spec, job_id
        self._place = Place.of_run(spec.run)
        self._unreachable = False

    def __call__(self) -> bool:
        path = sqlite_path(self._place.tracking_uri)
        if self._unreachable or (path is not None and not path.exists()):
            return False
        try:
            store = self._place.store(create=False)
            ledger = Ledger.open(
                self._place.tracking_uri, self._spec.name, store.address, create=False, patience_seconds=2.0
            )
            kind = "submission" if self._spec.tune is None else "study"
            return ledger is not None and bool(ledger.find_runs(kind, tags={"job_id": self._job_id}))
        except GridlawError:
            self._unreachable = True
            return False


def printed(logs: str) -> str:
    """A job's own words: without the lines that Ray writes before them."""
    lines = logs.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("Running entrypoint for job")), -1)
    return "\n".join(lines[first + 1 :]).strip()
