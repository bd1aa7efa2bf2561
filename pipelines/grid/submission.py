"""One submission of a grid file, from the first check to the report: what ``gridlaw run`` does.

Order matters. Everything that can refuse comes before anything is written: plan, drift, cluster. With nothing missing,
neither Ray nor torch is started and no lease is taken. The lease is taken before Ray starts.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from gridlaw.pipelines.doctor.nodes import refuse_unfit_nodes
from gridlaw.pipelines.grid.collect import collect, hardware_text
from gridlaw.pipelines.grid.driver import Driver
from gridlaw.pipelines.grid.laws import LawBook
from gridlaw.pipelines.grid.news import News
from gridlaw.pipelines.grid.notices import notices
from gridlaw.pipelines.grid.places import Places
from gridlaw.pipelines.grid.records import Records
from gridlaw.pipelines.grid.requests import check_machine, requests_of, waiting
from gridlaw.pipelines.grid.signals import StopRequests, stop_code
from gridlaw.pipelines.grid.source import Capacity, Problem, Source, exit_code
from gridlaw.pipelines.grid.state import (
    GridState,
    read_state,
    refuse_drift,
    refuse_lost_models,
)
from gridlaw.pipelines.grid.summary import final_text, progress_text, read_laws
from gridlaw.pipelines.grid.tasks import TaskBuilder
from gridlaw.pipelines.grid.views import grid_views
from gridlaw.pipelines.place import Place
from gridlaw.pipelines.plan import GridPlan
from gridlaw.pipelines.report.data import ReportData
from gridlaw.pipelines.submit.place import check_place
from gridlaw.platform.addresses import redacted
from gridlaw.platform.cluster import Cluster, Node, StartingCluster, begin_cluster, local_node
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.jobs import submission_id
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.sender import JournalPump, flush_all
from gridlaw.platform.ledger.views import save_views
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.store.base import Store, experiment_name
from gridlaw.platform.store.lease import Lease
from gridlaw.platform.store.local import gone_message, is_gone

TICK_SECONDS = 0.4
"""Tasks may end more often than anybody can read."""
DESCRIBE_EVERY_SECONDS = 5.0
DESCRIBE_SHARE = 0.02
"""At most this much of the driver's time goes into descriptions: of thousands of points they take long."""
DESCRIBE_AT_LEAST_EVERY_SECONDS = 60.0
LOOK_SECONDS = 5.0
"""How often the driver looks for nodes that came or went."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a submission ended. exit_code: as the command line's. report: the page's address; "" if none was made."""

    exit_code: int
    num_points: int
    num_done: int
    already_done: bool = False
    report: str = ""
    data: ReportData | None = None
    problems: tuple[Problem, ...] = ()
    stopped: str = ""


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """How a submission is shown. tick: called about twice a second, and at the end. say: one sentence now."""

    tick: Callable[[Driver], None]
    say: Callable[[str], None]


def run_grid(
    plan: GridPlan,
    *,
    rerun: bool = False,
    watcher: Watcher,
    address: str | None = None,
    shared_store: bool = False,
    autoscaling: bool = False,
) -> Ended:
    """Do what is missing of ``plan``. Raises GridlawError for what is refused (nothing was changed then).

    address: of a Ray cluster (``start_cluster``); None for one of its own. shared_store: see ``check_place``.
    autoscaling: the cluster adds nodes for tasks that wait, so what fits no node yet waits for one.
    """
    if address is not None:
        check_place(plan.spec.run, num_nodes=1)
    place = Place.of(plan)
    store = place.store(create=False)
    ledger = place.ledger(plan, store)
    state = read_state(plan, ledger, store)
    if not rerun:
        refuse_drift(plan, state)
    for notice in notices(plan, state):
        watcher.say(f"warning: {notice}")
    if ledger is not None and not missing(plan, state):
        _tidy(plan, ledger, store)
        return Ended(
            exit_code=0,
            num_points=len(plan.points),
            num_done=state.num_done(),
            already_done=True,
            report=store.url(report_name(plan)),
        )
    refuse_lost_store(ledger, store)
    refuse_lost_models(plan, state, store)
    started = time.monotonic()
    with StopRequests() as stop, ExitStack() as held:
        cluster, accelerator, store = begin_work(
            plan, place, stop, held, address=address, shared_store=shared_store, autoscaling=autoscaling,
            say=watcher.say,
        )  # fmt: skip
        with Lease.acquire(store, plan.spec.name, job_id=submission_id()) as lease:
            worked = work(
                plan, place, store, lease, stop, cluster=cluster, accelerator=accelerator, watcher=watcher,
                open_records=lambda ledger: _records(plan, ledger, store, rerun=rerun),
                describe=lambda driver: progress_text(plan, driver), autoscaling=autoscaling,
            )  # fmt: skip
            return _end(plan, store, lease, worked, stop(), time.monotonic() - started)


