"""Trunk and branch, kills, signals: whatever a run went through, it ends in the bits of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from damage import flip_a_bit
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training import checkpoint_files
from gridlaw.modules.training.errors import Stopped
from gridlaw.modules.training.fit import fit
from gridlaw.modules.training.job import FitJob

DECAY = {"decay_start_step": 24, "decay_steps": 6, "until_step": 30}


def executed(job: FitJob) -> int:
    """Steps made in the job's folder so far, as its file says."""
    try:
        stored = (Path(job.folder) / "executed.count").read_bytes()
    except FileNotFoundError:
        return 0
    return struct.unpack("<q", stored)[0] if len(stored) == 8 else 0


def wait_for_steps(job: FitJob, steps: int, process) -> None:
    until = time.monotonic() + 60
    while executed(job) < steps and process.is_alive():
        assert time.monotonic() < until, f"{executed(job)} steps after a minute"
        time.sleep(0.0005)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trunk_in_segments_and_its_decay_equal_one_run_from_scratch(make_job, run, read, precision: str):
    training = {"precision": precision}
    whole = make_job("whole", training=training, **DECAY)
    trunk = make_job("trunk", training=training, until_step=11)
    longer = replace(trunk, until_step=24, keep_steps=(24,))
    beyond = replace(longer, until_step=28)
    decay = make_job("decay", training=training, start_checkpoint=str(read.checkpoint(trunk, 24)), **DECAY)
    assert [run(job) for job in (whole, trunk, longer, beyond, decay)] == [0] * 5
    assert read.same(whole, decay)
    whole_losses, trunk_losses = read.losses(whole), read.losses(trunk)
    assert list(whole_losses) == list(range(1, 31))
    assert {**trunk_losses, **read.losses(decay)} == whole_losses
    assert (executed(whole), executed(trunk), executed(decay)) == (30, 28, 6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kill_9_at_random_moments_changes_no_bit_and_repeats_at_most_one_interval_each(
    make_job, start, run, read, precision: str
):
    """Lightning #19764 #18780 #11029: resume repeats data in the middle of an epoch."""
    training = {"precision": precision}
    whole = make_job("whole", training=training, until_step=60, decay_start_step=50, decay_steps=10)
    killed = replace(whole, folder=whole.folder + "-killed")
    assert run(whole) == 0
    moments, num_kills = random.Random(precision), 0
    for _ in range(5):
        process = start(killed)
        wait_for_steps(killed, executed(killed) + moments.randint(1, 14), process)
        time.sleep(moments.random() * 0.01)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            num_kills += 1
        process.join()
    assert num_kills >= 4
    assert run(killed) == 0
    assert read.same(whole, killed)
    assert set(read.losses(killed).items()) <= set(read.losses(whole).items())
    assert 60 <= executed(killed) <= 60 + num_kills * killed.checkpoint_every_steps


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_at_the_end_of_the_accumulation_and_no_step_is_repeated(make_job, start, run, read, number: int):
    whole = make_job("whole", **DECAY, micro_batch=2, checkpoint_every_steps=0)
    stopped = replace(whole, folder=whole.folder + "-stopped")
    assert run(whole) == 0
    process = start(stopped)
    wait_for_steps(stopped, 7, process)
    os.kill(process.pid, number)
    process.join(30)
    assert process.exitcode == 128 + number
    steps = executed(stopped)
    assert 7 <= steps < 30
    assert read.checkpoint(stopped, steps).is_file()
    assert run(stopped) == 0
    assert read.same(whole, stopped)
    assert read.losses(stopped) == read.losses(whole)
    assert executed(stopped) == 30


def test_a_stop_file_stops_a_fit_in_another_thread(make_job, tmp_path: Path):
    job = make_job("job", until_step=100_000, stop_file=str(tmp_path / "stop"), checkpoint_every_steps=0)
    caught: list[BaseException] = []

    def work() -> None:
        try:
            fit(job)
        except Stopped as stopped:
            caught.append(stopped)

    thread = threading.Thread(target=work)
    thread.start()
    while executed(job) < 3:
        time.sleep(0.01)
    (tmp_path / "stop").touch()
    thread.join(30)
    assert not thread.is_alive()
    (stopped,) = caught
    assert isinstance(stopped, Stopped)
    assert (stopped.code, stopped.step) == (143, executed(job))
    assert Path(stopped.checkpoint).is_file()
    (tmp_path / "stop").unlink()
    assert fit(replace(job, until_step=stopped.step + 1)).executed_now == 1


def test_should_stop_is_asked_and_a_stop_at_the_last_step_is_no_stop(make_job):
    job = make_job("job", until_step=1)
    assert fit(job, should_stop=lambda: True).steps == 1
    with pytest.raises(Stopped):
        fit(replace(job, until_step=1000), should_stop=lambda: True)


def test_a_finished_job_does_nothing_and_returns_its_stored_result(make_job, read):
    job = make_job("job", **DECAY)
    first = fit(job)
    times = {path: path.stat().st_mtime_ns for path in Path(job.folder).rglob("*")}
    again = fit(job)
    assert (first.executed_now, again.executed_now) == (30, 0)
    assert replace(again, executed_now=30, resumed_from=0) == first
    assert {path: path.stat().st_mtime_ns for path in Path(job.folder).rglob("*")} == times


def test_a_result_that_was_not_written_is_made_up_for_without_a_step(make_job):
    job = make_job("job", until_step=9)
    first = fit(job)
    (Path(job.folder) / "result-000000009.json").unlink()
    again = fit(job)
    assert (again.executed_now, again.resumed_from) == (0, 9)
    assert again.final_loss == first.final_loss


def test_a_stored_result_whose_checkpoint_is_damaged_is_made_again(make_job, read):
    """As large as it was, and not what it was: a branch would pass it over."""
    trunk = make_job("trunk", until_step=24)
    first = fit(trunk)
    path = read.checkpoint(trunk, 24)
    flip_a_bit(path)
    again = fit(trunk)
    assert (again.executed_now, len(again.damaged)) == (3, 1)
    assert again.final_loss == first.final_loss
    assert checkpoint_files.fault(path) is None


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(make_job, read, caplog: pytest.LogCaptureFixture):
    whole = make_job("whole", **DECAY)
    trunk = make_job("trunk", until_step=24)
    fit(whole)
    fit(trunk)
    flip_a_bit(read.checkpoint(trunk, 24))
    decay = make_job("decay", start_checkpoint=str(read.checkpoint(trunk, 24)), **DECAY)
    result = fit(decay)
    assert result.resumed_from == 21
    assert len(result.damaged) == 1
    assert str(read.checkpoint(trunk, 24)) in caplog.text
    assert read.same(whole, decay)
    again = fit(replace(trunk, until_step=25))
    assert (again.resumed_from, len(again.damaged)) == (21, 1)


def test_the_newest_whole_checkpoint_wins_over_the_given_one_and_over_the_beginning(make_job, read):
    """ray #35613: restored from epoch 0, or from the file that was given and not from the newest."""
    trunk = make_job("trunk", until_step=24)
    fit(trunk)
    decay = make_job("decay", start_checkpoint=str(read.checkpoint(trunk, 24)), **DECAY)
    with pytest.raises(Stopped) as stopped:
        fit(decay, should_stop=lambda: True)
    assert stopped.value.step == 25
    again = fit(decay)
    assert (again.resumed_from, again.executed_now) == (25, 5)


def test_a_branch_without_any_whole_trunk_checkpoint_is_refused(make_job, read):
    trunk = make_job("trunk", until_step=3)
    fit(trunk)
    flip_a_bit(read.checkpoint(trunk, 3))
    with pytest.raises(BadSetting, match="train the trunk again"):
        fit(make_job("decay", start_checkpoint=str(read.checkpoint(trunk, 3)), **DECAY))


def test_another_accumulation_on_resume_still_makes_whole_steps(make_job, read):
    """With AdamW the losses agree to rounding; a wrong first step would be off by far more."""
    training = {"optimizer": {"name": "adamw", "lr": 0.01}}
    whole = make_job("whole", training=training, until_step=20)
    fit(whole, logger=_log(whole))
    changed = make_job("changed", training=training, until_step=9, micro_batch=2)
    fit(changed, logger=_log(changed))
    for until, micro_batch in ((14, 1), (20, 4)):
        fit(replace(changed, until_step=until, micro_batch=micro_batch), logger=_log(changed))
    expected, actual = read.losses(whole), read.losses(changed)
    assert list(actual) == list(expected)
    assert all(abs(actual[step] - expected[step]) < 1e-5 for step in expected)
    assert executed(changed) == 20


def _log(job: FitJob):
    from gridlaw.modules.training.json_logger import JsonLinesLogger

    return JsonLinesLogger(job.folder + ".jsonl")


def test_the_micro_batch_that_fitted_is_used_again_by_the_next_segment_and_by_the_branch(make_job, read):
    trunk = make_job("trunk", until_step=3, micro_batch=2)
    fit(trunk)
    assert fit(replace(trunk, until_step=24, micro_batch=None)).micro_batch == 2
    decay = make_job("decay", start_checkpoint=str(read.checkpoint(trunk, 24)), **DECAY)
    assert fit(decay).micro_batch == 2


def test_other_settings_in_the_same_folder_are_refused_field_by_field(make_job):
    fit(make_job("job", until_step=3))
    with pytest.raises(BadSetting, match="other settings"):
        fit(make_job("job", until_step=3, seed=4))
    with pytest.raises(BadSetting, match=r"seed: 3 → 4.*training.clip: 1.0 → 0.5"):
        fit(make_job("job", until_step=6, seed=4, training={"clip": 0.5}))


def test_a_branch_that_should_have_decayed_before_its_checkpoint_is_refused(make_job, read):
    trunk = make_job("trunk", until_step=24)
    fit(trunk)
    with pytest.raises(BadSetting, match="differ from step 20 on"):
        fit(
            make_job(
                "late",
                start_checkpoint=str(read.checkpoint(trunk, 24)),
                decay_start_step=20,
                decay_steps=10,
                until_step=30,
            )
        )


def test_an_earlier_segment_asked_for_again_is_made_and_kept(make_job, read):
    job = make_job("job", until_step=24, checkpoint_every_steps=0, keep_steps=(6,))
    fit(job)
    again = fit(replace(job, until_step=8, keep_last=1))
    assert (again.resumed_from, again.executed_now) == (6, 2)
    assert read.checkpoint(job, 8).is_file()
