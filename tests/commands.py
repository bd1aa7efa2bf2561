"""The gridlaw command in this process, and the check that it refuses wrong input without leaving anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridlaw.pipelines.cli.main import main


def gridlaw(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command in ``folder``; it must be refused, and the folder stay as it was."""
    before = sorted(path.name for path in folder.iterdir())
    assert gridlaw(*arguments) == 2
    assert sorted(path.name for path in folder.iterdir()) == before
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    return told.err
