"""Ray Jobs: submit, look, follow, stop. Over the job server's HTTP interface only; the Ray Client is never used.

Not here: what a job's state means for a grid. A driver that was killed may show as SUCCEEDED, so whether points are
done is asked of the ledger.

A cluster's token is taken from the environment as Ray takes it (``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH``, or with
``RAY_AUTH_MODE=token`` the file ``~/.ray/auth_token``), and never from a command line, which every user of a machine
can read.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from gridlaw.platform.addresses import bearer, redacted, split_address
from gridlaw.platform.cluster import Node
from gridlaw.platform.errors import BadInput, Surroundings

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails
    from ray.job_submission import JobSubmissionClient

Result = TypeVar("Result")

ADDRESS = "http://HOST:PORT of a Ray head's dashboard (8265 by default)"
ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
GRID_KEY = "gridlaw.grid"
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
# Ray would give a stopped job 3 s; trials that save need up to ten, and the end of a driver some more.
STOP_WAIT_SECONDS = 90
_AGENT_PATIENCE_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
# They would replace the address that was asked for.
_RAYS_OWN_ADDRESSES = (ADDRESS_VARIABLE, "RAY_ADDRESS")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A submitted job. status: Ray's (PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED). exit_code: of its entrypoint,
    where it has ended by itself. message: Ray's words about the end. start_seconds: since the epoch.
    """

    job_id: str
    status: str
    entrypoint: str
    exit_code: int | None = None
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 0.0

    @property
    def grid(self) -> str:
        """Name of the grid that it runs; "" for a job that is not ours."""
        return self.metadata.get(GRID_KEY, "")

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class JobServer:
    """The job server of a cluster. Made by ``connect``; methods raise ``BadInput`` or ``Surroundings``."""

    def __init__(self, address: str, client: JobSubmissionClient) -> None:
        self.address, self._client = address, client

    @staticmethod
    def connect(address: str) -> JobServer:
        """``BadInput`` for an address that is none, where nobody answers, or where the token is refused."""
        address = check_dashboard_address(address)
        with _own_address():
            from ray.job_submission import JobSubmissionClient

            _quiet()
            return JobServer(address, _asked(address, lambda: JobSubmissionClient(address, headers=_token_header())))

    def submit(
        self,
        entrypoint: str,
        *,
        job_id: str,
        working_folder: Path,
        metadata: Mapping[str, str],
    ) -> None:
        """Start a job. working_folder: shipped to every node. metadata: anybody who may look at the cluster can read
        it.

        A head that has just come up has no agent to run jobs yet; it is asked again for a minute.
        """
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_SECONDS)}
        runtime = {"working_dir": str(working_folder), "env_vars": variables}
        deadline = time.monotonic() + _AGENT_PATIENCE_SECONDS
        while True:
            try:
                _asked(
                    self.address,
                    lambda: self._client.submit_job(
                        entrypoint=entrypoint, submission_id=job_id, runtime_env=runtime, metadata=dict(metadata)
                    ),
                )
                return
            except Surroundings as error:
                if "No available agent" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(1.0)

    def jobs(self) -> list[Job]:
        """All submitted jobs, newest first."""
        found = [_job(details) for details in _asked(self.address, self._client.list_jobs) if details.submission_id]
        return sorted(found, key=lambda job: job.start_seconds, reverse=True)

    def find(self, name: str) -> Job:
        """The job of that id, or of the grid of that name: the newest under way, else the newest.

        ``BadInput`` if there is neither.
        """
        found = self.look(name)
        if found is not None:
            return found
        ours = list(dict.fromkeys(text for job in self.jobs() if job.grid for text in (job.grid, job.job_id)))
        raise BadInput(
            "job",
            seen=name,
            allowed=f"a grid or a job id at {self.address}: {', '.join(ours[:10])}" if ours else "a grid or a job id",
            hint="" if ours else f"{self.address} knows no gridlaw job",
        )

    def look(self, name: str) -> Job | None:
        """``find``, or None. Jobs that are not ours are left alone, whatever they are called."""
        jobs = [job for job in self.jobs() if job.grid]
        by_id = [job for job in jobs if job.job_id == name]
        by_grid = [job for job in jobs if job.grid == name]
        # One that was refused, because another drives the grid, may be newer than that other.
        under_way = [job for job in by_grid if not job.ended]
        return next(iter(by_id or under_way or by_grid), None)

    def job(self, job_id: str) -> Job:
        """The job as it is now."""
        return _job(_asked(self.address, lambda: self._client.get_job_info(job_id)))

    def logs(self, job_id: str) -> str:
        """What the job has printed."""
        return _asked(self.address, lambda: str(self._client.get_job_logs(job_id)))

    def follow(self, job_id: str) -> Iterator[str]:
        """What the job prints, as it comes, until it ends."""
        import asyncio

        tail = cast("AsyncGenerator[str, None]", self._client.tail_job_logs(job_id))
        loop = asyncio.new_event_loop()
        try:
            while True:
                try:
                    yield _asked(self.address, lambda: loop.run_until_complete(anext(tail)))
                except StopAsyncIteration:
                    return
        finally:
            loop.run_until_complete(tail.aclose())
            loop.close()

    def stop(self, job_id: str) -> bool:
        """Ask a job to save and leave (SIGTERM, with ``STOP_WAIT_SECONDS`` before a kill). False if it had ended."""
        return _asked(self.address, lambda: bool(self._client.stop_job(job_id)))

    def nodes(self) -> list[Node]:
        """The nodes alive now."""
        with _own_address():
            from ray.util.state.api import StateApiClient
            from ray.util.state.common import ListApiOptions, NodeState, StateResource

            client = StateApiClient(self.address, headers={"Content-Type": "application/json", **_token_header()})
            found = _asked(
                self.address,
                lambda: client.list(StateResource.NODES, ListApiOptions(), raise_on_missing_output=False),
            )
        return [
            Node(node_id=node.node_id, host=node.node_name, resources=dict(node.resources_total or {}))
            for node in found
            if isinstance(node, NodeState) and node.state == "ALIVE"
        ]


