"""What a Switch model tells while it trains, against the same batch taken apart by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gridlaw.modules.data.sampling import window_index
from gridlaw.modules.training import build
from gridlaw.modules.training.cross_entropy import cross_entropy
from gridlaw.modules.training.fit import fit
from gridlaw.modules.training.json_logger import JsonLinesLogger

ARCHITECTURE = {"name": "mixed", "pattern": ["switch-8", "full"]}


@pytest.mark.parametrize("micro_batch", [4, 1])
def test_regulariser_and_ratios_by_layer_are_logged_for_each_step(make_job, prepared, read, micro_batch: int):
    job = make_job("job", architecture=ARCHITECTURE, until_step=3, micro_batch=micro_batch)
    fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
    model, _, _ = build.model(job, begins=True)
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
