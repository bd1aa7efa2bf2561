"""What one fit computes, logs and leaves behind."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from gridlaw.modules.catalog import flops_per_token
from gridlaw.modules.data.sampling import window_index
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.training.errors import Diverged
from gridlaw.modules.training.fit import fit
from gridlaw.modules.training.head_gradients import HeadGradientNorms
from gridlaw.modules.training.json_logger import JsonLinesLogger
from gridlaw.modules.training.schedule import plan_for
from gridlaw.modules.training.settings import TrainingSettings


class Gradients(pl.Callback):
    """Keeps the gradients of the first optimizer step, and the batches that made them."""

    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}
        self.batches: list[torch.Tensor] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.batches.append(batch.clone())

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        if not self.gradients:
            self.gradients = {name: p.grad.clone() for name, p in pl_module.named_parameters()}


def first_gradients(job, **fields) -> dict[str, torch.Tensor]:
    seen = Gradients()
    fit(replace(job, folder=f"{job.folder}{fields}", **fields), callbacks=[seen])
    return seen.gradients


@pytest.mark.parametrize("micro_batch", [2, 1])
def test_accumulation_gives_the_same_gradients(make_job, micro_batch: int):
    job = make_job("job", until_step=1)
    whole, accumulated = first_gradients(job), first_gradients(job, micro_batch=micro_batch)
    assert len(whole) > 10
    for name, gradient in whole.items():
        torch.testing.assert_close(accumulated[name], gradient, atol=1e-7, rtol=1e-4)


def test_accumulation_gives_the_same_losses_under_adamw(make_job, read):
    """Lightning #1476 #831 #19684: a schedule stepped per micro-batch, and max_steps broken by accumulation."""
    training = {"optimizer": {"name": "adamw", "lr": 0.003}}
    losses = []
    for micro_batch in (4, 2, 1):
        job = make_job(f"job{micro_batch}", until_step=20, training=training, micro_batch=micro_batch)
        fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
        losses.append(list(read.losses(job).values()))
    assert len(losses[0]) == 20
    assert np.abs(np.array(losses) - losses[0]).max() < 2e-6


def test_the_batches_are_those_of_the_sampler_whatever_the_micro_batch(make_job, prepared):
    for micro_batch in (4, 1):
        seen = Gradients()
        fit(make_job(f"job{micro_batch}", until_step=3, micro_batch=micro_batch), callbacks=[seen])
        windows = [window_index(3, prepared.fingerprint, prepared.num_train_windows, g) for g in range(12)]
        expected = torch.from_numpy(prepared.train_windows(np.array(windows)).astype(np.int64))
        assert torch.equal(torch.cat(seen.batches)[:12], expected)


def test_activation_checkpointing_changes_no_gradient(make_job):
    job = make_job("job", until_step=1)
    plain, checkpointed = first_gradients(job), first_gradients(job, activation_checkpointing=True)
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


def test_the_loss_falls_and_rows_tell_about_every_step(make_job, read):
    job = make_job("job", until_step=40, decay_start_step=30, decay_steps=10, micro_batch=2, peak_tflops=0.5)
    result = fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
    rows = read.rows(job)
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert [row["tokens"] for row in rows] == [128.0 * step for step in range(1, 41)]
    assert rows[0]["loss"] == pytest.approx(math.log(257), abs=0.1)
    assert rows[-1]["loss"] < rows[0]["loss"] - 1
    assert result.final_loss == rows[-1]["loss"]
    settings = TrainingSettings.from_dict(job.training)
    plan = plan_for(settings.schedule, 30, 10)
    assert [row["lr"] for row in rows] == [settings.optimizer.lr * plan.factor(step) for step in range(40)]
    last = rows[-1]
    assert last["mfu"] == pytest.approx(
        last["tokens_per_second"] * 3 * flops_per_token(ModelConfig.from_dict(job.model), 32) / 0.5e12
    )
    assert 0 <= last["data_wait_share"] <= 1
    assert last["memory_bytes"] > 1e6
    assert last["seconds_left"] == 0
    assert all(math.isfinite(value) for row in rows for value in row.values())


def test_the_logged_loss_is_the_mean_over_micro_batches_and_not_the_last_one(make_job, read):
    losses = []
    for micro_batch in (4, 1):
        job = make_job(f"job{micro_batch}", until_step=1, micro_batch=micro_batch)
        fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
        losses.append(read.losses(job)[1])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_fewer_rows_are_logged_on_request_and_the_last_always(make_job, read):
    job = make_job("job", until_step=11, log_every_steps=4)
    fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
    assert [row["step"] for row in read.rows(job)] == [4, 8, 11]


def test_progress_is_reported_seldom_and_ends_with_the_last_step(make_job):
    calls: list[tuple[int, int, float, float]] = []
    result = fit(make_job("job", until_step=60), progress=lambda *about: calls.append(about))
    assert calls[-1][:2] == (60, 60 * 128)
    assert calls[-1][2] == result.final_loss
    assert len(calls) <= result.seconds / 0.25 + 2


class Finite(pl.Callback):
    def on_exception(self, trainer, pl_module, exception) -> None:
        self.finite = all(bool(torch.isfinite(p).all()) for p in pl_module.parameters())


def test_divergence_ends_the_fit_before_the_update_and_weights_stay_finite(make_job, read):
    training = {"optimizer": {"name": "adamw", "lr": 1e25}, "clip": 0.0, "schedule": {"warmup_steps": 0}}
    job = make_job("job", until_step=50, training=training)
    watch = Finite()
    with pytest.raises(Diverged) as caught:
        fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"), callbacks=[watch])
    assert watch.finite
    assert caught.value.step == len(read.rows(job))
    assert all(math.isfinite(row["loss"]) for row in read.rows(job))
    assert not (Path(job.folder) / "result-000000050.json").exists()


