"""The ledger: one MLflow experiment per grid, in which a point is done if and only if a FINISHED run says so.

A parent run per submission; child runs for trunks, points, evaluations and laws. Runs carry flat tags for every
dimension, few short params, and their full configuration as JSON artifacts. Non-finite numbers are never sent as
metrics.

Concurrency. Only the driver that holds the experiment's lease writes here; workers write metrics of their own runs
through ``journal``. Hence a run found RUNNING when a driver starts has no living owner: it is reopened under its id, or
ended. A run's results are sent before its status, so that FINISHED implies complete. Calls may be repeated after a lost
answer: creating a run is, too, because each creation carries a token by which the repeated call finds the run of the
first.

Cost. A call to MLflow takes 10 to 30 ms of processor time on its own database and a round trip to a server, and a grid
makes several for every point. So nothing is read that the one writer knows: which metrics a run has, where its
artifacts lie. Artifacts in a folder of this machine are files, written without a call.
"""

from __future__ import annotations

import gc
import getpass
import json
import math
import os
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from gridlaw.platform.errors import Surroundings
from gridlaw.platform.ledger import artifacts, tables
from gridlaw.platform.ledger.experiments import claim, connect
from gridlaw.platform.ledger.records import KINDS, PREFIX, RunRecord, from_mlflow, prefixed, tag_text
from gridlaw.platform.ledger.tracking import Tracking, TrackingRefused
from gridlaw.platform.ledger.version import code_version
from gridlaw.platform.store.local import explain

if TYPE_CHECKING:
    from mlflow.entities import RunInfo
    from mlflow.tracking import MlflowClient

IDENTITY_FILE = "identity.json"
CONFIG_FILE = "config.json"
_PAGE = 1000
_AT_ONCE = 8
"""Artifacts that are read from a server at a time."""
_TOKEN_TAG = PREFIX + "request"
_TABLES_TAG = "mlflow.loggedArtifacts"  # by which MLflow's page finds tables


