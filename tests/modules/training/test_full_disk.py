"""A disk that is really full: the error says so, what was saved stays whole, and the same job goes on with room."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from disks import mounted
from gridlaw.modules.training import checkpoint_files
from gridlaw.modules.training.fit import fit


@pytest.fixture
def small_disk(tmp_path: Path):
    """A tmpfs of 2 MB."""
    with mounted(tmp_path / "disk", "2m") as folder:
        yield folder


@pytest.mark.slow
def test_a_full_disk_ends_the_fit_with_whole_checkpoints_and_it_goes_on_once_there_is_room(make_job, small_disk, read):
    keep = tuple(range(1, 100))
    job = make_job("job", until_step=100, checkpoint_every_steps=1, keep_steps=keep)
    job = replace(job, folder=str(small_disk / "job"))
    with pytest.raises(OSError, match="No space left on device") as caught:
        fit(job)
    assert caught.value.errno == errno.ENOSPC
    assert str(small_disk) in str(caught.value.filename)
    saved = checkpoint_files.checkpoints(Path(job.folder))
    newest, damaged = checkpoint_files.newest_valid(Path(job.folder))
    assert newest == saved[-1][1]
    assert not damaged
    assert not list(Path(job.folder).glob("*.tmp-*"))
    for _, path in saved[:-1]:
        checkpoint_files.remove(path)
    result = fit(replace(job, keep_steps=(), keep_last=1))
    assert result.steps == 100
    assert result.resumed_from == saved[-1][0]
