"""The grid file's ``training:`` becomes resolved settings, or one clear message."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.scale import SCALES
from gridlaw.modules.training.job import FitJob
from gridlaw.modules.training.settings import OptimizerSettings, TrainingSettings, learning_rate


def test_defaults_resolve_by_scale_and_survive_json():
    settings = TrainingSettings.from_dict({}, scale=SCALES["n2"])
    assert settings.optimizer.lr == learning_rate("muon", 32) == 0.036
    assert settings.optimizer.rest_lr == 0.072
    assert TrainingSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_the_rate_falls_with_width():
    rates = [learning_rate("adamw", SCALES[name].d_model) for name in ("n1", "n3", "n4", "S1", "S5")]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)


def test_the_rule_gives_adamw_a_higher_rate_for_what_is_no_hidden_matrix():
    optimizer = TrainingSettings.from_dict({"optimizer": {"name": "adamw"}}, scale=SCALES["n1"]).optimizer
    assert (optimizer.lr, optimizer.rest_lr) == (0.016, 0.08)


def test_a_given_rate_overrides_the_rule_for_all_parameters():
    given = {"optimizer": {"name": "adamw", "lr": 3e-4}}
    assert TrainingSettings.from_dict(given, scale=SCALES["n1"]).optimizer == OptimizerSettings(name="adamw", lr=3e-4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimzer": {}}, ["training.optimzer", "'optimizer'"]),
        ({"optimizer": {"name": "moun"}}, ["training.optimizer.name is 'moun'", "'muon'"]),
        ({"optimizer": {"lr": -1}}, ["training.optimizer.lr is -1", "above 0"]),
        ({"optimizer": {"lr": "1e-3"}}, ["training.optimizer.lr is '1e-3'", "Write it as 0.001"]),
        ({"optimizer": "muon"}, ["training.optimizer is 'muon'", "a mapping with name"]),
        ({"schedule": {"name": "wds"}}, ["training.schedule.name is 'wds'", "'wsd'"]),
        ({"schedule": {"decay_shape": "sqrt"}}, ["decay_shape is 'sqrt'", "1-sqrt"]),
        ({"schedule": {"decay_fraction": 1.5}}, ["decay_fraction is 1.5", "at most 1"]),
        ({"schedule": {"warmup": 5}}, ["training.schedule.warmup", "'warmup_steps'"]),
        ({"batch_tokens": 0}, ["training.batch_tokens is 0", "at least 1"]),
        ({"batch_tokens": True}, ["training.batch_tokens is True"]),
        ({"precision": "fp16"}, ["training.precision is 'fp16'", "bf16"]),
        ({"clip": float("nan")}, ["training.clip is nan"]),
    ],
)
def test_a_mistake_is_one_message_with_field_value_and_what_is_allowed(given: dict[str, Any], words: list[str]):
    with pytest.raises(BadSetting) as caught:
        TrainingSettings.from_dict(given, scale=SCALES["n1"])
    for word in words:
        assert word in str(caught.value)


def test_a_token_batch_that_is_no_multiple_of_the_context_is_refused_with_the_nearest_ones():
    settings = TrainingSettings.from_dict({"batch_tokens": 5000}, scale=SCALES["n1"])
    with pytest.raises(BadSetting, match=r"is 5000; .* 256 tokens. Take 5120 or 4864"):
        settings.check_context(256)
    assert TrainingSettings.from_dict({"batch_tokens": 4096}, scale=SCALES["n1"]).sequences_per_step(256) == 16


def test_a_job_survives_json_and_refuses_half_a_decay():
    job = FitJob(model={}, training={}, seed=0, data="d", context=8, until_step=5, folder="f", keep_steps=(3,))
    assert FitJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    with pytest.raises(BadSetting, match="together with decay_steps"):
        FitJob.from_dict({**job.to_dict(), "decay_steps": 2})
    with pytest.raises(BadSetting, match="until_step is 5; allowed: at most the end of the decay, 4"):
        FitJob.from_dict({**job.to_dict(), "decay_start_step": 2, "decay_steps": 2})


def test_settings_schedule_and_jobs_import_no_torch():
    code = (
        "import sys, gridlaw.modules.training.settings, gridlaw.modules.training.schedule,"
        " gridlaw.modules.training.job, gridlaw.modules.training.errors, gridlaw.modules.training.checkpoint_files;"
        "print([m for m in ('torch', 'lightning', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
