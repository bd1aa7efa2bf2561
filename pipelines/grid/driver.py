"""The driver: owns the DAG of one submission, submits what is ready, turns every end into a record, reports.

Concurrency. One driver per experiment holds the lease. It runs in one thread: submit ready nodes, wait up to a second
for ends, write them to the ledger, show progress. Workers write only into their own attempt's folder and their own
run's metrics. No Ray object of one stage is an argument of another, so a crash loses one node's attempt and nothing
else: the next attempt, or the next submission, goes on from the newest checkpoint in the store.

A node that failed for a reason that may pass (``outcome.TRY_AGAIN``) is tried again up to ``MAX_ATTEMPTS`` times; after
running out of memory with a smaller micro-batch at the same token batch. A failed trunk leaves its branches blocked;
everything else goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gridlaw.pipelines.data_plans import DataPlan
from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.pipelines.grid.examples import ExamplesBook, evaluation_of
from gridlaw.pipelines.grid.executor import RayExecutor
from gridlaw.pipelines.grid.graph import Graph, Node, NodeKey
from gridlaw.pipelines.grid.laws import LawBook
from gridlaw.pipelines.grid.outcome import TRY_AGAIN, Failure, Outcome
from gridlaw.pipelines.grid.records import Records, no_value, seconds_of, transfer_of
from gridlaw.pipelines.grid.requests import task_request
from gridlaw.pipelines.grid.source import Capacity, Problem, Source
from gridlaw.pipelines.grid.state import GridState, evaluation_name
from gridlaw.pipelines.grid.tasks import TaskBuilder
from gridlaw.pipelines.grid.trunks import SHORT, add_trunk
from gridlaw.pipelines.plan import GridPlan, PointPlan, TrunkPlan
from gridlaw.platform.errors import Surroundings
from gridlaw.platform.store.base import Store, examples_name

MAX_ATTEMPTS = 3
WAIT_SECONDS = 0.5
STOP_SECONDS = 8.0
"""How long running tasks may take to save after being asked to stop."""
_ON_DEVICES = ("segment", "decay", "evaluate", "examples")
REMOTE_STOP_SECONDS = 60.0
"""The same where what is saved has to go over the network."""
LEDGER_RETRY_SECONDS = 3.0
LEDGER_PATIENCE_SECONDS = 120.0
"""How long the driver waits for a ledger that is away, once nothing runs any more."""


@dataclass
class Driver:
    """One submission. ``should_stop`` gives the reason to stop, or nothing; ``tick`` shows progress.

    lost: whether another driver may be at work already, so that nothing may be written any more.
    """

    records: Records
    store: Store
    tasks: TaskBuilder
    executor: RayExecutor
    capacity: Capacity
    should_stop: Callable[[], str]
    lost: Callable[[], bool]
    tick: Callable[[Driver], None]
    say: Callable[[str], None]
    source: Source | None = None
    graph: Graph = field(default_factory=Graph)
    problems: list[Problem] = field(default_factory=list)
    _data: dict[str, DataPlan] = field(default_factory=dict)
    """Data that some node prepares, by folder."""
    _in_use: dict[NodeKey, float] = field(default_factory=dict)
    _micro_batch: dict[str, int] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that earlier submissions spent on each trunk."""
    _segment_seconds: dict[str, dict[NodeKey, float]] = field(default_factory=dict)
    """By trunk, of each of its segments."""
    _fitted: dict[NodeKey, tuple[dict[str, Any], str]] = field(default_factory=dict)
    """Identity and fingerprint of what a refit was given: more points may arrive while it runs."""
    _ends: deque[tuple[NodeKey, Outcome]] = field(default_factory=deque)
    """Ends that are not in the ledger yet, in order."""
    _told: set[str] = field(default_factory=set)
    """Trunks and points whose transfer of weights was said."""
    _away_since: float | None = None
    _next_try: float = 0.0
    _fatal: str = ""
    """Why this submission cannot go on, though nothing is wrong with its points."""

    def __post_init__(self) -> None:
        self._trunks = {trunk.name: trunk for trunk in self.plan.trunks}
        self._points = {point.name: point for point in self.plan.points}
        self._evaluations = {evaluation.name: evaluation for evaluation in self.plan.evaluations}
        self.examples = ExamplesBook(self.plan, self.records.state)
        self.laws = LawBook(self.plan, self.records.state)
        for trunk in self.plan.trunks:
            self._learn_past(trunk)
        self._build()

    @property
    def plan(self) -> GridPlan:
        """The records': it grows with what is added."""
        return self.records.plan

    def run(self) -> str:
        """Work until nothing is left, or until asked to stop; returns the reason to stop, or nothing."""
        for refit in self.laws.outdated():
            self._add_refit(*refit)
        while self._work_left():
            reason = self.should_stop() or self._fatal
            if reason:
                self._stop(reason)
                return reason
            self._advance()
            self._collect()
            self.tick(self)
        self.records.finish_laws()
        return ""

    def num_trained(self) -> int:
        """Points whose training is over, as far as this driver knows."""
        left = {n.key[1] for n in self.graph.of_kind("decay") if n.state != "done"}
        return len(self.plan.points) - len(left)

    def _work_left(self) -> bool:
        """With all else done, laws that were fitted quickly are fitted a last time."""
        if self._ends or not self.graph.finished() or (self.source is not None and self.source.more()):
            return True
        added = [self._add_refit(*refit) for refit in self.laws.outdated()]
        return any(added)

    def _advance(self) -> None:
        """Write what ended into the ledger, in order, and start what is ready.

        An outage of the ledger stops no training: nothing new starts, and ends are written when it is back. Raises
        ``Surroundings`` once nothing runs and it has been away for ``LEDGER_PATIENCE_SECONDS``: what the tasks came to
        is in the store, and the next submission takes it from there.
        """
        now = time.monotonic()
        if now < self._next_try:
            return
        try:
            while self._ends:
                self._ended(*self._ends[0])
                self._ends.popleft()
            if self._fatal:
                return
            if self.source is not None:
                self.source.feed(self)
            self._submit_ready()
        except Surroundings as error:
            if self._away_since is None:
                self._away_since = now
                self.say(f"the ledger is away, training goes on: {error}")
            if not self.executor.num_running() and now - self._away_since > LEDGER_PATIENCE_SECONDS:
                raise
            self._next_try = time.monotonic() + LEDGER_RETRY_SECONDS
            return
        if self._away_since is not None:
            self.say("the ledger is back")
            self._away_since = None

    def _collect(self) -> None:
        """Wait a little for tasks to end; their ends are written by ``_advance``."""
        ended = self.executor.wait(WAIT_SECONDS)
        if not ended and not self.executor.num_running():
            time.sleep(WAIT_SECONDS)
        for key, outcome in ended:
            self._in_use.pop(key, None)
            self._ends.append((key, outcome))

    # The graph

    def _build(self) -> None:
        for trunk in self.plan.trunks:
            self._add_data(trunk)
        for trunk in self.plan.trunks:
            add_trunk(self.graph, self.store, trunk, self.records.state)
        self.examples.add_to(self.graph, priority=SHORT)
        for trunk in self.plan.trunks:
            self._add_evaluations(trunk)

    def add(self, trunk: TrunkPlan, state: GridState) -> None:
        """A trunk more, with what is undone of its points. state: what ledger and store hold of it."""
        assert trunk.name not in self._trunks, f"{trunk.name} added twice"
        self.records.plan = replace(self.plan, trunks=(*self.plan.trunks, trunk))
        self._trunks[trunk.name] = trunk
        self._points |= {point.name: point for point in trunk.points}
        self.records.learn(state)
        self._learn_past(trunk)
        self.examples = ExamplesBook(self.plan, self.records.state)
        for each in self.plan.trunks:
            self._add_data(each)
        add_trunk(self.graph, self.store, trunk, self.records.state)
        self.examples.add_to(self.graph, priority=SHORT)
        self._add_evaluations(trunk)

    def add_data(self, data: DataPlan) -> Node:
        """The node that prepares data; the one that is there already, if there is."""
        key: NodeKey = ("prepare", data.folder)
        self._data[data.folder] = data
        return self.graph.nodes.get(key) or self.graph.add(Node(key=key, priority=float("inf")))

    def _add_data(self, trunk: TrunkPlan) -> None:
        if self._needs_data(trunk):
            self.add_data(trunk.data)
            self.add_data(trunk.measured)

    def _add_evaluations(self, trunk: TrunkPlan) -> None:
        for point in trunk.points:
            for evaluation in self.plan.evaluations:
                if self.records.state.evaluations[point.name, evaluation.name].status != "done":
                    self._add_evaluation(trunk, point, evaluation)

    def _needs_data(self, trunk: TrunkPlan) -> bool:
        state = self.records.state
        if trunk.measured.folder in self.examples.data() or state.trunks[trunk.name].interrupted:
            return True
        for point in trunk.points:
            asked = [state.evaluations[point.name, each.name] for each in self.plan.evaluations]
            if any(each.status != "done" for each in (state.points[point.name], *asked)):
                return True
        return False

    def _learn_past(self, trunk: TrunkPlan) -> None:
        """Seconds and micro-batch of earlier submissions."""
        run = self.records.state.trunks[trunk.name].run
        self._seconds[trunk.name] = seconds_of(run)
        stored = run.number("micro_batch") if run is not None else None
        if stored:
            self._micro_batch[trunk.name] = int(stored)

    def _add_evaluation(self, trunk: TrunkPlan, point: PointPlan, evaluation: Evaluation) -> None:
        decay: NodeKey = ("decay", point.name)
        depends: tuple[NodeKey, ...] = (decay,) if decay in self.graph.nodes else ()
        depends += (("prepare", trunk.measured.folder),)
        depends += self.examples.before(trunk, evaluation)
        self.graph.add(Node(key=("evaluate", point.name, evaluation.name), depends_on=depends, priority=SHORT))

    def _add_refit(self, law: int, architecture: str, num_points: int, num_resamples: int) -> bool:
        """After the refits of the same law that wait or run; False if there was one of these points already.

        One that waits is enough: it is given the points that are there when it starts, so that points which arrive
        faster than their laws can be fitted do not queue a refit each.
        """
        key: NodeKey = ("refit", law, architecture, num_points, num_resamples)
        if key in self.graph.nodes:
            return False
        earlier = self.graph.pending(key[:3])
        if any(node.state == "waiting" and int(node.key[4]) >= num_resamples for node in earlier):
            return False
        self.graph.add(Node(key=key, after=tuple(node.key for node in earlier), priority=float("inf")))
        return True

    def _more_to_come(self, architecture: str) -> bool:
        """Whether points of an architecture are still to be trained or evaluated."""
        return any(
            node.kind in ("decay", "evaluate")
            and node.state in ("waiting", "running")
            and self._points[str(node.key[1])].id.architecture == architecture
            for node in reversed(self.graph.nodes.values())  # the last are the likeliest to wait
        )

    # Starting

    def _submit_ready(self) -> None:
        for node in self.graph.ready():
            devices = self._devices(node)
            in_use = sum(self._in_use.values())
            full = in_use + devices > self.capacity.num_devices + 1e-9
            limit = self.capacity.max_parallel
            if full or (limit is not None and len(self._in_use) >= limit):
                break  # the next in line waits for its place, so that a large trial is not starved by small ones
            self._start(node, devices)

    def _start(self, node: Node, devices: float) -> None:
        stage, task, name = self._task(node)
        self.graph.start(node.key)
        self._in_use[node.key] = devices
        accelerator = "gpu" if self.capacity.unit == "GPU" and node.kind in _ON_DEVICES else "cpu"
        request = task_request(name, devices, accelerator, memory_bytes=self._memory(node))
        self.executor.submit(node.key, stage, task, request)

    def _devices(self, node: Node) -> float:
        run = self.plan.spec.run
        if node.kind in ("segment", "decay"):
            return run.devices_for(self._trunk_of(node).scale)
        return run.evaluation_devices(evaluation_of(node))

    def _memory(self, node: Node) -> int:
        return self.plan.spec.run.evaluation_memory(evaluation_of(node))

    def _task(self, node: Node) -> tuple[str, dict[str, Any], str]:
        """(stage, task, name in Ray's dashboard); opens the runs that the task writes to."""
        kind = node.kind
        if kind == "prepare":
            return kind, self.tasks.prepare(self._data[str(node.key[1])]), f"prepare {node.key[1]}"
        if kind == "refit":
            law, architecture = self.plan.laws[int(node.key[1])], str(node.key[2])
            index, resamples = int(node.key[1]), int(node.key[4])
            self._fitted[node.key] = self.laws.identity_of(index, architecture, resamples)
            return kind, self.laws.task(index, architecture, resamples), f"refit {law.name} {law.form} {architecture}"
        if kind == "examples":
            examples = self.examples.of(node)
            evaluator = self.examples.evaluator_folders(examples, self.records.run_ids)
            run_id = self.records.open_examples(examples)
            return kind, self.tasks.examples(examples, run_id=run_id, evaluator=evaluator), examples.label
        trunk = self._trunk_of(node)
        weights = self._base_folder(trunk)
        micro_batch = self._micro_batch.get(trunk.name)
        if kind == "segment":
            run_id = self.records.open_trunk(trunk)
            task = self.tasks.segment(
                trunk, until_step=int(node.key[2]), run_id=run_id, weights=weights, micro_batch=micro_batch
            )
            return kind, task, f"{trunk.name} trunk"
        point = self._points[str(node.key[1])]
        if kind == "decay":
            trunk_run = self.records.run_ids.get(trunk.name)
            run_id = self.records.open_point(trunk, point)
            if not point.is_trained:
                assert weights is not None, f"{point.name} trains nothing and has no base: the plan refuses it"
                return "adopt", self.tasks.adopt(trunk, run_id=run_id, weights=weights), point.name
            task = self.tasks.decay(
                trunk, point, run_id=run_id, trunk_run_id=trunk_run, weights=weights, micro_batch=micro_batch
            )
            return kind, task, point.name
        evaluation = self._evaluations[str(node.key[2])]
        run_id = self.records.open_evaluation(trunk, point, evaluation)
        task = self.tasks.evaluate(
            evaluation,
            trunk,
            run_id=run_id,
            point_run_id=self.records.run_ids[point.name],
            examples=self.plan.examples(trunk, evaluation),
        )
        return kind, task, evaluation_name(point.name, evaluation.name)

    def _base_folder(self, trunk: TrunkPlan) -> str | None:
        """Where the weights lie that a trunk starts from; None for a fresh start."""
        if trunk.base is None or trunk.base.point is None:
            return trunk.base.folder if trunk.base is not None else None
        return self.tasks.model_folder(self.records.run_ids[trunk.base.point.name])

    def _trunk_of(self, node: Node) -> TrunkPlan:
        name = str(node.key[1])
        return self._trunks[name] if node.kind == "segment" else self._trunks[self._points[name].trunk]

    # Ends

    def _ended(self, key: NodeKey, outcome: Outcome) -> None:
        """Write one end into the ledger; may be called again for the same end if the ledger was away half-way."""
        node = self.graph.nodes[key]
        owner = self.source if self.source is not None and self.source.owns(node) else None
        if owner is not None:
            outcome = owner.judge(node, outcome)
        if outcome.failure is not None:
            self._failed(node, outcome.failure)
        else:
            assert outcome.result is not None
            self.graph.done(key)
            getattr(self, f"_{node.kind}_done")(node, outcome.result)
        if owner is not None and node.state in ("done", "failed"):
            owner.ended(node, outcome)

    def _prepare_done(self, node: Node, result: dict[str, Any]) -> None:
        windows, documents = result["counts"]["train"]["windows"], result["counts"]["heldout"]["documents"]
        self.say(f"data ready: {windows:,} training windows, {documents:,} held-out documents")

    def _examples_done(self, node: Node, result: dict[str, Any]) -> None:
        examples = self.examples.of(node)
        folder = examples_name(examples.fingerprint)
        files = {name: self.store.read_bytes(f"{folder}/{name}").decode() for name in result["files"]}
        self.records.finish_examples(examples, result, files)
        self.say(f"{examples.label}: {result['examples']:,} examples ready")

    def _segment_done(self, node: Node, result: dict[str, Any]) -> None:
        trunk = self._trunk_of(node)
        self._micro_batch[trunk.name] = result["micro_batch"]
        own = self._segment_seconds.setdefault(trunk.name, {})
        own[node.key] = result["seconds"] if result["executed_now"] else 0.0
        segments = (self.graph.nodes.get(("segment", trunk.name, step)) for step in trunk.branch_steps)
        last = not any(each is not None and each.state == "waiting" for each in segments)
        self.records.segment_done(trunk, result, seconds=self._seconds[trunk.name] + sum(own.values()), last=last)
        self._tell_start(trunk.name, trunk, result)

    def _decay_done(self, node: Node, result: dict[str, Any]) -> None:
        point = self._points[str(node.key[1])]
        self.records.finish_point(point, result)
        self._tell_start(point.name, self._trunk_of(node), result)

    def _tell_start(self, name: str, trunk: TrunkPlan, result: dict[str, Any]) -> None:
        """Damaged checkpoints that were passed over, and, once a name, what was taken over of a base's weights."""
        for sentence in result["damaged"]:
            self.say(f"{name}: damaged checkpoint passed over: {sentence}")
        transfer = transfer_of(result)
        if trunk.base is not None and transfer is not None and name not in self._told:
            self._told.add(name)
            self.say(f"{name} starts from {trunk.base.label}: {transfer.words()}")

    def _evaluate_done(self, node: Node, result: dict[str, Any]) -> None:
        point, evaluation = self._points[str(node.key[1])], self._evaluations[str(node.key[2])]
        self.records.finish_evaluation(point, evaluation, result)
        more = self._more_to_come(point.id.architecture)
        outcome = no_value(evaluation, result)
        for refit in self.laws.gained(point, evaluation, result["metrics"], outcome=outcome, more_to_come=more):
            self._add_refit(*refit)

    def _refit_done(self, node: Node, result: dict[str, Any]) -> None:
        law, architecture = int(node.key[1]), str(node.key[2])
        values, fingerprint = self._fitted[node.key]
        self.records.refitted(self.plan.laws[law], architecture, fingerprint, values, result)
        self.laws.fitted(law, architecture, fingerprint)

    def _failed(self, node: Node, failure: Failure) -> None:
        if failure.kind in TRY_AGAIN and node.attempts < MAX_ATTEMPTS and self._lighten(node, failure):
            self.say(f"{node.label}: {failure.reason}; trying again ({node.attempts + 1} of {MAX_ATTEMPTS})")
            self.graph.again(node.key, failure.reason)
            return
        if failure.kind == "stopped":
            self.graph.again(node.key, failure.reason)
            return
        if failure.kind == "store":
            self._fatal = f"the store cannot be used: {failure.reason}"
            self.graph.again(node.key, failure.reason)
            return
        if failure.kind == "pruned":
            self.graph.fail(node.key, failure.reason)
            self.say(f"{node.label} pruned: {failure.reason}")
            return
        diverged = failure.kind == "diverged"
        name = self.run_name(node)
        if name:
            self.records.fail(name, failure.reason, diverged=diverged, error=failure.traceback, tries=node.attempts)
        blocked = self.graph.fail(node.key, failure.reason)
        self.say(f"{node.label} {'diverged' if diverged else 'failed'}: {failure.reason}")
        kind = {"segment": "trunk", "decay": "point", "evaluate": "evaluation", "refit": "law"}.get(node.kind, "data")
        status = "diverged" if diverged else "failed"
        self._problem(node, name or node.label, kind, status, failure.reason, is_input=failure.kind == "input")
        for each in blocked:
            if each.kind == "decay":
                self._problem(each, str(each.key[1]), "point", "blocked", each.reason)
            elif each.kind == "evaluate" and not self.graph.is_lost(("decay", each.key[1])):
                name = self.run_name(each)
                self._problem(each, name, "evaluation", "blocked", each.reason)

    def run_name(self, node: Node) -> str:
        """Name of the run that a node writes to; laws' runs keep what they have."""
        if node.kind == "evaluate":
            return evaluation_name(str(node.key[1]), str(node.key[2]))
        if node.kind == "examples":
            return self.examples.of(node).name
        return str(node.key[1]) if node.kind in ("segment", "decay") else ""

    def _problem(self, node: Node, name: str, kind: str, status: str, reason: str, is_input: bool = False) -> None:
        self.problems.append(
            Problem(name=name, kind=kind, status=status, reason=reason, attempts=node.attempts, is_input=is_input)
        )

    def _lighten(self, node: Node, failure: Failure) -> bool:
        """After running out of memory: half the micro-batch at the same token batch; False if it cannot be halved."""
        if failure.kind != "memory" or node.kind not in ("segment", "decay"):
            return True
        trunk = self._trunk_of(node)
        sequences = trunk.batch_tokens // trunk.context
        now = self._micro_batch.get(trunk.name, sequences)
        smaller = [size for size in range(1, now) if sequences % size == 0]
        if smaller:
            self._micro_batch[trunk.name] = smaller[-1]
        return bool(smaller)

    def _stop(self, reason: str) -> None:
        """Ask running tasks to save and leave, wait a bounded time, then end them; what they saved is not lost.

        Whoever lost the lease ends them at once and writes nothing: the runs may be another driver's by now. Of a
        ledger or a store that is away nothing is expected; the next submission marks what could not be marked.
        """
        if self.lost():
            self.say(f"{reason}: ending what runs")
            self.executor.kill_all()
            return
        self.say(f"{reason}: saving what runs")
        try:
            self.store.write_bytes(self.tasks.stop, b"stop\n", durable=False)
        except Surroundings:
            self.executor.kill_all()  # they could not save either
        local = self.store.path(self.tasks.stop) is not None
        deadline = time.monotonic() + (STOP_SECONDS if local else REMOTE_STOP_SECONDS)
        while self.executor.num_running() and time.monotonic() < deadline:
            self._ends += self.executor.wait(0.2)
        self.executor.kill_all()
        self.records.hurry()
        try:
            for key, outcome in self._ends:
                self._ended(key, outcome)
            self.records.finish_laws()
            self.records.stop_all(reason)
        except Surroundings as error:
            self.say(f"the ledger could not be told, the next run will: {error}")