class Ledger:
    """An experiment in MLflow. Made by ``Ledger.open``; every method may raise ``Surroundings``."""

    def __init__(self, tracking: Tracking, experiment: str, experiment_id: str) -> None:
        self.tracking, self.experiment, self.experiment_id = tracking, experiment, experiment_id
        self._notes: dict[str, str] = {}
        self._params: dict[str, Mapping[str, Any]] = {}
        """Of runs that were opened: they go along with the next that is sent."""
        self._newest: dict[str, dict[str, tuple[int, float]]] = {}
        """By run: (step, value) of the results that it has. Workers' journals hold other metrics."""
        self._artifacts: dict[str, str] = {}
        """By run: where its artifacts lie."""
        self._tables: set[tuple[str, str]] = set()
        """(run, name) of tables that MLflow's page knows."""

    @overload
    @staticmethod
    def open(
        tracking_uri: str, experiment: str, store_address: str, *, create: Literal[True], patience_seconds: float = 90.0
    ) -> Ledger: ...

    @overload
    @staticmethod
    def open(
        tracking_uri: str, experiment: str, store_address: str, *, create: bool, patience_seconds: float = 90.0
    ) -> Ledger | None: ...

    @staticmethod
    def open(
        tracking_uri: str, experiment: str, store_address: str, *, create: bool, patience_seconds: float = 90.0
    ) -> Ledger | None:
        """Open an experiment.

        create: make what is missing (database, experiment); without it None is returned then, nothing is made, and
        where there is no database MLflow is not even imported. ``InUse`` if the experiment belongs to another store,
        ``BadInput`` if it was deleted in MLflow.
        """
        tracking = connect(tracking_uri, create=create, patience_seconds=patience_seconds)
        experiment_id = claim(tracking, experiment, store_address, create=create) if tracking is not None else None
        return Ledger(tracking, experiment, experiment_id) if tracking is not None and experiment_id else None

    @property
    def tracking_uri(self) -> str:
        """Address as workers need it; show people ``redacted(uri)``."""
        return self.tracking.uri

    # Reading

    def find_runs(
        self, kind: str | None = None, *, name: str | None = None, tags: Mapping[str, str] | None = None
    ) -> list[RunRecord]:
        """All runs of a kind that are not deleted, newest first: one search, in pages.

        kind, name, tags: narrow the search (tags without the prefix).
        """
        wanted = {"kind": kind, "name": name, **(tags or {})}
        return self._find({PREFIX + key: value for key, value in wanted.items() if value is not None})

    def read_run(self, run_id: str) -> RunRecord:
        """One run as it stands now; ``TrackingRefused`` if it does not exist."""
        return from_mlflow(self.tracking.call(f"read run {run_id}", lambda client: client.get_run(run_id)))

    def read_json(self, run_id: str, name: str) -> Any:
        """A JSON artifact, None if the run has none of this name."""
        text = self.read_text(run_id, name)
        return None if text is None else json.loads(text)

    def read_jsons(self, run_ids: Collection[str], name: str) -> dict[str, Any]:
        """A JSON artifact of many runs, by run; None for runs that have none. Servers are asked several at a time."""
        if not run_ids or self._artifact_file(next(iter(run_ids)), name) is not None:
            return {run_id: self.read_json(run_id, name) for run_id in run_ids}
        first, *rest = run_ids
        found = {first: self.read_json(first, name)}  # alone: it makes the clients that the threads share
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found.update(zip(rest, pool.map(lambda run_id: self.read_json(run_id, name), rest), strict=True))
        return found

    def read_text(self, run_id: str, name: str) -> str | None:
        """A text artifact, None if the run has none of this name."""
        path = self._artifact_file(run_id, name)
        if path is not None:
            with _explained(f"read {path}"):
                return path.read_text(encoding="utf-8") if path.is_file() else None

        uri = self._artifacts[run_id]
        return self.tracking.call(
            f"read {name} of run {run_id}", lambda client: artifacts.read_text(uri, name, self.tracking_uri)
        )

    def identity(self, run_id: str) -> dict[str, Any] | None:
        """The resolved values behind a run's fingerprint, to show drift field by field; None if they are gone."""
        found = self.read_json(run_id, IDENTITY_FILE)
        return found if isinstance(found, dict) else None

    def metric_history(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        """(step, value) of all that was logged of a metric, by step."""
        found = self.tracking.call(
            f"read {metric} of run {run_id}", lambda client: client.get_metric_history(run_id, metric)
        )
        return sorted({each.step: each.value for each in found}.items())

    # Writing

    def start_submission(self, *, tags: Mapping[str, Any] | None = None, config: Any = None, note: str = "") -> str:
        """Open the parent run of one submission; returns its run id. config: the grid as resolved, kept as an
        artifact."""
        return self.start_run("submission", name=self.experiment, fingerprint="", tags=tags, config=config, note=note)

    def start_run(
        self,
        kind: str,
        *,
        name: str,
        fingerprint: str,
        parent_id: str = "",
        tags: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        identity: Mapping[str, Any] | None = None,
        config: Any = None,
        note: str = "",
    ) -> str:
        """Open a run; returns its run id, which also names its folder in the store.

        kind: one of ``KINDS``. tags: further dimensions, without prefix; those that are None are left out. params: few
        and short; they go along with what is sent next. identity: the values that were hashed. config: all else that
        describes the run; both become JSON artifacts.
        """
        assert kind in KINDS, f"unknown kind of run {kind!r}"
        own = {"kind": kind, "name": name, "fingerprint": fingerprint, **(tags or {}), **code_version().tags()}
        sent = prefixed(own) | {"mlflow.runName": name, "mlflow.source.name": "gridlaw", "mlflow.user": _user()}
        if parent_id:
            sent["mlflow.parentRunId"] = parent_id
        if note:
            sent["mlflow.note.content"] = note
        run_id = self._create(name, sent)
        self._newest[run_id] = {}
        if params:
            self._params[run_id] = params
        if identity is not None:
            self.log_json(run_id, IDENTITY_FILE, identity)
        if config is not None:
            self.log_json(run_id, CONFIG_FILE, config)
        return run_id

    def reopen_run(
        self,
        run_id: str,
        *,
        parent_id: str = "",
        tags: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Set a run to RUNNING again under its id: after a dead owner, or because a trunk continues, or a law is
        refitted.

        parent_id: the submission that works on it now. params: as at its start, after which they may not have been
        sent. Marks of the earlier end (reason, diverged) are removed.
        """
        record = self.read_run(run_id)
        for tag in {"reason", "diverged", "error"} & set(record.tags):
            self._delete_tag(run_id, PREFIX + tag)
        sent = prefixed(
            {"attempts": int(record.tags.get("attempts", "1")) + 1, **(tags or {}), **code_version().tags()}
        )
        if parent_id:
            sent["mlflow.parentRunId"] = parent_id
        self._log(run_id, params=params, raw_tags=sent)
        self._set_status(run_id, "RUNNING")

    def finish_run(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, float] | None = None,
        step: int = 0,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """Send results, then mark the run FINISHED. Non-finite results become the tag ``nonfinite``, never metrics."""
        self.log_results(run_id, metrics=metrics, step=step, tags=tags)
        self._set_status(run_id, "FINISHED")

    def fail_run(
        self,
        run_id: str,
        reason: str,
        *,
        diverged: bool = False,
        error: str = "",
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """Mark a run FAILED. reason: one line for people. error: a traceback, kept as an artifact."""
        own = {"reason": reason, "diverged": True if diverged else None, **(tags or {})}
        self.log_results(run_id, tags=own)
        if error:
            with suppress(Surroundings):
                self.log_text(run_id, "error.txt", error)
        self._set_status(run_id, "FAILED")

    def stop_run(self, run_id: str, reason: str) -> None:
        """Mark a run KILLED: stopped by a person or by its surroundings, to be continued."""
        self.log_results(run_id, tags={"reason": reason})
        self._set_status(run_id, "KILLED")

    def end_stale_runs(self, *, keep: Iterable[str] = (), reason: str = "the driver died") -> list[str]:
        """Mark FAILED every run left RUNNING by a dead driver, except ``keep``; returns their ids. Needs the lease."""
        kept = set(keep)
        stale = self._find({}, status="RUNNING")
        ended = [record.run_id for record in stale if record.kind and record.run_id not in kept]
        for run_id in ended:
            self.fail_run(run_id, reason)
        return ended

    def log_results(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, float] | None = None,
        step: int = 0,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """Send metrics and tags in one batch. What the run has already (same metric, step and value) is not sent
        again."""
        finite = {key: float(value) for key, value in (metrics or {}).items() if math.isfinite(value)}
        nonfinite = sorted(set(metrics or {}) - set(finite))
        there = self._results_of(run_id) if finite else {}
        finite = {key: value for key, value in finite.items() if there.get(key) != (step, value)}
        try:
            self._log(
                run_id,
                metrics=finite,
                step=step,
                raw_tags=prefixed({**(tags or {}), "nonfinite": ", ".join(nonfinite) or None}),
            )
        except Surroundings:
            self._newest.pop(run_id, None)  # the batch may have arrived all the same
            raise
        there.update({key: (step, value) for key, value in finite.items()})

    def set_tags(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Set tags (without prefix) on a run, in one call."""
        self._log(run_id, raw_tags=prefixed(tags))

    def note_tags(self, run_id: str, tags: Mapping[str, Any]) -> bool:
        """Set tags that are only for people to read; best effort without waiting, False if the server is away."""
        try:
            self._log(run_id, raw_tags=prefixed(tags), patience_seconds=0.0)
        except Surroundings:
            return False
        return True

    def supersede(self, run_id: str, *, reason: str = "--rerun") -> None:
        """Set a finished run aside: it stays readable and counts no more."""
        self.set_tags(run_id, {"superseded": f"{reason} {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}"})

    def describe(self, run_id: str, markdown: str) -> bool:
        """Set the run's description on its page; best effort without waiting, False if the server is away."""
        if self._notes.get(run_id) == markdown:
            return True
        note = markdown if len(markdown) <= 7900 else markdown[:7900] + "\n…"  # a tag's limit is 8,000
        try:
            self.tracking.call(
                "set the description",
                lambda client: client.set_tag(run_id, "mlflow.note.content", note),
                patience_seconds=0.0,
            )
        except Surroundings:
            return False
        self._notes[run_id] = markdown
        return True

    def log_json(self, run_id: str, name: str, value: Any) -> None:
        """Keep a JSON artifact. name: with forward slashes, folders are made."""
        self.log_text(run_id, name, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")

    def log_text(self, run_id: str, name: str, text: str) -> None:
        """Keep a text artifact (a report, a configuration)."""
        path = self._artifact_file(run_id, name)
        if path is None:
            self.tracking.call(f"keep {name}", lambda client: client.log_text(run_id, text, name))
            return
        with _explained(f"keep {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.part")
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)

    def log_file(self, run_id: str, path: Path, folder: str = "") -> None:
        """Keep a copy of a local file as an artifact."""
        self.tracking.call(f"keep {path.name}", lambda client: client.log_artifact(run_id, str(path), folder or None))

    def log_table(self, run_id: str, name: str, rows: list[dict[str, Any]]) -> None:
        """Keep rows as a table artifact that MLflow's page shows; replaces an earlier one. name: ends in .json."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = {"columns": columns, "data": [[_plain(row.get(column)) for column in columns] for row in rows]}
        self.log_text(run_id, name, json.dumps(table))
        if (run_id, name) in self._tables:
            return
        run = self.tracking.call(f"read run {run_id}", lambda client: client.get_run(run_id))
        listed = json.loads(run.data.tags.get(_TABLES_TAG, "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in listed:
            self._log(run_id, raw_tags={_TABLES_TAG: json.dumps([*listed, entry])})
        self._tables.add((run_id, name))

    # Calls

    def _results_of(self, run_id: str) -> dict[str, tuple[int, float]]:
        """Read once of a run that this process did not make, or after an outage; then known."""
        if run_id not in self._newest:
            run = self.tracking.call(f"read run {run_id}", lambda client: client.get_run(run_id))
            self._newest[run_id] = {each.key: (each.step, each.value) for each in run.data._metric_objs}
        return self._newest[run_id]

    def _artifact_file(self, run_id: str, name: str) -> Path | None:
        """Where an artifact lies, or is to lie; None if that is no folder of this machine."""
        if run_id not in self._artifacts:
            run = self.tracking.call(f"read run {run_id}", lambda client: client.get_run(run_id))
            self._artifacts[run_id] = run.info.artifact_uri
        folder = artifacts.local_folder(self._artifacts[run_id])
        return None if folder is None else folder / name

    def _find(self, tags: Mapping[str, str], *, status: str = "") -> list[RunRecord]:
        """Runs with these tags (with prefix), newest first."""
        found = self.tracking.read(
            "search runs",
            lambda connection: tables.find_runs(connection, self.experiment_id, tags, status),
            lambda client: self._search(client, tags, status),
        )
        self._artifacts.update({run.run_id: run.artifact_uri for run in found})
        return found

    def _search(self, client: MlflowClient, tags: Mapping[str, str], status: str) -> list[RunRecord]:
        clauses = [f"tags.`{key}` = {_quoted(value)}" for key, value in tags.items()]
        clauses += [f"attributes.status = '{status}'"] if status else []
        found: list[RunRecord] = []
        token: str | None = None
        while True:
            with _collection_paused():
                page = client.search_runs(
                    [self.experiment_id],
                    " and ".join(clauses),
                    max_results=_PAGE,
                    order_by=["attributes.start_time DESC"],
                    page_token=token,
                )
                found += map(from_mlflow, page)
            token = page.token
            if not token:
                return found

    def _create(self, name: str, tags: dict[str, str]) -> str:
        token = uuid.uuid4().hex
        tries = 0

        def ask(client: MlflowClient) -> RunInfo:
            nonlocal tries
            tries += 1
            if tries > 1:  # the first answer may have been lost after the run was made
                made = client.search_runs([self.experiment_id], f"tags.`{_TOKEN_TAG}` = '{token}'", max_results=1)
                if made:
                    return made[0].info
            return client.create_run(self.experiment_id, tags=tags | {_TOKEN_TAG: token}, run_name=name).info

        info = self.tracking.call(f"open the run {name}", ask)
        self._artifacts[info.run_id] = info.artifact_uri
        return str(info.run_id)

    def _log(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, float] | None = None,
        step: int = 0,
        params: Mapping[str, Any] | None = None,
        raw_tags: Mapping[str, str] | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        params = {**self._params.get(run_id, {}), **(params or {})}
        if not (metrics or params or raw_tags):
            return
        from mlflow.entities import Metric, Param, RunTag

        # One timestamp for all tries: MLflow takes an equal (metric, value, step, time) for the same and keeps one.
        now = time.time_ns() // 1_000_000
        values = [Metric(key, value, now, step) for key, value in (metrics or {}).items()]
        texts = [Param(key, str(tag_text(value))) for key, value in params.items() if value is not None]
        labels = [RunTag(key, value) for key, value in (raw_tags or {}).items()]
        self.tracking.call(
            f"write to run {run_id}",
            lambda client: client.log_batch(run_id, metrics=values, params=texts, tags=labels),
            patience_seconds=patience_seconds,
        )
        self._params.pop(run_id, None)

    def _delete_tag(self, run_id: str, key: str) -> None:
        with suppress(TrackingRefused):  # gone already
            self.tracking.call("remove a tag", lambda client: client.delete_tag(run_id, key))

    def _set_status(self, run_id: str, status: str) -> None:
        def ask(client: MlflowClient) -> None:
            if status == "RUNNING":
                client.update_run(run_id, status=status)
            else:
                client.set_terminated(run_id, status=status)

        self.tracking.call(f"mark run {run_id} {status}", ask)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Hold off the collector: where very many objects are made and kept, scanning them again and again as their number
    grows can more than double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, f"cannot {what}") from error


def _quoted(value: str) -> str:
    assert "'" not in value or '"' not in value, f"a search cannot quote {value!r}"
    return f'"{value}"' if "'" in value else f"'{value}'"


def _plain(value: Any) -> Any:
    """A table's cell: non-finite numbers as text, which JSON readers everywhere take."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
