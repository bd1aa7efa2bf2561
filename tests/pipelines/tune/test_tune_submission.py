"""What a study's submission refuses, keeps to itself, and does when its ledger is away; without Ray."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gridlaw.pipelines.grid.driver import Driver
from gridlaw.pipelines.grid.source import Capacity
from gridlaw.pipelines.grid.submission import Watcher, Worked
from gridlaw.pipelines.tune.metrics import training_metrics
from gridlaw.pipelines.tune.records import StudyRecords, open_study_run, told_by
from gridlaw.pipelines.tune.submission import _end, _records, run_study
from gridlaw.pipelines.tune.trials import Limits, Trials
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.ledger.records import by_name
from gridlaw.platform.store.base import STOP_FILE, attempt_name
from gridlaw.platform.store.lease import Lease
from gridlaw.platform.tuning.study import ASK_AGAIN, Study


def test_the_study_s_run_tells_no_password(house: Any) -> None:
    """Whoever may open the ledger sees its artifacts; the storage's password is nothing for them."""
    plan = house.plan(run={"storage": "postgresql+psycopg://me:topsecret@127.0.0.1:1/studies"})
    ledger = house.ledger(plan)
    open_study_run(ledger, plan, None)
    kept = [path.read_text(errors="replace") for path in Path(house.folder).rglob("*.json")]
    assert any("studies" in text for text in kept), "the file as resolved is an artifact"
    assert not any("topsecret" in text for text in kept)


def told(house: Any) -> list[str]:
    """What a submission says; nothing is to be run in these tests."""
    return [str(path.relative_to(house.folder)) for path in sorted(Path(house.folder).rglob("*")) if path.is_file()]


def silent(*_: object) -> None:
    return


WATCHER = Watcher(tick=silent, say=silent)


def test_the_point_that_trials_start_from_has_to_have_its_model(house: Any) -> None:
    """Else every trial would fail for the same reason, and the study be used up."""
    plan = house.plan()
    house.finish_base(plan, house.ledger(plan))
    house.store(plan).write_bytes("attempts/other/progress.json", b"{}")
    before = told(house)
    with pytest.raises(BadInput, match=r"model of pretrain/full/n1/5N/seed0.*missing in the store"):
        run_study(plan, watcher=WATCHER)
    assert told(house) == before


def test_a_store_that_is_gone_is_not_begun_anew(house: Any) -> None:
    plan = house.plan()
    house.finish_base(plan, house.ledger(plan))
    (house.folder / "runs" / ".gridlaw-store").unlink()
    with pytest.raises(Surroundings, match="another name"):
        run_study(plan, watcher=WATCHER)


def test_a_study_with_a_trial_that_was_asked_again_is_done_all_the_same(house: Any) -> None:
    plan = house.plan()
    house.finish_base(plan, house.ledger(plan))
    study = house.study(plan)
    study.tell(study.ask().number, "fail", attributes={ASK_AGAIN: True})
    study.again(study.trials()[0])
    for loss in (2.0, 3.0):
        study.tell(study.ask().number, "complete", metrics={"loss": loss})
    ended = run_study(plan, watcher=WATCHER)
    assert ended.already_done and ended.exit_code == 0
    assert len(ended.results.trials) == 3


def test_a_study_with_a_trial_less_than_asked_for_is_not_done(house: Any) -> None:
    plan = house.plan()
    house.finish_base(plan, house.ledger(plan))
    study = house.study(plan)
    study.tell(study.ask().number, "fail", attributes={ASK_AGAIN: True})
    study.tell(study.ask().number, "complete", metrics={"loss": 2.0})
    house.store(plan).write_bytes("attempts/other/progress.json", b"{}")
    with pytest.raises(BadInput, match="model of pretrain"):  # it would have to train
        run_study(plan, watcher=WATCHER)


def test_a_trial_that_was_asked_to_leave_is_not_asked_again_after_a_restart(house: Any) -> None:
    plan = house.plan()
    ledger, store, study = house.ledger(plan), house.store(plan), house.study(plan)
    record = study.ask()
    (point,) = plan.trial(record.number, record.params).points
    records = _records(plan, ledger, store, study, rerun=False)
    records.trials[record.number] = record
    run_id = records.open_point(plan.trial(record.number, record.params), point)
    stop_file = f"{attempt_name(run_id)}/{STOP_FILE}"
    store.write_bytes(stop_file, b"stop\n")
    runs = by_name(ledger.find_runs("trial"))
    trials = Trials(
        plan, study, records, store, Limits(parallel=1), runs=runs, evaluations={}, examples={}, say=silent
    )  # fmt: skip
    added: list[str] = []
    trials._start(cast(Driver, SimpleNamespace(add=lambda trunk, state: added.append(trunk.name))), record)
    records.pump.close()
    assert added and not store.exists(stop_file)


