"""A study as its driver sees it: asked, interrupted at any place, told; bound to what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from gridlaw.platform.errors import BadInput, Drift
from gridlaw.platform.tuning import study as study_module
from gridlaw.platform.tuning.abilities import SAMPLERS
from gridlaw.platform.tuning.samplers import SamplerChoice
from gridlaw.platform.tuning.space import Parameter, Space
from gridlaw.platform.tuning.study import Declaration, PruneRule, Study, TrialRecord, open_study

SPACE = Space.of(
    (
        Parameter(name="a", kind="float", low=0.0, high=1.0),
        Parameter(name="n", kind="int", low=1, high=8, log=True),
        Parameter(name="c", kind="choice", choices=("x", "y")),
    )
)
STEPPED = Space.of(
    (
        Parameter(name="a", kind="float", low=0.0, high=1.0, step=0.25),
        Parameter(name="n", kind="int", low=1, high=3),
        Parameter(name="c", kind="choice", choices=("x", "y"), when={"n": (1, 2)}),
    )
)
BASE = Declaration(
    experiment="small", space=SPACE, objectives={"loss": "min"}, sampler=SamplerChoice(name="tpe", seed=0),
    values={"point": {"lr": 1e-3}},
)  # fmt: skip


def opened(url: str, declaration: Declaration, **more: Any) -> Study:
    found = open_study(url, declaration, create=True, **more)
    assert found is not None
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/optuna.db"


def measured(trial: TrialRecord) -> dict[str, float]:
    a, n = trial.params["a"], trial.params["n"]
    assert isinstance(a, float) and isinstance(n, int)
    return {"loss": (a - 0.3) ** 2 + 0.01 * n + (trial.params.get("c") == "x"), "ratio": a}


def run(study: Study, until: int, reopen: Callable[[int], Study | None] = lambda number: None) -> list[dict[str, Any]]:
    """Ask and tell; ``reopen`` gives, after a trial was asked for, the study of a driver that comes after a death."""
    while len(study.trials()) < until:
        trial = study.ask()
        after = reopen(trial.number)
        if after is not None:
            study = after
            (taken,) = study.adopt()
            assert (taken.number, taken.params) == (trial.number, trial.params)
        study.tell(trial.number, "complete", metrics=measured(trial))
    return [dict(each.params) for each in study.trials()]


CASES = [
    (name, several) for name, able in SAMPLERS.items() for several in (False, True) if not (several and able.objectives)
]


@pytest.mark.parametrize(("sampler", "several"), CASES)
def test_an_interrupted_study_goes_on_as_if_it_had_not_been(sampler: str, several: bool, tmp_path: Path) -> None:
    declaration = replace(
        BASE,
        space=STEPPED if sampler == "grid" else SPACE,
        objectives={"loss": "min", "ratio": "max"} if several else {"loss": "min"},
        sampler=SamplerChoice(name=sampler, seed=3, startup_trials=4, population=4),
        first={"a": 0.5, "n": 2, "c": "x"},
    )
    plain = run(opened(f"sqlite:///{tmp_path}/plain.db", declaration), 13)
    cut = f"sqlite:///{tmp_path}/cut.db"
    again = run(
        opened(cut, declaration), 13, lambda number: opened(cut, declaration) if number in (0, 3, 9) else None
    )  # fmt: skip
    assert plain == again
    assert plain[0] == declaration.first
    assert len({repr(each) for each in plain}) >= 6  # none repeats the others
    if sampler == "grid":
        assert len({repr(each) for each in plain}) == 13


def test_a_trial_cut_off_while_it_was_drawn_gets_the_parameters_it_would_have_had(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declaration = replace(
        BASE, objectives={"loss": "min", "ratio": "max"}, sampler=SamplerChoice(name="tpe", seed=1, startup_trials=2)
    )
    whole = run(opened(f"sqlite:///{tmp_path}/whole.db", declaration), 5)
    study = opened(url, declaration)
    run(study, 4)
    drawn = study_module._suggest

    def die_at_the_second(trial: optuna.Trial, parameter: Parameter) -> Any:
        if parameter.name == "n":
            raise KeyboardInterrupt
        return drawn(trial, parameter)

    monkeypatch.setattr(study_module, "_suggest", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        study.ask()
    monkeypatch.setattr(study_module, "_suggest", drawn)
    (taken,) = opened(url, declaration).adopt()
    assert dict(taken.params) == whole[4]


def test_seeds_differ(tmp_path: Path) -> None:
    found = [
        run(
            opened(f"sqlite:///{tmp_path}/{seed}.db", replace(BASE, sampler=SamplerChoice(name="random", seed=seed))), 4
        )
        for seed in (0, 1)
    ]
    assert found[0] != found[1]


def test_nothing_is_made_by_looking(url: str, tmp_path: Path) -> None:
    assert open_study(url, BASE, create=False) is None
    assert list(tmp_path.iterdir()) == []
    opened(url, BASE)
    assert open_study(url, replace(BASE, experiment="other"), create=False) is None


def test_a_changed_space_is_drift_field_by_field(url: str) -> None:
    study = opened(url, BASE)
    wider = replace(BASE, space=Space.of((replace(SPACE["a"], high=2.0), SPACE["n"], SPACE["c"])))
    for create in (False, True):
        with pytest.raises(Drift, match=r"high 1 → 2") as told:
            open_study(url, wider, create=create)
        assert study.name in str(told.value)
    with pytest.raises(Drift, match=r"lr 1e-3 → 2e-3"):
        open_study(url, replace(BASE, values={"point": {"lr": 2e-3}}), create=False)
    assert [each.study_name for each in optuna.get_all_study_summaries(url)] == [study.name]
    newer = opened(url, wider, rerun=True)
    assert newer.name != study.name
    assert open_study(url, wider, create=False) is not None


def test_a_foreign_study_of_this_name_is_refused(url: str) -> None:
    made = optuna.create_study(study_name=BASE.name, storage=url)
    made.set_user_attr("experiment", "somebody's")
    with pytest.raises(BadInput, match="another name:"):
        open_study(url, BASE, create=True)


def test_more_trials_are_no_drift_and_a_grid_has_only_its_own(url: str) -> None:
    assert BASE.most_trials is None
    grid = replace(BASE, space=STEPPED, sampler=SamplerChoice(name="grid", seed=0))
    assert grid.most_trials == 5 * (2 * 2 + 1)
    study = opened(url, grid)
    assert len({repr(each) for each in run(study, 25)}) == 25


def test_a_trial_that_was_ended_elsewhere_stays_as_it_is(url: str) -> None:
    """optuna #5470: telling a trial that has failed meanwhile is no crash."""
    study = opened(url, BASE)
    trial = study.ask()
    optuna.load_study(study_name=study.name, storage=url).tell(trial.number, state=optuna.trial.TrialState.FAIL)
    assert study.tell(trial.number, "complete", metrics={"loss": 1.0}).state == "fail"
    assert study.ask().number == 1


