from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridlaw.platform.progress import FILE, ProgressReader, ProgressWriter, device_name


def test_what_is_written_is_read(tmp_path: Path) -> None:
    reader = ProgressReader()
    assert reader.read(tmp_path) is None
    writer = ProgressWriter(tmp_path, stage="trunk", device="cpu", interval_seconds=0)
    assert writer.update(step=10, until_step=40, tokens=1000, tokens_per_second=100.0, loss=2.5)
    seen = reader.read(tmp_path)
    assert seen is not None
    assert (seen.stage, seen.step, seen.until_step, seen.loss, seen.pid) == ("trunk", 10, 40, 2.5, os.getpid())
    assert seen.seconds_left == pytest.approx(30)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_writing_is_seldom(tmp_path: Path) -> None:
    now = [0.0]
    writer = ProgressWriter(tmp_path, interval_seconds=0.5, clock=lambda: now[0])
    written = []
    for step in range(100):
        now[0] = step * 0.01
        written.append(writer.update(step=step, until_step=100))
    assert sum(written) == 2
    assert writer.update(step=100, until_step=100, force=True)
    assert ProgressReader().read(tmp_path).step == 100


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    reader = ProgressReader()
    ProgressWriter(tmp_path, interval_seconds=0).update(step=1, until_step=2)
    first = reader.read(tmp_path)
    assert reader.read(tmp_path) is first
    ProgressWriter(tmp_path, interval_seconds=0).update(step=2, until_step=2)
    assert reader.read(tmp_path).step == 2
    reader.forget(tmp_path)


def test_damage_gives_the_last_whole_one(tmp_path: Path) -> None:
    reader = ProgressReader()
    ProgressWriter(tmp_path, interval_seconds=0).update(step=1, until_step=2)
    assert reader.read(tmp_path).step == 1
    for damage in ("", "{", "[]", '{"step": 3', '{"other": 1}'):
        (tmp_path / FILE).write_text(damage)
        assert reader.read(tmp_path).step == 1
        assert ProgressReader().read(tmp_path) is None
    (tmp_path / FILE).unlink()
    assert reader.read(tmp_path).step == 1


def test_a_folder_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path / "gone", interval_seconds=0)
    assert not writer.update(step=1, until_step=2)


def test_time_left_is_unknown_before_the_first_step(tmp_path: Path) -> None:
    ProgressWriter(tmp_path, interval_seconds=0).update(step=0, until_step=9)
    assert ProgressReader().read(tmp_path).seconds_left is None


def test_the_device_is_what_ray_gave_to_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert device_name("gpu") == "GPU 3"
    assert device_name("cpu") == ""