def begin_work(
    plan: GridPlan,
    place: Place,
    stop: StopRequests,
    held: ExitStack,
    *,
    address: str | None,
    shared_store: bool,
    autoscaling: bool = False,
    say: Callable[[str], None],
) -> tuple[StartingCluster | None, str, Store]:
    """(cluster, accelerator, store) of a submission; ``BadInput`` for what the cluster's nodes cannot do.

    The cluster is None where it is to be one of this machine, which is begun later. held: leaves it in the end.
    """
    cluster, nodes = None, [local_node()]
    if address is not None:
        cluster = begin_cluster(address)
        held.callback(cluster.shutdown)
        nodes = cluster.result().nodes()
        stop.install()
        check_place(plan.spec.run, num_nodes=len(nodes), shared_store=shared_store)
    accelerator = check_machine(plan, nodes, autoscaling=autoscaling)
    for sentence in waiting(plan, accelerator, nodes):
        say(sentence)
    return cluster, accelerator, place.store(create=True) if address is None else _store_of_all(place, nodes)


def _store_of_all(place: Place, nodes: list[Node]) -> Store:
    """The store of a grid on a cluster; ``BadInput`` unless every node can use it."""
    try:
        store = place.store(create=True)
    except Surroundings as error:
        raise BadInput(
            "run.store", seen=place.store_address, allowed="a store that can be written", hint=str(error)
        ) from None
    if len(nodes) > 1:
        refuse_unfit_nodes(nodes, store)
    return store


def refuse_lost_store(ledger: Ledger | None, store: Store) -> None:
    """``Surroundings`` where the ledger knows of work in a store that is an empty folder now, or none."""
    if ledger is None or not is_gone(store.address) or store.exists("attempts"):
        return
    if any(ledger.find_runs(kind) for kind in ("trunk", "point", "trial")):
        raise Surroundings(f"{gone_message(store.address)}. To begin anew, give this grid another name")


def missing(plan: GridPlan, state: GridState) -> bool:
    """Whether a run would have anything to do: points, evaluations, trunks cut off, or laws that are behind."""
    undone = any(each.status != "done" for each in (*state.points.values(), *state.evaluations.values()))
    cut_off = any(each.interrupted for each in state.trunks.values())
    return undone or cut_off or bool(LawBook(plan, state).outdated())


def _tidy(plan: GridPlan, ledger: Ledger, store: Store) -> None:
    """What a driver that died after the last point left behind: its own run still marked RUNNING, no report."""
    if any(run.running for run in ledger.find_runs("submission")):
        with Lease.acquire(store, plan.spec.name):
            ledger.end_stale_runs()
    if not store.exists(report_name(plan)):
        write_report(plan, ledger, store)


def report_name(plan: GridPlan) -> str:
    """Where a grid's newest report lies in the store."""
    return f"reports/{experiment_name(plan.spec.name)}.html"


def write_report(
    plan: GridPlan, ledger: Ledger, store: Store, *, wall_seconds: float | None = None
) -> tuple[str, ReportData]:
    """Make the report's page from the ledger, and its tables over architectures as Markdown and CSV beside it.

    Returns the page's name in the store and what it shows.
    """
    from gridlaw.pipelines.report.page import render
    from gridlaw.pipelines.report.tables import all_tables, markdown_page, to_csv

    data = collect(plan, ledger, read_state(plan, ledger, store), hardware=hardware_text(), wall_seconds=wall_seconds)
    name = report_name(plan)
    store.write_bytes(name, render(data).encode())
    markdown, table = table_names(name)
    store.write_bytes(markdown, markdown_page(data).encode())
    store.write_bytes(table, to_csv(all_tables(data)).encode())
    return name, data