def test_a_lost_trial_is_asked_again_with_its_parameters_once(url: str) -> None:
    """optuna #4234 and #2993: nobody fails a live trial, and a trial that was lost costs no point of a grid."""
    study = opened(url, BASE)
    lost = study.ask()
    study.tell(lost.number, "fail", attributes={"ask_again": True, "reason": "worker lost"})
    (told,) = study.trials()
    assert (told.ask_again, told.reason) == (True, "worker lost")
    study.again(told)
    study.again(told)
    assert dict(study.ask().params) == dict(lost.params)
    assert dict(study.ask().params) != dict(lost.params)


def test_constraints_are_kept_and_feasible_trials_told(url: str) -> None:
    study = opened(url, replace(BASE, constraints={"ratio": ("<=", 0.3), "loss": (">=", 0.1)}))
    for ratio, loss in ((0.2, 0.5), (0.4, 0.5), (0.2, 0.05)):
        study.tell(study.ask().number, "complete", metrics={"ratio": ratio, "loss": loss})
    assert [each.feasible for each in study.trials()] == [True, False, False]
    assert study.trials()[1].violations == pytest.approx({"ratio": 0.1, "loss": -0.4})


@pytest.mark.parametrize("name", ["median", "hyperband"])
def test_pruners_end_what_is_behind_also_after_a_restart(name: Any, url: str) -> None:
    rule = PruneRule(name=name, every_steps=1, total_steps=9, warmup_steps=2, startup_trials=2)
    declaration = replace(BASE, prune=rule)

    def watch(study: Study, number: int, level: float) -> int | None:
        for step in range(1, 9):
            if study.report(number, step, level):
                return step
        return None

    study = opened(url, declaration)
    for _ in range(12):
        number = study.ask().number
        ended = watch(study, number, 1.0 + 0.01 * number)
        study.tell(number, "complete", metrics={"loss": 1.0}) if ended is None else study.tell(number, "pruned")
    bad = study.ask().number
    step = watch(study, bad, 5.0)
    assert step is not None and step <= 3
    study = opened(url, declaration)
    study.adopt()
    if name == "median":  # hyperband judges a trial once in a rung, and has judged this one
        assert watch(study, bad, 5.0) == 1, "its steps so far are known, so the first report ends it"
    told = study.tell(bad, "pruned", attributes={"reason": "behind"})
    assert (told.state, told.reason, told.values) == ("pruned", "behind", {})