def at_work(house: Any) -> tuple[Any, StudyRecords, Study, Trials, Driver]:
    """(plan, records, study, trials, driver) of a study under way; its driver starts no task."""
    plan = house.plan()
    ledger, store, study = house.ledger(plan), house.store(plan), house.study(plan)
    house.finish_base(plan, ledger)
    records = _records(plan, ledger, store, study, rerun=False)
    capacity = Capacity(num_devices=1.0, unit="CPU", max_parallel=None)
    driver = Driver(
        records=records, store=store, tasks=cast(Any, None), executor=cast(Any, None),
        capacity=capacity, should_stop=str, lost=bool, tick=silent, say=silent,
    )  # fmt: skip
    trials = Trials(plan, study, records, store, Limits(parallel=1), runs={}, evaluations={}, examples={}, say=silent)
    return plan, records, study, trials, driver


def test_evaluations_of_a_trial_have_their_runs_below_the_trial_s(house: Any) -> None:
    """Trials are no points of the file's plan; the driver adds them while it works."""
    plan, records, study, trials, driver = at_work(house)
    for number in range(2):
        record = study.ask()
        trials._start(driver, record)
        trunk = plan.trial(number, record.params)
        (point,) = trunk.points
        (evaluation,) = plan.base.evaluations
        trial = records.open_point(trunk, point)
        found = records.ledger.read_run(records.open_evaluation(trunk, point, evaluation))
        assert found is not None and found.parent_id == trial
        assert found.fingerprint == replace(plan.base, trunks=(trunk,)).evaluation_fingerprint(point, evaluation)
    records.pump.close()


def test_what_training_has_logged_at_its_last_step_is_not_logged_there_again(house: Any) -> None:
    """Tokens per second of the whole training are another value than the last step's, under the same name."""
    _, records, study, trials, driver = at_work(house)
    trials._counted = set()
    record = study.ask()
    trials._start(driver, record)
    trial = trials._active[record.number]
    run_id = records.open_point(trial.trunk, trial.point)
    steps = trial.point.total_steps
    records.ledger.log_results(run_id, metrics={"train_loss": 2.5, "tokens_per_second": 90.0}, step=steps)
    trial.result = {"executed_steps": steps, "seconds": 3.0, "tokens_per_second": 70.0, "final_loss": 2.5}
    trial.metrics |= {"loss": 2.0} | training_metrics(trial.result)
    trials._end(driver, trial)
    client = records.ledger.tracking.client
    logged = {name: [each.value for each in client.get_metric_history(run_id, name)] for name in trial.metrics}
    assert logged == {"train_loss": [2.5], "tokens_per_second": [90.0], "loss": [2.0], "train_seconds": [3.0]}
    assert study.trials()[0].values == {"loss": 2.0}
    told = told_by(records.ledger.read_run(run_id))
    assert told is not None and told[1]["tokens_per_second"] == 70.0, "what a study that seeks it is told"
    records.pump.close()


class Away:
    """A ledger whose server does not answer."""

    def stop_run(self, run_id: str, reason: str) -> None:
        raise Surroundings("MLflow does not answer")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (0, 3)])
def test_stopping_while_the_ledger_is_away_keeps_its_exit_code(house: Any, signum: int, code: int) -> None:
    plan = house.plan()
    study = house.study(plan)
    study.tell(study.ask().number, "complete", metrics={"loss": 2.0})
    worked = SimpleNamespace(
        ledger=Away(), records=SimpleNamespace(parent_id="x"), driver=SimpleNamespace(problems=[]), reason="stopped"
    )
    lease = SimpleNamespace(lost=threading.Event())
    ended = _end(
        plan, house.store(plan), cast(Lease, lease), study, cast(Worked, worked), signum, cast(Trials, None), 1
    )
    assert ended.exit_code == code
    assert ended.results.count("complete") == 1
