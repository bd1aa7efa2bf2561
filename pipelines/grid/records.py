"""How trunks, points, evaluations and laws are written into the ledger: names, flat tags, params, artifacts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gridlaw.modules.models.weights import Transfer, grouped
from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.pipelines.evaluations.sources import ExamplesPlan
from gridlaw.pipelines.grid.attempts import MODEL_FOLDER
from gridlaw.pipelines.grid.news import News
from gridlaw.pipelines.grid.state import PYTHON, GridState, evaluation_name, law_name
from gridlaw.pipelines.plan import GridPlan, LawPlan, PointPlan, TrunkPlan
from gridlaw.platform import identity
from gridlaw.platform.errors import Surroundings
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.records import RunRecord
from gridlaw.platform.ledger.sender import JOURNAL_FILE, JournalPump
from gridlaw.platform.store.base import attempt_name

HISTORY = "history.json"
LAW = "law.json"
DETAILS = "details.json"
TRANSFER = "transfer.json"
HURRIED_SECONDS = 3.0


@dataclass
class Records:
    """Opens, finishes and fails the runs of one submission. Run ids by name stay known for the tasks that need them."""

    plan: GridPlan
    ledger: Ledger
    state: GridState
    parent_id: str
    pump: JournalPump
    """Sends what workers append to their journals."""
    news: News
    run_ids: dict[str, str] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    """Names of runs that are RUNNING because of this submission."""
    law_rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest fit of each law's run that this submission made or read, as ``LawRow.to_dict`` gives it."""
    _histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._learn_ids(self.state)

    @property
    def attempts(self) -> Path:
        """Where this process reads runs' journals and progress."""
        return self.news.attempts

    def close(self) -> None:
        """Stop sending; what is left waits for the next submission."""
        self.pump.close()
        self.news.close()

    def learn(self, state: GridState) -> None:
        """Take in what ledger and store hold of points that were added to the plan."""
        self.state = self.state.extended(state)
        self._learn_ids(state)

    def _learn_ids(self, state: GridState) -> None:
        for standings in (state.trunks, state.points):
            self.run_ids.update(
                {
                    name: each.run.run_id
                    for name, each in standings.items()
                    if each.run is not None and each.status != "drift"
                }
            )
        for (point, evaluation), each in state.evaluations.items():
            if each.run is not None:
                self.run_ids[evaluation_name(point, evaluation)] = each.run.run_id
        self.run_ids.update({run.name: run.run_id for each in state.examples.values() if (run := each.run)})
        self.run_ids.update({name: run.run_id for name, run in state.laws.items()})

    def open_trunk(self, trunk: TrunkPlan) -> str:
        params = {"batch_tokens": trunk.batch_tokens, "lr": trunk.training["optimizer"]["lr"]}
        return self._open(
            "trunk", trunk.name, trunk.fingerprint, tags=self._trunk_tags(trunk), params=params, identity=trunk.identity
        )

    def open_point(self, trunk: TrunkPlan, point: PointPlan) -> str:
        tags = self._trunk_tags(trunk) | {"budget": point.id.budget.label, "tokens": point.tokens, "trunk": trunk.name}
        params = {"N": trunk.num_params, "D": point.tokens, "lr": trunk.training["optimizer"]["lr"]}
        return self._open("point", point.name, point.fingerprint, tags=tags, params=params, identity=point.identity)

    def finish_point(self, point: PointPlan, result: dict[str, Any]) -> None:
        """Training is over; evaluations add their metrics later, those that are done already add them now.

        They are when a point's run was deleted in MLflow and its evaluations' runs were not.
        """
        run_id = self.run_ids[point.name]
        tags = self.training_tags(run_id, result)
        metrics = {"train_seconds": result["seconds"]} | self.state.metrics(point.name)
        self._flush(point.name)
        self.ledger.finish_run(run_id, metrics=metrics, step=result["steps"], tags=tags)
        self._closed(point.name)

    def training_tags(self, run_id: str, result: dict[str, Any]) -> dict[str, Any]:
        """What a run says of its training, which is over."""
        return {
            "checkpoint": f"{attempt_name(run_id)}/{MODEL_FOLDER}",
            "steps": result["steps"],
            "executed_steps": result["executed_steps"],
            "seconds": result["seconds"],
            **self._transfer(run_id, result),
        }

    def segment_done(self, trunk: TrunkPlan, result: dict[str, Any], *, seconds: float, last: bool) -> None:
        """One more segment; the trunk's run ends with the last that this file needs, and is reopened for more."""
        run_id = self.run_ids[trunk.name]
        tags = {
            "checkpoint": attempt_name(run_id),
            "steps": result["steps"],
            "tokens": result["tokens"],
            "executed_steps": result["executed_steps"],
            "micro_batch": result["micro_batch"],
            "seconds": seconds,
            **self._transfer(run_id, result),
        }
        if last:
            self._flush(trunk.name)
            self.ledger.finish_run(run_id, tags=tags)
            self._closed(trunk.name)
        else:
            self.ledger.log_results(run_id, tags=tags)

    def _transfer(self, run_id: str, result: dict[str, Any]) -> dict[str, Any]:
        """What a run took over of another model's weights: kept by name as an artifact, told in short as tags."""
        transfer = transfer_of(result)
        if transfer is None:
            return {}
        self.ledger.log_json(run_id, TRANSFER, transfer.to_dict())
        return {"new_weights": grouped(transfer.new), "dropped_weights": grouped(transfer.unused)}

    def open_evaluation(self, trunk: TrunkPlan, point: PointPlan, evaluation: Evaluation) -> str:
        tags = self._trunk_tags(trunk) | {
            "budget": point.id.budget.label,
            "point": point.name,
            "evaluation": evaluation.name,
        }
        values = self.plan.evaluation_identity(point, evaluation)
        return self._open(
            "evaluation", evaluation_name(point.name, evaluation.name), identity.fingerprint(values), tags=tags,
            identity=values,
        )  # fmt: skip

    def finish_evaluation(self, point: PointPlan, evaluation: Evaluation, result: dict[str, Any]) -> None:
        """Its status last: FINISHED says that details are kept and the metrics are on the point's run, too."""
        name = evaluation_name(point.name, evaluation.name)
        run_id = self.run_ids[name]
        details = {"metrics": result["metrics"], "details": result["details"], "num_samples": result["num_samples"]}
        self.ledger.log_json(run_id, DETAILS, details)
        outcome = no_value(evaluation, result)
        self.ledger.log_results(
            self.run_ids[point.name],
            metrics=result["metrics"],
            step=point.total_steps,
            tags={f"{evaluation.name}_outcome": outcome},
        )
        tags = {"num_samples": result["num_samples"], "seconds": result["seconds"], "outcome": outcome}
        self.ledger.finish_run(run_id, metrics=result["metrics"], step=point.total_steps, tags=tags)
        self._closed(name)

    def open_examples(self, examples: ExamplesPlan) -> str:
        tags = {"evaluation": examples.evaluation.name, "description": examples.label}
        return self._open("data", examples.name, examples.fingerprint, tags=tags, identity=examples.identity)

    def finish_examples(self, examples: ExamplesPlan, result: dict[str, Any], files: Mapping[str, str]) -> None:
        """Examples themselves are in the store, shared by content. files: name → text of what people can share."""
        run_id = self.run_ids[examples.name]
        for name, text in files.items():
            self.ledger.log_text(run_id, name, text)
        tags = {"examples": result["examples"], "seconds": result["seconds"], "folder": result["folder"]}
        self.ledger.finish_run(run_id, tags=tags)
        self._closed(examples.name)

    def refitted(
        self, law: LawPlan, architecture: str, fingerprint: str, values: dict[str, Any], result: dict[str, Any]
    ) -> None:
        """A law's run is opened again at each refit; its history is a table with a row per number of points."""
        name = law_name(law, architecture)
        tags = {"architecture": architecture, "target": law.target, "form": law.form, "law": law.name}
        run_id = self._open("law", name, fingerprint, tags=tags, identity=None)
        row, fit = result["row"], result["fit"]
        self.law_rows[name] = row
        num_points = len(row["fitted"])
        self.ledger.log_text(
            run_id, LAW, json.dumps({"row": row, "fit": fit, "identity": values})
        )  # resamples: compact
        history = self._history(name, run_id)
        history[:] = [each for each in history if each["num_points"] != num_points]
        history.append(_history_row(num_points, row))
        self.ledger.log_table(run_id, HISTORY, history)
        metrics = {f"law_{each['name']}": each["value"] for each in row["parameters"]}
        if row["r2"] is not None:
            metrics["r2"] = row["r2"]
        summary = {"fingerprint": fingerprint, "num_points": num_points, "verdict": row["verdict"] or row["reason"]}
        self.ledger.log_results(run_id, metrics=metrics, step=num_points, tags=summary)

    def finish_laws(self) -> None:
        """Laws stay open while points may still arrive."""
        for name in sorted(self.opened):
            if name.startswith("law/"):
                self.ledger.finish_run(self.run_ids[name])
                self._closed(name)

    def fail(self, name: str, reason: str, *, diverged: bool, error: str, tries: int) -> None:
        """tries: of this submission; the run counts those of all."""
        if name in self.opened:
            self._flush(name)
            run_id = self.run_ids[name]
            attempts = int(self.ledger.read_run(run_id).number("attempts") or 1) + tries - 1
            self.ledger.fail_run(run_id, reason, diverged=diverged, error=error, tags={"attempts": attempts})
            self._closed(name)

    def stop_all(self, reason: str) -> None:
        """Runs that were under way when the submission had to stop."""
        for name in sorted(self.opened):
            self._flush(name)
            self.ledger.stop_run(self.run_ids[name], reason)
            self._closed(name)

    def hurry(self) -> None:
        """From now on wait hardly at all for a ledger that is away: the next submission marks what this one cannot."""
        self.ledger.tracking.patience_seconds = HURRIED_SECONDS

    def give_up(self, reason: str) -> None:
        """After an error of the submission itself: mark what it had open, as well as that is possible now."""
        self.hurry()
        with suppress(Surroundings):
            self.stop_all(reason)
            self.ledger.stop_run(self.parent_id, reason)

    def _open(self, kind: str, name: str, fingerprint: str, **more: Any) -> str:
        """Open or reopen the run of a name; at once if this submission has it open."""
        if name in self.opened:
            return self.run_ids[name]
        if name in self.run_ids:
            self.ledger.reopen_run(self.run_ids[name], parent_id=self.parent_id, params=more.get("params"))
        else:
            self.run_ids[name] = self.ledger.start_run(
                kind, name=name, fingerprint=fingerprint, parent_id=self.parent_id, **more
            )
        self.opened.add(name)
        if self.news.progress is not None and kind != "law":
            self.news.progress.watch(self.run_ids[name])
        if kind in ("trunk", "point", "trial"):
            self.pump.watch(self.run_ids[name], self.attempts / self.run_ids[name] / JOURNAL_FILE)
        return self.run_ids[name]

    def _closed(self, name: str) -> None:
        self.opened.discard(name)
        if self.news.progress is not None:
            self.news.progress.forget(self.run_ids[name])

    def _flush(self, name: str) -> None:
        """Before a run ends, the rest of its journal is sent; an outage leaves it for the next run of the grid."""
        self.pump.finish(self.run_ids[name], timeout_seconds=5.0)

    def _trunk_tags(self, trunk: TrunkPlan) -> dict[str, Any]:
        return {
            "stage": trunk.stage,
            "architecture": trunk.architecture,
            "scale": trunk.scale,
            "seed": trunk.seed,
            "num_params": trunk.num_params,
            "num_params_own": trunk.num_params_own,
            "base": trunk.base.label if trunk.base is not None else None,
            "base_fingerprint": trunk.base.fingerprint if trunk.base is not None else None,
            "python": PYTHON,
        }

    def _history(self, name: str, run_id: str) -> list[dict[str, Any]]:
        if name not in self._histories:
            table = self.ledger.read_json(run_id, HISTORY) or {"columns": [], "data": []}
            self._histories[name] = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        return self._histories[name]