def test_pruned_trials_do_not_disturb_several_objectives(url: str) -> None:
    """optuna #3450 and #5260."""
    study = opened(
        url,
        replace(
            BASE,
            objectives={"loss": "min", "ratio": "min"},
            sampler=SamplerChoice(name="tpe", seed=0, startup_trials=3),
        ),
    )
    for number in range(9):
        trial = study.ask()
        if number % 3 == 2:
            study.tell(trial.number, "pruned", attributes={"reports": {5: [1.0, 2.0]}})
        else:
            study.tell(trial.number, "complete", metrics=measured(trial))
    assert [each.state for each in study.trials()].count("pruned") == 3
    assert study.trials()[2].reports == {5: [1.0, 2.0]}


def test_importances_find_what_matters(url: str) -> None:
    space = Space.of((SPACE["a"], Parameter(name="b", kind="float", low=0.0, high=1.0)))
    study = opened(url, replace(BASE, space=space, sampler=SamplerChoice(name="random", seed=0)))
    assert study.importances() == {}
    for _ in range(30):
        trial = study.ask()
        study.tell(trial.number, "complete", metrics={"loss": float(trial.params["a"]) ** 2})
    shares = study.importances()["loss"]
    assert shares["a"] > 0.8
    assert sum(shares.values()) == pytest.approx(1.0)


def test_values_keep_their_names_in_a_file_with_objectives_in_another_order(url: str) -> None:
    """The order is no drift: it changes nothing of what is sought."""
    given = replace(BASE, objectives={"loss": "min", "speed": "max"})
    study = opened(url, given)
    study.tell(study.ask().number, "complete", metrics={"loss": 1.0, "speed": 50.0})
    swapped = replace(BASE, objectives={"speed": "max", "loss": "min"})
    assert swapped.fingerprint == given.fingerprint
    again = opened(url, swapped)
    again.tell(again.ask().number, "complete", metrics={"loss": 2.0, "speed": 60.0})
    for each in (again, opened(url, given)):
        assert [trial.values for trial in each.trials()] == [{"loss": 1.0, "speed": 50.0}, {"loss": 2.0, "speed": 60.0}]


def test_importances_are_of_what_makes_trials_good_in_either_direction(
    url: str, recwarn: pytest.WarningsRecorder
) -> None:
    """High values hang on a alone, low ones on b alone."""
    space = Space.of((SPACE["a"], Parameter(name="b", kind="float", low=0.0, high=1.0)))
    objectives = {"high": "max", "low": "min"}
    study = opened(url, replace(BASE, space=space, objectives=objectives, sampler=SamplerChoice(name="qmc", seed=0)))
    for _ in range(32):
        trial = study.ask()
        a, b = float(trial.params["a"]), float(trial.params["b"])
        value = 10 + a if a > 0.8 else -b
        study.tell(trial.number, "complete", metrics={"high": value, "low": value})
    shares = study.importances()
    assert shares["high"]["a"] > 0.8
    assert shares["low"]["b"] > 0.8
    assert not [str(each.message) for each in recwarn if "PedAnova" in str(each.message)]


def test_a_trial_that_was_ended_elsewhere_is_not_reported_to(url: str) -> None:
    """Somebody sets it to FAIL in the dashboard while it trains: the study goes on."""
    study = opened(url, replace(BASE, prune=PruneRule(name="median", every_steps=1, total_steps=9)))
    number = study.ask().number
    assert not study.report(number, 1, 2.0)
    optuna.load_study(study_name=study.name, storage=url).tell(number, state=optuna.trial.TrialState.FAIL)
    assert not study.report(number, 2, 2.0)
    assert study.trials()[0].reports == {1: 2.0}
    assert study.tell(number, "complete", metrics={"loss": 1.0}).state == "fail"


def test_a_trial_whose_start_failed_is_taken_up_once_more(url: str) -> None:
    study = opened(url, BASE)
    first, second = study.ask(), study.ask()
    (again,) = study.adopt(known=[first.number])
    assert (again.number, again.params) == (second.number, second.params)
    study.tell(again.number, "complete", metrics=measured(again))
    assert study.adopt(known=[first.number]) == []


def test_a_study_that_was_set_aside_and_asked_for_again_is_drift_for_the_next_change(url: str) -> None:
    other, third = (replace(BASE, values={"point": {"lr": lr}}) for lr in (2e-3, 3e-3))
    opened(url, BASE)
    opened(url, other, rerun=True)
    opened(url, BASE, rerun=True)
    with pytest.raises(Drift, match=r"lr 1e-3 → 3e-3"):
        open_study(url, third, create=False)
