"""Checkpoint files are whole or not there, damage is named and passed over, and pruning spares what others need."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from damage import cut, flip_a_bit, lose_sidecar, spoil_sidecar
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training import checkpoint_files
from gridlaw.modules.training.checkpoint_io import WholeFileIO, load


def save(folder: Path, step: int) -> Path:
    path = folder / checkpoint_files.checkpoint_name(step)
    WholeFileIO().save_checkpoint({"global_step": step, "weights": torch.full((1000,), float(step))}, path)
    return path


def test_what_was_saved_is_loaded(tmp_path: Path):
    path = save(tmp_path, 7)
    assert checkpoint_files.fault(path) is None
    assert torch.equal(load(path)["weights"], torch.full((1000,), 7.0))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_a_bit, "content does not match"),
        (cut, "bytes instead of"),
        (lose_sidecar, "checksum file is missing"),
        (spoil_sidecar, "checksum file cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path: Path, damage, words: str):
    before, newest = save(tmp_path, 10), save(tmp_path, 20)
    damage(newest)
    found, damaged = checkpoint_files.newest_valid(tmp_path)
    assert found == before
    assert len(damaged) == 1
    assert str(newest) in damaged[0]
    assert words in damaged[0]
    with pytest.raises(BadSetting, match="whole checkpoint"):
        load(newest)


def test_nothing_later_than_asked_for_is_taken(tmp_path: Path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    found, _ = checkpoint_files.newest_valid(tmp_path, until_step=19)
    assert found is not None
    assert checkpoint_files.step_of(found) == 10


def test_pruning_keeps_branch_points_and_the_newest_and_clears_dead_temporary_files(tmp_path: Path):
    """ray #41362: a checkpoint pruned away that was needed."""
    for step in (10, 20, 30, 40, 50):
        save(tmp_path, step)
    (tmp_path / "step-000000060.ckpt.tmp-dead").write_bytes(b"half")
    checkpoint_files.prune(tmp_path, keep_steps={20}, keep_last=2)
    assert [step for step, _ in checkpoint_files.checkpoints(tmp_path)] == [20, 40, 50]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        name for step in (20, 40, 50) for name in (f"step-{step:09d}.ckpt", f"step-{step:09d}.ckpt.json")
    )


def test_an_error_while_writing_leaves_the_old_file_and_no_temporary_one(tmp_path: Path):
    path = tmp_path / "file"
    checkpoint_files.write_json(path, {"a": 1})
    before = path.read_bytes()

    def fail(file: checkpoint_files.HashingFile) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoint_files.write_whole(path, fail)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


WRITER = """
import sys
from pathlib import Path
import torch
from gridlaw.modules.training.checkpoint_files import checkpoint_name
from gridlaw.modules.training.checkpoint_io import WholeFileIO
folder = Path(sys.argv[1])
for step in range(1, 10**6):
    content = {"global_step": step, "w": torch.full((200_000,), step)}
    WholeFileIO().save_checkpoint(content, folder / checkpoint_name(step % 3))
    print(step, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_only_whole_checkpoints(tmp_path: Path):
    """ray #27790: half-written checkpoints.

    Files are overwritten all the time; after kill -9 each is whole, or is found out as damaged.
    """
    wholes = 0
    for attempt in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(3):
            writer.stdout.readline()
        time.sleep(0.003 + 0.007 * attempt)
        os.kill(writer.pid, 9)
        writer.wait()
        writer.stdout.close()
        for _, path in checkpoint_files.checkpoints(tmp_path):
            if checkpoint_files.fault(path) is None:
                values = load(path)["w"]
                assert bool((values == values[0]).all())
                wholes += 1
    assert wholes >= 6
