"""One submission of a tune file, from the first check to the report: what ``gridlaw tune run`` does.

As for a grid, everything that can refuse comes before anything is written: plan, drift of earlier stages and of the
study, the storage, the machine. With nothing missing neither Ray nor torch is started and no lease is taken.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from gridlaw.pipelines.grid.news import News
from gridlaw.pipelines.grid.records import Records
from gridlaw.pipelines.grid.signals import StopRequests, stop_code
from gridlaw.pipelines.grid.source import Capacity, Problem, Source, exit_code
from gridlaw.pipelines.grid.state import read_state, refuse_drift, refuse_lost_models
from gridlaw.pipelines.grid.submission import (
    Watcher,
    Worked,
    begin_work,
    known_runs,
    missing,
    refuse_lost_lease,
    refuse_lost_store,
    report_name,
    taken_up,
    work,
)
from gridlaw.pipelines.place import Place
from gridlaw.pipelines.submit.place import check_place, check_storage_place
from gridlaw.pipelines.tune.plan import TunePlan
from gridlaw.pipelines.tune.records import StudyRecords, open_study_run
from gridlaw.pipelines.tune.results import Results, progress_text, read_results, results_of, write_results
from gridlaw.pipelines.tune.trials import Limits, Trials
from gridlaw.platform import identity
from gridlaw.platform.errors import BadInput, Drift, Surroundings
from gridlaw.platform.jobs import submission_id
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.records import RunRecord, by_name
from gridlaw.platform.ledger.sender import JournalPump, flush_all
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.lease import Lease
from gridlaw.platform.store.open import is_remote
from gridlaw.platform.tuning.storage import check_storage, default_storage, resolve_storage
from gridlaw.platform.tuning.study import Study, open_study


@dataclass(frozen=True, kw_only=True)
class StudyEnded:
    """How a submission ended. exit_code: as the command line's. closed: why it stopped short of its trials, if so."""

    exit_code: int
    results: Results
    already_done: bool = False
    report: str = ""
    problems: tuple[Problem, ...] = ()
    stopped: str = ""
    closed: str = ""


def storage_of(plan: TunePlan) -> str:
    """The address of a study's storage."""
    given, place = plan.spec.run.storage, Place.of(plan.base)
    if given is None and is_remote(place.store_address):
        raise BadInput(
            "run.storage",
            allowed="an address, as this store has no place for a database",
            hint="Give a server's, postgresql+psycopg://…, or sqlite:////ABSOLUTE/PATH.db on this machine",
        )
    return resolve_storage(given) if given is not None else default_storage(place.store_address)


def run_study(
    plan: TunePlan,
    *,
    rerun: bool = False,
    watcher: Watcher,
    address: str | None = None,
    shared_store: bool = False,
) -> StudyEnded:
    """Do what is missing of a study. Raises GridlawError for what is refused (nothing was changed then).

    address, shared_store: as for ``run_grid``.
    """
    if address is not None:
        check_place(plan.spec.run, num_nodes=1)
        check_storage_place(plan.spec.run)
    place, url = Place.of(plan.base), storage_of(plan)
    check_storage(url)
    store = place.store(create=False)
    ledger = place.ledger(plan.base, store)
    state = read_state(plan.shared, ledger, store)
    if not rerun:
        refuse_drift(plan.shared, state)
        refuse_study_drift(plan, ledger)
    study = open_study(url, plan.declaration, create=False, rerun=rerun)
    over = study is not None and _over(plan, study)
    if ledger is not None and study is not None and over and not missing(plan.shared, state):
        results = read_results(plan, study)
        return StudyEnded(exit_code=0, results=results, already_done=True, report=_tidy(plan, ledger, store, results))
    refuse_lost_store(ledger, store)
    base = plan.base.trunks[-1].base
    start = base.point if base is not None and not over else None
    refuse_lost_models(plan.shared, state, store, also=[start.name] if start is not None else [])
    with ExitStack() as held:
        stop = held.enter_context(StopRequests())
        cluster, accelerator, store = begin_work(
            plan.base, place, stop, held, address=address, shared_store=shared_store, say=watcher.say
        )
        lease = held.enter_context(Lease.acquire(store, plan.spec.name, job_id=submission_id()))
        study = open_study(url, plan.declaration, create=True, rerun=rerun)
        assert study is not None, "it was made"
        trials: list[Trials] = []

        def source(records: Records, capacity: Capacity) -> Source:
            assert isinstance(records, StudyRecords), "a study's records"
            trials.append(_trials(plan, study, records, store, capacity, watcher))
            return trials[0]

        started = time.monotonic()
        worked = work(
            plan.shared, place, store, lease, stop, cluster=cluster, accelerator=accelerator, watcher=watcher,
            open_records=lambda opened: _records(plan, opened, store, study, rerun=rerun),
            describe=lambda driver: progress_text(plan, driver), source=source,
        )  # fmt: skip
        return _end(plan, store, lease, study, worked, stop(), trials[0], time.monotonic() - started)


def refuse_study_drift(plan: TunePlan, ledger: Ledger | None) -> None:
    """``Drift`` if the ledger has this experiment's study with another identity, whatever storage it was in."""
    for run in ledger.find_runs("study") if ledger is not None else []:
        if run.superseded or run.fingerprint == plan.declaration.fingerprint:
            continue
        old = ledger.identity(run.run_id) or {}  # type: ignore[union-attr]
        text = identity.drift_text(identity.differences(old, plan.declaration.identity))
        raise Drift(
            f"the study {plan.spec.name} was made with other settings than this file's:\n  {text}\n"
            "Nothing was changed. Undo the change, or give the file another name:, or run with --rerun\n"
            "(--rerun begins a new study and tags the old one as superseded; nothing is deleted)."
        )


