"""``gridlaw doctor``: what is wrong with this machine or this cluster, before a grid finds out.

Every check is a line: ok, or what to do. On a cluster each node is looked at by a Ray task of its own.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from gridlaw.pipelines.doctor.nodes import ask_nodes, clock, node_name, token
from gridlaw.pipelines.doctor.probe import probe
from gridlaw.pipelines.place import Place
from gridlaw.pipelines.submit.place import check_place
from gridlaw.platform.addresses import redacted
from gridlaw.platform.cluster import Node, start_cluster
from gridlaw.platform.errors import GridlawError
from gridlaw.platform.ledger.tracking import Tracking, ping, resolve_tracking_uri, sqlite_path
from gridlaw.platform.spec.sections import RunSection
from gridlaw.platform.store.local import MARKER

MAX_SKEW_SECONDS = 5.0
"""Runs and logs of several nodes are read side by side, and credentials of object stores expire by the clock."""
MIN_SHARED_MEMORY_BYTES = 512 * 2**20
"""Ray's object store lives there; a container's default of 64 MB ends workers without a word."""
MIN_FREE_BYTES = 2**30
PROBE_SECONDS = 300.0
_MUST_AGREE = ("python", "gridlaw", "torch", "lightning", "ray", "mlflow", "commit")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line. node: "" where it is about all of them. found: what was seen. advice: what to do if it is not ok."""

    check: str
    ok: bool
    found: str
    node: str = ""
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A node's clock against this process's: the difference lies between the two, in seconds."""

    low: float
    high: float

    @property
    def skew_seconds(self) -> float:
        """The least difference that this can be."""
        return 0.0 if self.low <= 0 <= self.high else min(abs(self.low), abs(self.high))


def examine(run: RunSection, *, address: str | None = None, shared_store: bool = False) -> list[Check]:
    """Look at this machine, or at the Ray cluster at ``address`` (HOST:PORT, or auto inside a Ray Job).

    run: whose store and tracking server are looked at. Raises only where the cluster cannot be reached.
    """
    place = Place.of_run(run)
    if address is None:
        with _token(place) as (told, task):
            checks = [*told, *judge(probe(task))]
        return [*checks, *tracking_checks(place.tracking_uri)]
    with start_cluster(address) as cluster:
        nodes = cluster.nodes()
        refused = _refused(lambda: check_place(run, num_nodes=len(nodes), shared_store=shared_store), "place")
        if refused:  # then neither store nor ledger is one that a grid could use
            return [*refused, *_examine_nodes(nodes, {"store": None})]
        with _token(place) as (told, task):
            checks = [*told, *_examine_nodes(nodes, task)]
    return [*checks, *tracking_checks(place.tracking_uri)]


def judge(found: dict[str, Any], *, like: dict[str, str] | None = None, clock: Clock | None = None) -> list[Check]:
    """A node's probe as checks. like: the driver's versions, with which a node's have to agree."""
    node = found["node"]
    checks = [_versions(node, found["versions"], like or found["versions"]), _kernels(node, found["kernels"])]
    checks.append(_shared_memory(node, found["shared_memory_bytes"]))
    if found["store"] is not None:
        checks.append(_store(node, found["store"]))
    if clock is not None:
        checks.append(_clock(clock.skew_seconds, node=node))
    return checks


def tracking_checks(uri: str) -> list[Check]:
    """Whether the tracking server answers, takes our credentials and is new enough, and its clock."""
    shown = redacted(uri)
    try:
        resolved = resolve_tracking_uri(uri)
        path = sqlite_path(resolved)
        if path is not None and not path.exists():
            return [Check(check="tracking", ok=True, found=f"{shown} will be made by the first run")]
        ping(resolved)
        Tracking(uri=resolved, patience_seconds=5.0).call(
            "list experiments", lambda client: client.search_experiments(max_results=1)
        )
    except GridlawError as error:
        return [
            Check(check="tracking", ok=False, found=f"{shown}: {error}", advice="mend it, or change run.tracking_uri")
        ]
    checks = [Check(check="tracking", ok=True, found=f"{shown} answers")]
    if resolved.startswith("http"):
        skew = _server_skew(resolved)
        if skew is not None:
            checks.append(_clock(skew, node="tracking server"))
    return checks


def _examine_nodes(nodes: list[Node], task: dict[str, Any]) -> list[Check]:
    """Probe every node at the same time; one that does not answer is a failed check."""
    here = probe({"store": None, "node": ""})["versions"]
    checks = []
    for node, answer in ask_nodes(nodes, probe, task, limit_seconds=PROBE_SECONDS):
        if isinstance(answer, str):
            checks.append(_silent(node, answer))
            continue
        before = time.time()
        ((_, there),) = ask_nodes([node], clock, {}, limit_seconds=60)
        known = None if isinstance(there, str) else Clock(low=there["now"] - time.time(), high=there["now"] - before)
        checks += judge(answer | {"node": node_name(node)}, like=here, clock=known)
    return checks


