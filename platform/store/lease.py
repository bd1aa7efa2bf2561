"""One driver per experiment: a lease object in the store, made atomically and renewed by a heartbeat.

Concurrency. The object is made with ``Store.create``, of whose callers one wins (a folder: a link; S3: If-None-
Match). It names its owner (host, machine, pid, start of the process, job id) and a random token; its content never
changes, and a heartbeat only renews its age, so that a full disk does not cost the lease. A second driver is refused
while the owner lives. The lease is stale when it was not renewed for ``stale_after_seconds``, or at once when the
owner's process is gone from this machine. Stale leases are replaced with ``Store.replace_if`` against the content
seen (S3: If-Match), so of several drivers that find it stale one wins, and an owner that comes back (a laptop that
slept) finds another token: it has lost, and says so through ``lost`` and ``on_lost``. An owner that cannot renew for
``stale_after_seconds`` counts itself as lost when others may take over, also where the heartbeat itself hangs in a
store that does not answer (``held``).
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType

from gridlaw.platform.errors import InUse, Surroundings
from gridlaw.platform.store.base import Store, experiment_name

STALE_AFTER_SECONDS = 60.0
HEARTBEAT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds a lease.

    machine: names one boot and one process table; pids may be compared only where it is equal. process_start: tells a
    pid used again from the one that took the lease. since: seconds since the epoch, by the owner's clock, for people
    only.
    """

    experiment: str
    host: str
    machine: str
    pid: int
    process_start: str
    since: float
    token: str
    job_id: str = ""

    @staticmethod
    def this_process(experiment: str, *, job_id: str = "") -> Owner:
        """The calling process as an owner, with a fresh token."""
        pid = os.getpid()
        return Owner(
            experiment=experiment,
            host=socket.gethostname(),
            machine=_machine(),
            pid=pid,
            process_start=_process_start(pid) or "",
            since=time.time(),
            token=secrets.token_hex(16),
            job_id=job_id,
        )

    @property
    def is_here(self) -> bool:
        """Whether it runs in this machine's process table, so that its pid means something here."""
        return self.machine == _machine()

    @property
    def dead(self) -> bool:
        """True only where it is certain: same machine, and no such process (or another one under its pid)."""
        return self.is_here and _process_start(self.pid) != self.process_start

    def encode(self) -> bytes:
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()

    @staticmethod
    def decode(data: bytes) -> Owner | None:
        """None for a content that no version of ours wrote in full."""
        try:
            values = json.loads(data)
            return Owner(**{field.name: values[field.name] for field in fields(Owner)})
        except (ValueError, KeyError, TypeError):
            return None

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        job = f", job {self.job_id}" if self.job_id else ""
        return f"pid {self.pid} on {self.host}{job}, since {since}"


@dataclass(frozen=True, kw_only=True)
class LeaseState:
    """What ``look`` saw: the owner, seconds since its last sign of life, and whether the lease may be taken over."""

    owner: Owner | None
    age_seconds: float
    stale: bool
    content: bytes


def lease_name(experiment: str) -> str:
    """Name of the lease object in the store."""
    return f"leases/{experiment_name(experiment)}.json"


def look(store: Store, experiment: str, *, stale_after_seconds: float = STALE_AFTER_SECONDS) -> LeaseState | None:
    """Who drives an experiment now; None if nobody holds the lease. Changes nothing."""
    name = lease_name(experiment)
    try:
        content = store.read_bytes(name)
        age = store.age_seconds(name)
    except FileNotFoundError:
        return None
    owner = Owner.decode(content)
    stale = age > stale_after_seconds or (owner is not None and owner.dead)
    return LeaseState(owner=owner, age_seconds=age, stale=stale, content=content)