def no_value(evaluation: Evaluation, result: Mapping[str, Any]) -> str | None:
    """Why an evaluation that succeeded has no value for one of its metrics; None if it has all."""
    if evaluation.kind.metrics.keys() <= result["metrics"].keys():
        return None
    return str(result["details"].get("outcome", "no value"))


def _history_row(num_points: int, row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"num_points": num_points}
    for each in row["parameters"]:
        found[each["name"]] = each["value"]
        found[f"{each['name']}_low"], found[f"{each['name']}_high"] = each["low"], each["high"]
    for key in ("r2", "converged", "identified"):
        found[key] = row[key]
    for held in row["held_out"]:
        found[f"predicted {held['name']}"] = held["predicted"]
    return found


def transfer_of(result: Mapping[str, Any]) -> Transfer | None:
    """What a training task took over of another model's weights; None for a fresh start, or from a trunk."""
    if not result.get("transferred_weights"):
        return None
    return Transfer(
        transferred=tuple(result["transferred_weights"]),
        new=tuple(result["new_weights"]),
        unused=tuple(result["dropped_weights"]),
    )


def seconds_of(run: RunRecord | None) -> float:
    """Seconds that a run's earlier submissions spent on it."""
    return (run.number("seconds") or 0.0) if run is not None else 0.0