def check_dashboard_address(address: str) -> str:
    """The address in one form; ``BadInput`` for one that is none, or where nobody listens."""
    parts = split_address("--address", address, allowed=ADDRESS)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        hint = {
            "ray": "The Ray Client is not used; give the address of the dashboard",
            "": "Write it with http://",
        }.get(parts.scheme if "://" in address else "", "")
        raise BadInput("--address", seen=redacted(address), allowed=ADDRESS, hint=hint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise BadInput(
            "--address",
            seen=redacted(address),
            allowed=ADDRESS,
            hint=f"Nobody answers there ({error.strerror or error}). Is the head up, and the port its dashboard's?",
        ) from None
    return address.rstrip("/")


def submission_id() -> str:
    """Id of the Ray Job whose entrypoint this process belongs to; "" outside of one."""
    with suppress(KeyError, ValueError):
        config = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])
        return str(config.get("metadata", {}).get("job_submission_id", ""))
    return ""


def _asked(address: str, ask: Callable[[], Result]) -> Result:
    """Call the job server; its failures as typed errors."""
    import aiohttp
    import requests
    from ray.exceptions import AuthenticationError

    try:
        return ask()
    except AuthenticationError as error:
        raise _wrong_token(address, missing="required" in str(error)) from None
    except aiohttp.WSServerHandshakeError as error:
        if error.status in (401, 403):
            raise _wrong_token(address, missing=error.status == 401) from None
        raise Surroundings(f"the job server at {address} does not show logs: {error.status} {error.message}") from error
    except (requests.exceptions.RequestException, aiohttp.ClientError, ConnectionError) as error:
        raise Surroundings(f"the job server at {address} does not answer: {_first_line(error)}") from error
    except ValueError as error:  # an answer that is no JSON
        raise _no_job_server(address) from error
    except RuntimeError as error:
        text = str(error)
        if "Version check returned" in text:
            raise _no_job_server(address) from error
        matched = re.search(r"status code (\d+): (.*)", text, re.DOTALL)
        if matched and matched[1] == "404":
            raise BadInput("job", allowed=f"a job of {address}", hint=matched[2].strip()[:300]) from None
        raise Surroundings(f"the job server at {address}: {_telling_line(matched[2] if matched else text)}") from error


def _wrong_token(address: str, *, missing: bool) -> BadInput:
    return BadInput(
        f"the token for {address}",
        allowed="the cluster's token",
        hint=f"{'None was given' if missing else 'It was refused'}. Set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a "
        "file with it (`ray get-auth-token` on the head prints it)",
    )


def _no_job_server(address: str) -> BadInput:
    return BadInput("--address", seen=redacted(address), allowed=ADDRESS, hint="What answers there is no Ray dashboard")


def _token_header() -> dict[str, str]:
    """For the server to check. Nothing where no token was given: the file that Ray makes for clusters of its own is
    sent to other hosts only when asked for."""
    token = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or (Path.home() / ".ray" / "auth_token" if mode == "token" else None)
    if mode == "disabled":
        return {}
    if not token and path is not None:
        try:
            token = Path(path).read_text().strip()
        except OSError as error:
            raise BadInput(
                "RAY_AUTH_TOKEN", allowed="a token, or RAY_AUTH_TOKEN_PATH of a readable file", hint=str(error)
            ) from None
    return bearer("RAY_AUTH_TOKEN", token) if token else {}


@contextmanager
def _own_address() -> Iterator[None]:
    """Hide the variables by which Ray would go elsewhere than to the address that was given."""
    before = {name: os.environ.pop(name) for name in _RAYS_OWN_ADDRESSES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def _quiet() -> None:
    """Ray tells of each package that it uploads; what matters is told by the command."""
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.WARNING)


def _job(details: JobDetails) -> Job:
    return Job(
        job_id=str(details.submission_id),
        status=str(details.status.value),
        entrypoint=details.entrypoint,
        exit_code=details.driver_exit_code,
        message=details.message or "",
        metadata=details.metadata or {},
        start_seconds=(details.start_time or 0) / 1000,
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _telling_line(text: str) -> str:
    """Of a server's traceback the last line, of anything else the first."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or [""]
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:500]
