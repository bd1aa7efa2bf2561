"""Where ``gridlaw ui`` may listen: a host that is not this machine's is told as such, not as a port in use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gridlaw.pipelines.cli.main import main


@pytest.mark.parametrize("host", ["203.0.113.7", "not a host"])
def test_a_host_that_is_not_here(
    host: str, tmp_path: Path, fresh_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(fresh_database, tmp_path / "mlflow.db")
    with pytest.raises(SystemExit) as ended:
        main(["ui", "--store", str(tmp_path), "--host", host])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and f"--host is {host!r}" in told and "--port" not in told