def table_names(report: str) -> tuple[str, str]:
    """Where the tables over architectures lie beside a report: as Markdown, and as CSV with a row a cell."""
    stem = report.removesuffix(".html")
    return f"{stem}.md", f"{stem}.csv"


@dataclass(frozen=True, kw_only=True)
class Worked:
    """What ``work`` leaves. reason: why it stopped before everything was done; "" if nothing was left."""

    ledger: Ledger
    records: Records
    driver: Driver
    reason: str


def work(
    plan: GridPlan,
    place: Place,
    store: Store,
    lease: Lease,
    stop: StopRequests,
    *,
    accelerator: str,
    watcher: Watcher,
    open_records: Callable[[Ledger], Records],
    describe: Callable[[Driver], str],
    source: Callable[[Records, Capacity], Source] | None = None,
    cluster: StartingCluster | None = None,
    autoscaling: bool = False,
) -> Worked:
    """Start Ray and drive ``plan`` under the lease until nothing is left or it has to stop.

    open_records: brings the ledger in order and opens the parent run. source: of further points. cluster: that
    was begun already. describe: the parent
    run's description meanwhile.
    """
    cluster, records = cluster or begin_cluster(), None
    try:
        ledger = Ledger.open(place.tracking_uri, plan.spec.name, store.address, create=True)
        records = open_records(ledger)
        tasks = TaskBuilder(
            store=store,
            run=plan.spec.run,
            accelerator=accelerator,
            stop=f"stops/{records.parent_id}-{token_hex(4)}",
        )
        try:
            ray = cluster.result()
            stop.install()
            if not autoscaling:
                ray.check(
                    requests_of(plan, accelerator)
                )  # an embedded Ray has less memory to give than the machine has

            def capacity_now() -> Capacity:
                return _capacity(plan, ray, accelerator, autoscaling=autoscaling)

            capacity = capacity_now()
            driver = _driver(
                records, store, tasks, capacity, lease, stop, watcher, capacity_now=capacity_now,
                source=source(records, capacity) if source is not None else None, describe=describe,
            )  # fmt: skip
            reason = driver.run()
            watcher.tick(driver)
        except Exception as error:
            if not lease.lost.is_set():
                records.give_up(f"the driver ended: {error}")
            raise
    finally:
        cluster.shutdown()
        if records is not None:
            records.close()
    return Worked(ledger=ledger, records=records, driver=driver, reason=reason)


def _records(plan: GridPlan, ledger: Ledger, store: Store, *, rerun: bool) -> Records:
    """Bring the ledger in order after an earlier submission, and open this one's parent run."""
    state = read_state(plan, ledger, store)  # again, under the lease: another driver may have gone on meanwhile
    if rerun:
        for standing in state.points.values():
            if standing.status == "drift" and standing.run is not None:
                ledger.supersede(standing.run.run_id)
        state = read_state(plan, ledger, store)
    refuse_drift(plan, state)
    ledger.end_stale_runs(keep=taken_up(state))
    news = News.of(store)
    # What an earlier submission could not send:
    flush_all(news.attempts, known_runs(state), ledger.tracking, feed=news.feed)
    tags = {"num_points": len(plan.points), "job_id": submission_id() or None}
    parent = ledger.start_submission(tags=tags, config=public_config(plan.spec))
    pump = JournalPump(ledger.tracking, feed=news.feed)
    records = Records(plan=plan, ledger=ledger, state=state, parent_id=parent, pump=pump, news=news)
    save_views(ledger, grid_views(plan))
    read_laws(records)
    return records


def public_config(spec: GridSpec) -> dict[str, Any]:
    """The file as resolved, for an artifact: without passwords in addresses."""
    config: dict[str, Any] = spec.model_dump(mode="json")
    bare = {key: redacted(value) if isinstance(value, str) else value for key, value in config["run"].items()}
    return config | {"run": bare}


def known_runs(state: GridState) -> list[str]:
    """Ids of the trunks' and points' runs that the ledger has."""
    return [each.run.run_id for each in (*state.trunks.values(), *state.points.values()) if each.run is not None]


def taken_up(state: GridState) -> list[str]:
    """Ids of runs that this submission may go on with."""
    evaluations = [each.run.run_id for each in state.evaluations.values() if each.run is not None]
    return [*known_runs(state), *evaluations, *(run.run_id for run in state.laws.values())]