class Lease:
    """A held lease; release it in the end, or use it as a context manager. Made by ``Lease.acquire``."""

    def __init__(
        self,
        store: Store,
        owner: Owner,
        *,
        on_lost: Callable[[str], None] | None,
        heartbeat_seconds: float,
        stale_after_seconds: float,
        clock: Callable[[], float],
        renewed: float,
    ) -> None:
        self.owner = owner
        self.lost = threading.Event()
        self.lost_reason = ""
        self._store, self._name, self._content = store, lease_name(owner.experiment), owner.encode()
        self._on_lost, self._clock = on_lost, clock
        self._heartbeat_seconds, self._stale_after_seconds = heartbeat_seconds, stale_after_seconds
        self._renewed = renewed
        self._stopping, self._losing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="gridlaw-lease", daemon=True)

    @staticmethod
    def acquire(
        store: Store,
        experiment: str,
        *,
        job_id: str = "",
        on_lost: Callable[[str], None] | None = None,
        owner: Owner | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        stale_after_seconds: float = STALE_AFTER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> Lease:
        """Take the lease or raise ``InUse`` naming the driver that holds it.

        on_lost: called once with the reason, from the heartbeat's thread or the driver's. owner: another identity than
        this process's, for tests.
        """
        owner = owner or Owner.this_process(experiment, job_id=job_id)
        name, content = lease_name(experiment), owner.encode()
        for _ in range(100):  # each turn lost means that another driver has just won or left
            started = clock()
            if store.create(name, content):
                break
            seen = look(store, experiment, stale_after_seconds=stale_after_seconds)
            if seen is None:
                continue
            if not seen.stale:
                raise InUse(_refusal(experiment, seen, stale_after_seconds))
            if store.replace_if(name, content, expected=seen.content):
                break
        else:
            raise InUse(f"experiment {experiment!r}: other drivers keep taking its lease; run one at a time")
        lease = Lease(
            store,
            owner,
            on_lost=on_lost,
            heartbeat_seconds=heartbeat_seconds,
            stale_after_seconds=stale_after_seconds,
            clock=clock,
            renewed=started,
        )
        lease._thread.start()
        return lease

    def check(self) -> None:
        """Raise ``Surroundings`` once the lease is lost; cheap, for the driver's loop."""
        if not self.held():
            raise Surroundings(f"experiment {self.owner.experiment!r}: {self.lost_reason}. Work was stopped")

    def held(self) -> bool:
        """Whether the lease is ours as far as is known here and now; asks the clock, not the store."""
        if not self.lost.is_set() and self._clock() - self._renewed >= self._stale_after_seconds:
            self._lose(self._unrenewed())
        return not self.lost.is_set()

    def renew(self) -> bool:
        """One heartbeat: True while the lease is ours."""
        if self.lost.is_set():
            return False
        started = self._clock()  # not the end: the store may have written early in a call that then took long to answer
        try:
            if self._store.touch_if(self._name, expected=self._content):
                self._renewed = started
                return True
            reason = self._taken_by()
        except (Surroundings, OSError) as error:
            if self._clock() - self._renewed < self._stale_after_seconds:
                return True
            reason = f"{self._unrenewed()} ({error})"
        self._lose(reason)
        return False

    def release(self) -> None:
        """Stop the heartbeat and remove the lease if it is ours. Never raises for a broken store: it then goes
        stale."""
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=self._heartbeat_seconds + 5)
        try:
            self._store.replace_if(self._name, None, expected=self._content)
        except (Surroundings, OSError):
            return

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _beat(self) -> None:
        while not self._stopping.wait(self._heartbeat_seconds):
            if not self.renew():
                return

    def _lose(self, reason: str) -> None:
        """Once, whoever notices first: the heartbeat or the driver's loop."""
        with self._losing:
            if self.lost.is_set():
                return
            self.lost_reason = reason
            self.lost.set()
        if self._on_lost is not None:
            self._on_lost(reason)

    def _unrenewed(self) -> str:
        return f"the lease could not be renewed for {self._stale_after_seconds:.0f} s"

    def _taken_by(self) -> str:
        state = look(self._store, self.owner.experiment)
        if state is None:
            return "the lease was removed from the store"
        return f"the lease was taken over by {state.owner or 'an unknown driver'}"


def _refusal(experiment: str, seen: LeaseState, stale_after_seconds: float) -> str:
    if seen.owner is None:
        return (
            f"experiment {experiment!r} has a lease that this version cannot read, {seen.age_seconds:.0f} s old; "
            f"it may be taken over once it is {stale_after_seconds:.0f} s old"
        )
    return (
        f"experiment {experiment!r} is being run by {seen.owner} (last sign of life {seen.age_seconds:.0f} s ago). "
        "Wait for it, stop it, or give this grid another name"
    )


def _machine() -> str:
    """One boot of one host and its process table: containers with the same host name have their own."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def _process_start(pid: int) -> str | None:
    """When a process started, in a form to compare for equality; None if there is no such process (or a zombie)."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # after its name in parentheses
        return None if values[0] in "ZX" else values[19]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(round(process.create_time()))
    except psutil.NoSuchProcess:
        return None
