"""``tune:`` in a file: what it means, and one message for each mistake of form."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.load import parse_grid
from gridlaw.platform.spec.problems import BadGrid
from gridlaw.platform.tuning.space import Parameter, Space

ABOVE = """name: small
architectures: [swiattn-64]
scales: [n1]
budgets: [5N]
data: {context: 512}
"""
GOOD = """tune:
  space: {gamma_base: {log: [1e-4, 1e-1]}, alpha: {log: [1, 1000]}, activation: [relu, softplus]}
  objectives: {loss: min, full_ratio: min}
  constraints: {full_ratio: "<= 0.3"}
  sampler: {name: tpe, seed: 0}
  trials: 24
  first: {gamma_base: 1e-3, alpha: 100}
run: {storage: "postgresql+psycopg://me@host/db", parallel: 4, max_hours: 2, max_flops: 1e15}
"""


def parsed(text: str) -> GridSpec:
    return parse_grid(text, source="small.yaml", base_folder=Path())


def with_space(space: str, more: str = "") -> str:
    return f"{ABOVE}tune:\n  space: {space}\n  objectives: {{loss: min}}\n  trials: 3\n{more}"


def test_the_designs_example() -> None:
    tune = parsed(ABOVE + GOOD).tune
    assert tune is not None
    assert tune.parameters() == [
        Parameter(name="gamma_base", kind="float", low=1e-4, high=0.1, log=True),
        Parameter(name="alpha", kind="float", low=1.0, high=1000.0, log=True),
        Parameter(name="activation", kind="choice", choices=("relu", "softplus")),
    ]
    assert (tune.sampler.name, tune.sampler.seed, tune.trials) == ("tpe", 0, 24)
    assert parsed(ABOVE + GOOD).given()["tune"]["first"] == {"gamma_base": 1e-3, "alpha": 100}


def test_kinds_of_parameters() -> None:
    space = "{a: {int: [8, 64], log: true}, b: {float: [0, 1], step: 0.25}, c: {int: [0, 6], step: 2, when: {d: true}}}"
    tune = parsed(with_space(space[:-1] + ", d: [true, false]}")).tune
    assert tune is not None
    a, b, c, d = tune.parameters()
    assert (a.kind, a.low, a.high, a.log) == ("int", 8, 64, True)
    assert b.grid() == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert (c.grid(), c.when) == ((0, 2, 4, 6), {"d": (True,)})
    assert Space.of((a, b, c, d)).names == ("a", "b", "d", "c")


SPACES = [
    ("{}", "tune.space", "at least one"),
    ("{a: {float: [1, 0.1]}}", "tune.space.a.float", "Write [0.1, 1]"),
    ("{a: {float: [1, 1]}}", "tune.space.a.float", "above tune:"),
    ("{a: {float: [1]}}", "tune.space.a.float", "two numbers"),
    ("{a: {float: [1, x]}}", "tune.space.a.float[1]", "a number"),
    ("{a: {log: [0, 1]}}", "tune.space.a.log[0]", "no logarithm"),
    ("{a: {log: [-1, 1]}}", "tune.space.a.log[0]", "above 0"),
    ("{a: {float: [0, 1], log: true}}", "tune.space.a.float[0]", "above 0"),
    ("{a: {int: [1, 2.5]}}", "tune.space.a.int[1]", "a whole number"),
    ("{a: {int: [0, 8], log: true}}", "tune.space.a.int[0]", "at least 1"),
    ("{a: {float: [1, 8], step: 9}}", "tune.space.a.step", "width"),
    ("{a: {log: [1, 8], step: 1}}", "tune.space.a.step", "no step"),
    ("{a: {int: [1, 8], log: [1, 2]}}", "tune.space.a", "one of float, log, int, choices"),
    ("{a: {log: true}}", "tune.space.a", "one of float, log, int, choices"),
    ("{a: {flaot: [1, 8]}}", "tune.space.a.flaot", "Did you mean float?"),
    ("{a: 3}", "tune.space.a", "above tune:"),
    ("{a: [1]}", "tune.space.a.choices", "at least two"),
    ("{a: [1, 1]}", "tune.space.a.choices[1]", "once"),
    ("{a: [[1], 2]}", "tune.space.a.choices[0]", "text, a number"),
    ("{'a b': [1, 2]}", "tune.space.a b", "gamma_base"),
    ("{a: [1, 2], b: {int: [1, 8], when: {c: 1}}}", "tune.space.b.when.c", "no other setting"),
    ("{a: [1, 2], b: {int: [1, 8], when: {a: 3}}}", "tune.space.b.when.a", "one of 1, 2"),
    ("{a: {int: [1, 2], when: {b: 1}}, b: {int: [1, 2], when: {a: 1}}}", "tune.space", "circle"),
]


@pytest.mark.parametrize(("space", "field", "said"), SPACES, ids=[f"{field}:{said}" for _, field, said in SPACES])
def test_spaces_that_are_none(space: str, field: str, said: str) -> None:
    check(with_space(space), field, said)


def check(text: str, field: str, said: str) -> None:
    with pytest.raises(BadGrid) as told:
        parsed(text)
    assert [problem.field for problem in told.value.problems] == [field]
    assert said in str(told.value)
    assert "\n" not in str(told.value)


BOTH = "{a: {float: [0, 1]}, b: {int: [1, 4]}, c: [x, y]}"
MORE = [
    ("  objectives: {loss: least}", "tune.objectives.loss", "'max'"),
    ("  constraints: {ratio: 0.3}", "tune.constraints.ratio", '"<= 0.3"'),
    ('  constraints: {ratio: "<< 0.3"}', "tune.constraints.ratio", '"<= 0.3"'),
    ("  sampler: tpw", "tune.sampler.name", "Did you mean tpe?"),
    ("  sampler: {name: tpe, population: 5}", "tune.sampler.population", "nsga2"),
    ("  sampler: grid", "tune.space.a", "step"),
    ("  sampler: cmaes\n  constraints: {loss: '<= 3'}", "tune.constraints", "tpe"),
    ("  sampler: cmaes\n  objectives: {loss: min, ratio: min}", "tune.objectives", "at most 1"),
    ("  first: {d: 1}", "tune.first.d", "a, b, c"),
    ("  first: {a: 7}", "tune.first.a", "from 0 to 1"),
    ("  first: {c: z}", "tune.first.c", "one of x, y"),
    ("  prune: {name: front}", "tune.prune.name", "hyperband"),
    ("  prune: {name: median}\n  objectives: {loss: min, ratio: min}", "tune.prune.name", "front"),
    ("  prune: {name: median, margin: 1}", "tune.prune.margin", "no margin"),
    ("  trials: 0", "tune.trials", "at least 1"),
    ("laws: [{target: loss, form: d}]\n", "laws", "one point"),
    ("budgets: [5N, 10N]\n", "budgets", "one of budgets"),
    ("seeds: [0, 1]\n", "seeds", "one of seeds"),
]


@pytest.mark.parametrize(("changed", "field", "said"), MORE, ids=[f"{field}:{said}" for _, field, said in MORE])
def test_what_does_not_go_together(changed: str, field: str, said: str) -> None:
    text = with_space(BOTH)
    for line in changed.splitlines():
        key = line.partition(":")[0]
        kept = [each for each in text.splitlines() if each.partition(":")[0] != key]
        at = kept.index("tune:") + line.startswith(" ")
        text = "\n".join([*kept[:at], line, *kept[at:]]) + "\n"
    check(text, field, said)


@pytest.mark.parametrize("sampler", ["qmc", "cmaes"])
def test_samplers_that_know_no_conditions(sampler: str) -> None:
    space = "{a: {float: [0, 1]}, b: {float: [0, 1], when: {c: x}}, c: [x, y]}"
    check(with_space(space, f"  sampler: {sampler}\n"), "tune.space", "no when:")


def test_a_stage_file_varies_its_last_stage() -> None:
    stages = """name: small
stages:
  - {name: pretrain, architectures: [full], scales: [n1, n2], budgets: [5N, 10N]}
  - {name: cpt, from: pretrain/full/n1/5N, architectures: [swiattn-64], budgets: [2N]}
data: {context: 512}
"""
    assert parsed(stages + GOOD).points()[-1].name == "cpt/swiattn-64/n1/2N/seed0"
    with pytest.raises(BadGrid, match="the last stage, cpt"):
        parsed(stages.replace("[2N]", "[2N, 4N]") + GOOD)