def _capacity(plan: GridPlan, cluster: Cluster, accelerator: str, *, autoscaling: bool) -> Capacity:
    unit = "GPU" if accelerator == "gpu" else "CPU"
    if autoscaling:  # a cluster adds nodes for tasks that Ray has, not for those that we keep back
        return Capacity(num_devices=math.inf, unit=unit, max_parallel=plan.spec.run.max_parallel)
    devices = sum(node.num_gpus if unit == "GPU" else node.num_cpus for node in cluster.nodes())
    return Capacity(num_devices=devices, unit=unit, max_parallel=plan.spec.run.max_parallel)


def _driver(
    records: Records,
    store: Store,
    tasks: TaskBuilder,
    capacity: Capacity,
    lease: Lease,
    stop: StopRequests,
    watcher: Watcher,
    *,
    source: Source | None,
    describe: Callable[[Driver], str],
    capacity_now: Callable[[], Capacity],
) -> Driver:
    from gridlaw.pipelines.grid.executor import RayExecutor

    def should_stop() -> str:
        if not lease.held():
            return f"the lease of this experiment was lost: {lease.lost_reason}"
        return f"stopped by {signal.Signals(stop()).name}" if stop() else ""

    return Driver(
        records=records,
        store=store,
        tasks=tasks,
        executor=RayExecutor(store.address),
        capacity=capacity,
        should_stop=should_stop,
        lost=lease.lost.is_set,
        tick=_with_news(records, describe, watcher.tick, capacity_now),
        say=watcher.say,
        source=source,
    )


def _with_news(
    records: Records,
    describe: Callable[[Driver], str],
    tick: Callable[[Driver], None],
    capacity_now: Callable[[], Capacity],
) -> Callable[[Driver], None]:
    """Keep the ledger current for people: the parent run's description, and where each run is; and the driver about
    nodes that came or went."""
    due = next_tick = next_look = 0.0
    places = Places()

    def each(driver: Driver) -> None:
        nonlocal due, next_tick, next_look
        now = time.monotonic()
        if now >= next_tick:
            next_tick = now + TICK_SECONDS
            tick(driver)
            places.tick(driver)
        if now >= next_look:
            next_look = now + LOOK_SECONDS
            driver.capacity = capacity_now()
        began = time.monotonic()
        if began >= due:
            records.ledger.describe(records.parent_id, describe(driver))
            ended = time.monotonic()
            pause = (ended - began) / DESCRIBE_SHARE
            due = ended + min(max(pause, DESCRIBE_EVERY_SECONDS), DESCRIBE_AT_LEAST_EVERY_SECONDS)

    return each


def refuse_lost_lease(lease: Lease, reason: str) -> None:
    """``Surroundings`` if another driver has taken over: nothing more is written into the ledger."""
    if lease.lost.is_set():
        raise Surroundings(f"{reason}. What was saved is kept; gridlaw status shows who runs it now")


def _end(plan: GridPlan, store: Store, lease: Lease, worked: Worked, signum: int, wall_seconds: float) -> Ended:

    ledger, parent, reason = worked.ledger, worked.records.parent_id, worked.reason
    problems = tuple(worked.driver.problems)
    refuse_lost_lease(lease, reason)
    if reason:
        try:
            ledger.stop_run(parent, reason)
            done = read_state(plan, ledger, store).num_done()
        except Surroundings:  # the driver has said so already, and the next submission ends this run
            done = worked.driver.num_trained()
        code = stop_code(signum)
        return Ended(exit_code=code, num_points=len(plan.points), num_done=done, problems=problems, stopped=reason)
    ledger.end_stale_runs(keep=[parent])  # runs whose opening was cut off by an outage
    page, data = write_report(plan, ledger, store, wall_seconds=wall_seconds)
    for each in (page, *table_names(page)):
        ledger.log_text(parent, each.rpartition("/")[2], store.read_bytes(each).decode())
    ledger.describe(parent, final_text(plan, ledger, parent, data, page))
    if problems:
        ledger.fail_run(
            parent, f"{len(problems)} did not succeed: {', '.join(problem.name for problem in problems[:5])}"
        )
    else:
        ledger.finish_run(parent)
    done = sum(row.status == "done" for row in data.points)
    return Ended(
        exit_code=exit_code(problems, worked.driver.graph),
        num_points=len(plan.points),
        num_done=done,
        report=store.url(page),
        data=data,
        problems=problems,
    )
