"""What people are told about mistakes in a grid file: place, value seen, what is allowed, what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridlaw.platform.spec.load import parse_grid
from gridlaw.platform.spec.problems import BadGrid

GOOD = {
    "name": "name: small",
    "architectures": "architectures: [full, swa-64]",
    "scales": "scales: [n1, n2]",
    "budgets": "budgets: [5N, 10N]",
    "seeds": "seeds: [0]",
    "data": "data: {context: 512}",
}


def told(changed: str) -> BadGrid:
    """The error for the good file with the lines of ``changed`` in place of its own (``-key`` takes one away)."""
    lines = dict(GOOD)
    extra = []
    for line in changed.splitlines():
        key = line.split(":")[0]
        if line.startswith("-"):
            del lines[line[1:]]
        elif key in lines:
            lines[key] = line
        else:
            extra.append(line)
    with pytest.raises(BadGrid) as error:
        parse_grid("\n".join([*lines.values(), *extra]) + "\n", source="small.yaml", base_folder=Path())
    assert error.value.exit_code == 2
    return error.value


def test_the_good_file_is_good() -> None:
    parse_grid("\n".join(GOOD.values()), source="small.yaml", base_folder=Path())


CASES = [
    # what the file says, where the mistake is, what the message says besides
    ("-name", "name", "required"),
    ("-data", "data", "data: {context: 512}"),
    ("-architectures", "architectures", "required"),
    ("-scales", "scales", "required"),
    ("-budgets", "budgets", "It is a list"),
    ("architecture: [full]", "architecture", "Did you mean architectures?"),
    ("run: {storage: journal:///x}", "run.storage", "nothing without tune:"),
    ("run: {max_hours: 1}", "run.max_hours", "nothing without tune:"),
    ("run: {trials: 3}", "run.trials", "tune.trials"),
    ("context: 512", "context", "data.context"),
    ("-data\ndata: {tokenizer: bytes}", "data.context", "required"),
    ("name: paper grid", "name", "write paper-grid"),
    ("name: ../up", "name", "letters"),
    ("name: a/b", "name", "a-b"),
    ("name: 2026", "name", "in quotes"),
    ("name: ", "name", "remove the key"),
    (f"name: {'x' * 300}", "name", "80 characters"),
    ("name: ends.", "name", "letters"),
    ("architectures: full", "architectures", "Write [full]"),
    ("architectures: []", "architectures", "at least one"),
    ("architectures: {full: 1}", "architectures", "a list"),
    ("architectures: [full, full]", "architectures[1]", "position 1"),
    ("architectures: [full, 3]", "architectures[1]", "in quotes"),
    ("architectures: [full, null]", "architectures[1]", "a name"),
    ("architectures: [seed0]", "architectures[0].name", "seed"),
    ("architectures: [5N]", "architectures[0].name", "budget"),
    ("architectures: [{pattern: [full]}]", "architectures[0].name", "required"),
    ("architectures: [{name: a, pattern: []}]", "architectures[0].pattern", "at least one"),
    ("architectures: [{name: a, pattern: [full], of: full}]", "architectures[0]", "either pattern or of"),
    ("architectures: [{name: a, patern: [full]}]", "architectures[0].patern", "Did you mean pattern?"),
    ("architectures: [{name: a, of: b}, {name: b, of: a}]", "architectures[0].of", "leads back"),
    ("architectures: [{name: a, of: full, window: .nan}]", "architectures[0].window", "finite"),
    ("architectures: [{name: a, of: full, training: {optimiser: {lr: 1}}}]",
     "architectures[0].training.optimiser", "Did you mean optimizer?"),
    ("architectures: [{name: a, of: full, training: {clip: -1}}]", "architectures[0].training.clip", "at least 0"),
    ("architectures: [n1]", "scales[0]", "another name"),
    ("scales: [n1, n1]", "scales[1]", "each value once"),
    ("scales: [{layers: 3}]", "scales[0].name", "required"),
    ("budgets: [5N, 5.0N]", "budgets[1]", "each value once"),
    ("budgets: [500M, 0.5B]", "budgets[1]", "each value once"),
    ("budgets: [0]", "budgets[0]", "with from:"),
    ("budgets: [0N]", "budgets[0]", "with from:"),
    ("budgets: [-5N]", "budgets[0]", "5N"),
    ("budgets: [-3]", "budgets[0]", "above 0"),
    ("budgets: [5]", "budgets[0]", "5N"),
    ("budgets: [5n]", "budgets[0]", "Write 5N"),
    ("budgets: [true]", "budgets[0]", "a multiple of N"),
    ("budgets: [.inf]", "budgets[0]", "a multiple of N"),
    ("budgets: 5N", "budgets", "Write [5N]"),
    ("seeds: [0, 0]", "seeds[1]", "each value once"),
    ("seeds: [-1]", "seeds[0]", "whole number"),
    ("seeds: [true]", "seeds[0]", "whole number"),
    ("seeds: [0.5]", "seeds[0]", "whole number"),
    ("seeds: 0", "seeds", "Write [0]"),
    ("also: [{scales: [n2]}]", "also[0]", "full/n2/5N/seed0"),
    ("also: [{}]", "also[0]", "at least one"),
    ("also: [{scales: [n3], seed: [1]}]", "also[0].seed", "Did you mean seeds?"),
    ("also: [{scales: [{name: n1, layers: 9}], budgets: [7N]}]", "also[0].scales[0]", "one meaning"),
    ("data: {context: 512.0}", "data.context", "a whole number"),
    ("data: {context: 0}", "data.context", "at least 1"),
    ('data: {context: "512"}', "data.context", "without quotes: 512"),
    ("data: {context: true}", "data.context", "a whole number"),
    ("data: {context: 512, mixture: []}", "data.mixture", "at least one"),
    ("data: {context: 512, mixture: [{source: x, weight: 0}]}", "data.mixture[0].weight", "above 0"),
    ("data: {context: 512, mixture: [{sources: x}]}", "data.mixture[0].sources", "Did you mean source?"),
    ("data: {context: 512, mixture: [{source: x, settings: 3}]}", "data.mixture[0].settings", "a mapping"),
    ('data: {context: 512, mixture: [{source: "hf:x", revision: 12345}]}', "data.mixture[0].revision", "quotes"),
    ("data: {context: 512, heldout: {source: x, fraction: 0.1}}", "data.heldout", "Remove one"),
    ("data: {context: 512, heldout: {fraction: 1}}", "data.heldout.fraction", "below 1"),
    ("data: {context: 512, max_epochs: .inf}", "data.max_epochs", "finite"),
    ("training: {schedule: {decay_fraction: 2}}", "training.schedule.decay_fraction", "at most 1"),
    ("training: {schedule: {decay_fraction: 0}}", "training.schedule.decay_fraction", "above 0"),
    ("training: {schedule: {name: wds}}", "training.schedule.name", "Did you mean wsd?"),
    ("training: {schedule: {warmup: 5}}", "training.schedule.warmup", "Did you mean warmup_steps?"),
    ("training: {schedule: wsd}", "training.schedule", "a mapping"),
    ("training: {optimizer: {lr: .nan}}", "training.optimizer.lr", "finite"),
    ("training: {optimizer: {lr: yes}}", "training.optimizer.lr", "a number"),
    ("training: {optimizer: {lr: true}}", "training.optimizer.lr", "a number"),
    ('training: {optimizer: {lr: "1e-3"}}', "training.optimizer.lr", "without quotes: 1e-3"),
    ("training: {batch_tokens: 4096.5}", "training.batch_tokens", "a whole number"),
    ("training: {precision: 16}", "training.precision", "'bf16'"),
    ("training: {clip: }", "training.clip", "remove the key"),
    ("training: [1]", "training", "a mapping"),
    ("lr: 0.1", "lr", "training.optimizer.lr"),
    ("evaluate: loss", "evaluate", "Write [loss]"),
    ("evaluate: [loss, loss]", "evaluate[1]", "each evaluation once"),
    ("evaluate: [{niah: {a: 1}, loss: {}}]", "evaluate[0]", "one name with its settings"),
    ("evaluate: [{niah: 3}]", "evaluate[0].settings", "mapping"),
    ("evaluate: [{niah: {depth: [1, .nan]}}]", "evaluate[0].settings.depth[1]", "finite"),
    ("laws: [loss]", "laws[0]", "a mapping"),
    ("laws: [{fit: {scales: [n1]}}]", "laws[0].target", "required"),
    ("laws: [{target: loss, form: nx}]", "laws[0].form[0]", "nd"),
    ("laws: [{target: loss, form: [nd, nd]}]", "laws[0].form[1]", "once"),
    ("laws: [{target: loss}, {target: loss}]", "laws[1]", "name:"),
    ("laws: [{target: loss, fit: {}}]", "laws[0].fit", "Remove the key"),
    ("laws: [{target: loss, fit: {scale: [n1]}}]", "laws[0].fit.scale", "Did you mean scales?"),
    ("laws: [{target: loss, fit: {scales: [n9]}}]", "laws[0].fit.scales[0]", "n1, n2"),
    ("laws: [{target: loss, fit: {budgets: [20N]}}]", "laws[0].fit.budgets[0]", "5N, 10N"),
    ("laws: [{target: loss, fit: {seeds: [3]}}]", "laws[0].fit.seeds[0]", "0"),
    ("laws: [{target: loss, verify: {points: [n2/20N]}}]", "laws[0].verify.points[0]", "part"),
    ("laws: [{target: loss, verify: {points: [n1/n2]}}]", "laws[0].verify.points[0]", "both scales"),
    ("laws: [{target: loss, exclude: [n3]}]", "laws[0].exclude[0]", "no part of any"),
    ("laws: [{target: loss, exclude: [full, swa-64]}]", "laws[0]", "fits no point"),
    ("laws: [{target: loss, verify: {scales: [n1, n2]}}]", "laws[0]", "fits no point"),
    ("run: {accelerator: tpu}", "run.accelerator", "'cpu'"),
    ("run: {devices: true}", "run.devices", "a number"),
    ("run: {devices: {n7: 1}}", "run.devices.n7", "n1"),
    ("run: {devices: {n1: 0}}", "run.devices.n1", "above 0"),
    ("run: {max_parallel: 0}", "run.max_parallel", "at least 1"),
    ("run: {keep: {every_tokens: 5N}}", "run.keep.every_tokens", "1B"),
    ("run: {evaluations: {niah: {memory: 1GiB}}}", "run.evaluations.niah", "loss"),
    ("run: {evaluations: {loss: {memory: lots}}}", "run.evaluations.loss.memory", "16GiB"),
    ("run: {hardware: {mfu: 40}}", "run.hardware.mfu", "at most 1"),
    ("run: {accelerater: cpu}", "run.accelerater", "Did you mean accelerator?"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "field", "said"), CASES, ids=[f"{field}:{said}" for _, field, said in CASES])
def test_one_mistake_one_message(changed: str, field: str, said: str) -> None:
    error = told(changed)
    assert [problem.field for problem in error.problems] == [field]
    text = str(error)
    assert text.startswith("small.yaml")
    assert field in text
    assert "; allowed: " in text
    assert said in text
    assert "\n" not in text


def test_several_mistakes_are_told_together_in_the_files_order() -> None:
    error = told("budgets: [-5N]\ntraining: {clip: -1, optimizer: {lrr: 1}}\nrun: {accelerator: tpu}")
    lines = str(error).splitlines()
    assert lines[0] == "small.yaml has 4 mistakes:"
    assert error.field == "budgets[0]"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["line 4", "line 7", "line 7", "line 8"]


def test_many_mistakes_are_cut() -> None:
    error = told(f"seeds: [{', '.join(['x'] * 50)}]")
    assert len(error.problems) == 50
    assert "and 38 more" in str(error)


def test_the_line_of_the_mistake_is_told() -> None:
    assert str(told("training: {clip: -1}")).startswith("small.yaml, line 7: training.clip is -1; allowed: ")


def test_long_values_are_cut() -> None:
    error = told("architectures: [{name: a, of: full, pattern: [" + ", ".join(["full"] * 200) + "]}]")
    assert len(str(error)) < 400


def test_values_are_shown_as_yaml_has_them() -> None:
    assert "is true;" in str(told("seeds: [true]"))
    assert 'is "512";' in str(told('data: {context: "512"}'))
    assert "is empty;" in str(told("name: "))