class Poison(pl.Callback):
    """A non-finite gradient at one step while the loss is finite."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        if trainer.global_step == 3:
            next(pl_module.parameters()).grad[0, 0] = math.inf


def test_a_gradient_that_is_not_finite_is_told_apart(make_job):
    with pytest.raises(Diverged, match="optimizer step 3: gradient norm is inf"):
        fit(make_job("job", until_step=9), callbacks=[Poison()])


def test_clipping_bounds_the_update_and_the_norm_before_it_is_logged(make_job, read):
    def run(clip: float):
        training = {"optimizer": {"name": "adamw", "lr": 0.01}, "clip": clip}
        job = make_job(f"clip{clip}", until_step=2, training=training)
        fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
        return read.rows(job)

    loose, tight = run(0.0), run(1e-3)
    assert loose[0]["grad_norm"] == tight[0]["grad_norm"] > 1e-3
    assert loose[1]["loss"] != tight[1]["loss"]


def test_the_end_of_a_decay_is_a_model_for_outside_use_and_its_checkpoints_go(make_job, read):
    from gridlaw.modules.models.checkpoint import load_model

    job = make_job("job", until_step=10, decay_start_step=8, decay_steps=2)
    result = fit(job)
    folder = Path(job.folder) / "model"
    assert result.checkpoint == str(folder)
    model = load_model(folder)
    assert model.config == ModelConfig.from_dict(job.model)
    assert all(torch.equal(p, read.weights(job)[name]) for name, p in model.state_dict().items())
    assert not list(Path(job.folder).glob("*.ckpt*"))


def test_a_stage_starts_with_another_models_weights_by_name(make_job, read):
    first = make_job("first", until_step=6, decay_start_step=5, decay_steps=1)
    fit(first)
    folder = str(Path(first.folder) / "model")
    same = fit(make_job("same", until_step=1, start_weights=folder, checkpoint_every_steps=0))
    assert (same.new_weights, same.dropped_weights) == ((), ())
    assert same.final_loss < 5.4
    other = fit(
        make_job(
            "other",
            until_step=1,
            start_weights=folder,
            architecture={"name": "bare", "pattern": ["full"], "sink": False},
        )
    )
    assert other.new_weights == ()
    assert other.dropped_weights == ("layers.0.mixer.sink", "layers.1.mixer.sink")


def test_head_gradient_norms_add_up_to_the_projections_norm(make_job, read):
    job = make_job("job", until_step=4)
    seen = Gradients()
    watch = HeadGradientNorms(every_steps=2, projections=("q_proj", "k_proj"))
    fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"), callbacks=[watch, seen])
    rows = read.rows(job)
    assert ["head_grad_norm/0/q_proj/0" in row for row in rows] == [False, True, False, True]
    assert sum(name.startswith("head_grad_norm/") for name in rows[1]) == 2 * (2 + 2)
    seen = Gradients()
    job = make_job("once", until_step=1)
    fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"), callbacks=[HeadGradientNorms(every_steps=1), seen])
    (row,) = read.rows(job)
    of_heads = math.hypot(row["head_grad_norm/1/q_proj/0"], row["head_grad_norm/1/q_proj/1"])
    assert of_heads == pytest.approx(seen.gradients["model.layers.1.mixer.q_proj.weight"].norm().item())


def test_documents_of_a_window_do_not_see_each_other_under_a_document_mask(make_job):
    """Windows of 32 bytes seldom hold an end token, so a step has many of them."""
    job = make_job("job", until_step=3, training={"batch_tokens": 32 * 512})
    results = [fit(replace(job, folder=f"{job.folder}{mask}", document_mask=mask)) for mask in (False, True)]
    assert results[0].final_loss != results[1].final_loss
    assert results[0].final_loss == pytest.approx(results[1].final_loss, abs=0.05)


class TooLarge(pl.Callback):
    """Memory for two windows at a time."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if len(batch) > 2:
            raise torch.OutOfMemoryError("injected")


def test_out_of_device_memory_halves_the_micro_batch_and_stores_what_fitted(make_job):
    job = make_job("job", until_step=2)
    assert fit(job, callbacks=[TooLarge()]).micro_batch == 2
    assert json.loads((Path(job.folder) / "micro_batch.json").read_text()) == {"micro_batch": 2}
    with pytest.raises(torch.OutOfMemoryError):
        fit(make_job("given", until_step=2, micro_batch=4), callbacks=[TooLarge()])


def test_torchs_global_settings_are_as_before_afterwards(make_job):
    def settings() -> tuple[object, ...]:
        fill = torch.utils.deterministic.fill_uninitialized_memory
        return torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), fill

    before, state = settings(), torch.get_rng_state()
    fit(make_job("job", until_step=2, num_threads=before[0] + 1))
    assert settings() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_result_is_json(make_job):
    result = fit(make_job("job", until_step=2))
    assert type(result).from_dict(json.loads(json.dumps(result.to_dict()))) == result


@pytest.mark.slow
def test_a_compiled_model_trains_to_the_same_losses_within_rounding(make_job, read):
    losses = []
    for compiled in (False, True):
        training = {"optimizer": {"name": "adamw", "lr": 0.01}}
        job = make_job(f"job{compiled}", until_step=10, compile=compiled, training=training)
        fit(job, logger=JsonLinesLogger(job.folder + ".jsonl"))
        losses.append(list(read.losses(job).values()))
    assert np.abs(np.array(losses[0]) - losses[1]).max() < 1e-4
