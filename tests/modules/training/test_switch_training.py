"""What a Switch model tells while it trains, against the same batch taken apart by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from gridlaw.modules.catalog import model_config, resolve_architecture, resolve_scale
from gridlaw.modules.data.sampling import window_index
from gridlaw.modules.training import build
from gridlaw.modules.training.cross_entropy import cross_entropy
from gridlaw.modules.training.fit import fit
from gridlaw.modules.training.gamma_controller import GammaController
from gridlaw.modules.training.json_logger import JsonLinesLogger
from gridlaw.modules.training.settings import GammaControllerSettings

ARCHITECTURE = {"name": "mixed", "pattern": ["switch-8", "full"]}


@pytest.mark.parametrize("micro_batch", [4, 1])
def test_regulariser_and_ratios_by_layer_are_logged_for_each_step(make_job, prepared, read, micro_batch: int):
    job = make_job("job", architecture=ARCHITECTURE, until_step=3, micro_batch=micro_batch)
    fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
    model, _ = build.model(job, begins=True)
    windows = np.array([window_index(3, prepared.fingerprint, prepared.num_train_windows, g) for g in range(4)])
    batch = torch.from_numpy(prepared.train_windows(windows).astype(np.int64))
    ctx = model.context_for(batch[:, :-1])
    with torch.no_grad():
        loss, nll = cross_entropy(model.hidden(batch[:, :-1], ctx=ctx), model.head.weight, batch[:, 1:])
        regulariser = model.blocks()[0].mixer.auxiliary_loss(ctx.outputs[0], nll).mean()
    gate = ctx.outputs[0]["gate"].mean().item()
    assert 0 < gate < 1
    rows = read.rows(job)
    assert [row["step"] for row in rows] == [1, 2, 3]
    first = rows[0]
    assert first["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert first["auxiliary_loss"] == pytest.approx(regulariser.item(), rel=1e-5)
    assert first["train_full_ratio/0"] == pytest.approx(gate, abs=1e-6)
    assert first["train_full_ratio/1"] == 1.0
    assert first["train_full_ratio"] == pytest.approx((gate + 1) / 2, abs=1e-6)


def test_models_that_choose_nothing_tell_no_ratio(make_job, read):
    job = make_job("job", architecture="swa-8", until_step=2)
    fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
    assert len(read.rows(job)) == 2
    assert not any("ratio" in name or "auxiliary" in name for row in read.rows(job) for name in row)


def test_rows_that_were_not_asked_for_stay_out(make_job, read):
    job = make_job("job", architecture="swiattn-8", until_step=5, log_every_steps=2)
    fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
    assert [row["step"] for row in read.rows(job)] == [2, 4, 5]


def controlled(make_job, name: str, *, target: float, **fields):
    training = {"gamma_controller": {"target": target, "gain": 0.5}}
    return make_job(name, architecture="swiattn-8", training=training, **fields)


def test_the_controller_follows_its_rule_and_pushes_towards_the_target(make_job, read):
    ends = {}
    for target in (0.0, 1.0):
        job = controlled(make_job, f"to{target}", target=target, until_step=12)
        fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
        smoothed = log_factor = None
        for row in read.rows(job):
            ratio = row["train_full_ratio"]
            smoothed = ratio if smoothed is None else 0.9 * smoothed + 0.1 * ratio
            log_factor = (log_factor or 0.0) + 0.5 * (smoothed - target)
            assert math.log(row["gamma_factor"]) == pytest.approx(log_factor, rel=1e-9)
        rows = read.rows(job)
        ends[target] = [row["auxiliary_loss"] / row["gamma_factor"] for row in rows], rows[-1]["gamma_factor"]
    assert ends[0.0][1] > 3
    assert ends[1.0][1] < 1 / 3
    # The regulariser of step s is weighed with the factor that step s − 1 left behind.
    job = controlled(make_job, "plain", target=0.0, until_step=2)
    plain = make_job("fixed", architecture="swiattn-8", until_step=2)
    for each in (job, plain):
        fit(each, logger=JsonLinesLogger(each.folder + ".jsonl"))
    steered, fixed = read.rows(job), read.rows(plain)
    assert steered[0]["auxiliary_loss"] == fixed[0]["auxiliary_loss"]
    assert "gamma_factor" not in fixed[0]
    assert steered[1]["auxiliary_loss"] == pytest.approx(
        fixed[1]["auxiliary_loss"] * steered[0]["gamma_factor"], rel=1e-3
    )


def test_the_controllers_state_is_in_checkpoints(make_job, read):
    decay = {"decay_start_step": 9, "decay_steps": 3, "until_step": 12}
    whole = controlled(make_job, "whole", target=0.2, **decay)
    trunk = controlled(make_job, "trunk", target=0.2, until_step=5)
    longer = dataclasses.replace(trunk, until_step=9, keep_steps=(9,))
    branch = controlled(make_job, "branch", target=0.2, start_checkpoint=str(read.checkpoint(trunk, 9)), **decay)
    for job in (whole, trunk, longer, branch):
        fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
    assert read.same(whole, branch)
    parts = {int(row["step"]): row for job in (trunk, branch) for row in read.rows(job)}
    for row in read.rows(whole):
        for name in ("loss", "auxiliary_loss", "train_full_ratio", "gamma_factor"):
            assert parts[int(row["step"])][name] == row[name]


def test_a_factor_stays_within_its_bounds():
    model = build.DecoderLM(
        model_config(resolve_architecture("swiattn-8"), resolve_scale("n1"), vocab_size=11, context=16)
    )
    controller = GammaController(model, GammaControllerSettings(target=0.5, gain=10.0, max_factor=100.0))
    for ratio, bound in ((1.0, 100.0), (0.0, 0.01)):
        for _ in range(200):
            controller.observe(ratio)
        assert controller.factor == pytest.approx(bound)
        assert {layer.mixer.gamma_base for layer in model.blocks()} == {1e-3 * controller.factor}