def _silent(node: Node, why: str) -> Check:
    advice = "look at its logs, and whether it has gridlaw installed"
    return Check(check="node", node=node_name(node), ok=False, found=why[:300], advice=advice)


def _versions(node: str, found: dict[str, str], like: dict[str, str]) -> Check:
    shown = ", ".join(f"{name} {found[name][:12]}" for name in _MUST_AGREE if name in found)
    wrong = [name for name in _MUST_AGREE if found.get(name) != like.get(name) or found.get(name) == "missing"]
    wanted = ", ".join(f"{name} {like.get(name) or 'none'}" for name in wrong)
    advice = f"install the same as on the head: {wanted}" if wrong else ""
    return Check(check="versions", node=node, ok=not wrong, found=shown, advice=advice)


def _kernels(node: str, found: dict[str, Any]) -> Check:
    if found["error"]:
        return Check(check="kernels", node=node, ok=False, found=found["error"], advice="install torch again there")
    chosen = ", ".join(f"{operation} {kernel}" for operation, kernel in found["chosen"].items())
    on_gpu = found["device"] != "cpu"
    passed = {op: over for op, over in found["passed_over"].items() if over} if on_gpu else {}
    reasons = "; ".join(f"{op}: {name}: {why}" for op, over in passed.items() for name, why in over.items())
    return Check(
        check="kernels",
        node=node,
        ok=not passed,
        found=f"on {found['device']}: {chosen}",
        advice=f"faster ones are missing ({reasons}): pip install 'gridlaw[gpu]'" if passed else "",
    )


def _shared_memory(node: str, num_bytes: int | None) -> Check:
    small = num_bytes is not None and num_bytes < MIN_SHARED_MEMORY_BYTES
    shown = "no /dev/shm here" if num_bytes is None else f"/dev/shm has {num_bytes / 2**20:,.0f} MiB"
    advice = "give the container more: docker run --shm-size=2g, or an emptyDir of medium Memory in Kubernetes"
    return Check(check="shared memory", node=node, ok=not small, found=shown, advice=advice if small else "")


def _store(node: str, found: dict[str, Any]) -> Check:
    if found["error"]:
        advice = "let every node read and write it, or change run.store"
        return Check(check="store", node=node, ok=False, found=found["error"], advice=advice)
    free = found["free_bytes"]
    full = free is not None and free < MIN_FREE_BYTES
    room = "" if free is None else f", {free / 2**30:,.1f} GiB free"
    advice = "make room: gridlaw plan says how much a grid needs" if full else ""
    return Check(check="store", node=node, ok=not full, found=f"read and written{room}", advice=advice)


def _clock(skew_seconds: float, *, node: str) -> Check:
    wrong = skew_seconds > MAX_SKEW_SECONDS
    found = f"{skew_seconds:.1f} s apart from this one" if wrong else f"within {MAX_SKEW_SECONDS:g} s of this one"
    advice = "run NTP there" if wrong else ""
    return Check(check="clock", node=node, ok=not wrong, found=found, advice=advice)


def _server_skew(uri: str) -> float | None:
    """Seconds between the server's Date and ours, as little as it can be; None where it tells none."""
    import requests

    with suppress(requests.RequestException, KeyError, TypeError, ValueError):
        before = time.time()
        there = parsedate_to_datetime(requests.get(f"{uri}/version", timeout=5).headers["Date"]).timestamp()
        return Clock(low=there - time.time(), high=there + 1.0 - before).skew_seconds  # Date has whole seconds
    return None


def _refused(ask: Callable[[], object], check: str) -> list[Check]:
    try:
        ask()
    except GridlawError as error:
        return [
            Check(check=check, ok=False, found=str(error), advice="change it under run:, or by --store, --tracking-uri")
        ]
    return []


@contextmanager
def _token(place: Place) -> Iterator[tuple[list[Check], dict[str, Any]]]:
    """``token`` in the place's store, and a failed check where there can be none.

    A folder that was not there before is not there afterwards.
    """
    local = None if "://" in place.store_address else Path(place.store_address).expanduser().absolute()
    made = local is not None and not local.exists()
    with ExitStack() as held:
        try:
            task = held.enter_context(token(place.store(create=True)))
        except GridlawError as error:
            advice = "make it writable, or change run.store"
            yield [Check(check="store", ok=False, found=str(error), advice=advice)], {"store": None, "node": ""}
            return
        yield [], task | {"node": ""}
    if made and local is not None and [path.name for path in local.iterdir()] == [MARKER]:
        shutil.rmtree(local)  # nobody else has begun to use it meanwhile