def _over(plan: TunePlan, study: Study) -> bool:
    """Whether all trials that there are to be have ended; one to be asked again does not count, its second run does."""
    trials = study.trials()
    under_way = any(each.state in ("running", "waiting") for each in trials)
    return not under_way and sum(each.finished and not each.ask_again for each in trials) >= plan.num_trials


def _tidy(plan: TunePlan, ledger: Ledger, store: Store, results: Results) -> str:
    """What a driver that died after the last trial left behind: runs still marked RUNNING, no report."""
    if any(run.running for run in ledger.find_runs("study")):
        with Lease.acquire(store, plan.spec.name):
            ledger.end_stale_runs()
            study_run = _study_run(plan, ledger)
            if study_run is not None:
                write_results(plan, results, store, ledger, study_run.run_id)
                ledger.finish_run(study_run.run_id)
    name = report_name(plan.base)
    return store.url(name if store.exists(name) else write_results(plan, results, store))


def _study_run(plan: TunePlan, ledger: Ledger) -> RunRecord | None:
    found = [run for run in ledger.find_runs("study") if not run.superseded]
    return next((run for run in found if run.fingerprint == plan.declaration.fingerprint), None)


def _records(plan: TunePlan, ledger: Ledger, store: Store, study: Study, *, rerun: bool) -> StudyRecords:
    """Bring the ledger in order after an earlier submission, and open the study's run again."""
    if rerun:
        for kind in ("trial", "study"):  # the study last: until then it is drift
            for run in ledger.find_runs(kind):
                foreign = kind == "trial" or run.fingerprint != plan.declaration.fingerprint
                if foreign and not run.superseded and _of_another_study(run, plan, ledger):
                    ledger.supersede(run.run_id)
        for standing in read_state(plan.shared, ledger, store).points.values():
            if standing.status == "drift" and standing.run is not None:
                ledger.supersede(standing.run.run_id)
    refuse_study_drift(plan, ledger)
    state = read_state(plan.shared, ledger, store)  # under the lease: another driver may have gone on meanwhile
    refuse_drift(plan.shared, state)
    existing = _study_run(plan, ledger)
    news = News.of(store)
    trials = [run for run in ledger.find_runs("trial") if not run.superseded]
    evaluations = [run for run in ledger.find_runs("evaluation") if run.running]
    kept = [*taken_up(state), *(run.run_id for run in (*trials, *evaluations))]
    ledger.end_stale_runs(keep=kept + ([existing.run_id] if existing is not None else []))
    unsent = [*known_runs(state), *(run.run_id for run in trials)]
    flush_all(news.attempts, unsent, ledger.tracking, feed=news.feed)
    parent = open_study_run(ledger, plan, existing)
    return StudyRecords(
        plan=plan.shared, ledger=ledger, state=state, parent_id=parent,
        pump=JournalPump(ledger.tracking, feed=news.feed), news=news,
    )  # fmt: skip


def _of_another_study(run: RunRecord, plan: TunePlan, ledger: Ledger) -> bool:
    if run.kind == "study":
        return True
    parent = run.parent_id and ledger.read_run(run.parent_id)
    return not parent or parent.fingerprint != plan.declaration.fingerprint


def _trials(
    plan: TunePlan, study: Study, records: StudyRecords, store: Store, capacity: Capacity, watcher: Watcher
) -> Trials:
    run = plan.spec.run
    fits = max(1, math.floor(capacity.num_devices / run.devices_for(plan.varied.id.scale) + 1e-9))
    limits = Limits(
        parallel=min(run.parallel or fits, fits),
        max_seconds=math.inf if run.max_hours is None else run.max_hours * 3600,
        max_flops=math.inf if run.max_flops is None else run.max_flops,
    )
    return Trials(
        plan, study, records, store, limits,
        runs=by_name(records.ledger.find_runs("trial")),
        evaluations=by_name(records.ledger.find_runs("evaluation")),
        examples=by_name(records.ledger.find_runs("data")),
        say=watcher.say,
    )  # fmt: skip


def _end(
    plan: TunePlan,
    store: Store,
    lease: Lease,
    study: Study,
    worked: Worked,
    signum: int,
    trials: Trials,
    seconds: float,
) -> StudyEnded:
    ledger, run_id = worked.ledger, worked.records.parent_id
    refuse_lost_lease(lease, worked.reason)
    # That a trial diverges is something the study wanted to know.
    problems = tuple(_as_trial(each) for each in worked.driver.problems if not _is_result(each))
    if worked.reason:
        with suppress(Surroundings):  # the driver has said so already, and the next submission ends this run
            ledger.stop_run(run_id, worked.reason)
        try:
            results = read_results(plan, study)
        except Surroundings:
            results = results_of(plan, trials.known)
        return StudyEnded(
            exit_code=stop_code(signum), results=results, problems=problems, stopped=worked.reason
        )  # fmt: skip
    results = read_results(plan, study)
    ledger.end_stale_runs(keep=[run_id])
    page = write_results(plan, results, store, ledger, run_id, wall_seconds=seconds)
    if problems:
        names = ", ".join(problem.name for problem in problems[:5])
        ledger.fail_run(run_id, f"{len(problems)} did not succeed: {names}")
    else:
        ledger.finish_run(run_id)
    code = exit_code(problems, worked.driver.graph)
    return StudyEnded(exit_code=code, results=results, report=store.url(page), problems=problems, closed=trials.closed)


def _is_result(problem: Problem) -> bool:
    return problem.status == "diverged" and problem.name.startswith("trial")


def _as_trial(problem: Problem) -> Problem:
    is_trial = problem.kind == "point" and problem.name.startswith("trial")
    return replace(problem, kind="trial") if is_trial else problem
