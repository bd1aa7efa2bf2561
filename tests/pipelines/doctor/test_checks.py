from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gridlaw.pipelines.cli.main import main
from gridlaw.pipelines.doctor.checks import Check, Clock, judge
from gridlaw.pipelines.doctor.nodes import token
from gridlaw.pipelines.doctor.probe import probe, store_probe
from gridlaw.platform.store.open import open_store


@pytest.fixture(scope="module")
def healthy() -> dict[str, Any]:
    """This machine as a node without a store."""
    found = probe({"store": None, "node": "node-1"})
    return found | {"shared_memory_bytes": 2**31, "versions": found["versions"] | {"commit": "abc"}}


def failed(checks: list[Check]) -> dict[str, Check]:
    return {check.check: check for check in checks if not check.ok}


def test_a_healthy_node_has_nothing_to_mend(healthy: dict[str, Any]) -> None:
    checks = judge(healthy, like=healthy["versions"], clock=Clock(low=-0.1, high=0.2))
    assert failed(checks) == {}
    assert {check.check for check in checks} == {"versions", "kernels", "shared memory", "clock"}
    assert "attention" in healthy["kernels"]["chosen"]


def test_what_is_wrong_is_named_with_what_to_do(healthy: dict[str, Any]) -> None:
    ill = copy.deepcopy(healthy)
    ill["versions"] |= {"torch": "1.0", "gridlaw": "missing"}
    ill["shared_memory_bytes"] = 64 * 2**20
    ill["store"] = {"error": "cannot write /s: Read-only file system", "free_bytes": None}
    ill["kernels"] = {"error": "ImportError: libcuda", "device": "", "chosen": {}, "passed_over": {}}
    wrong = failed(judge(ill, like=healthy["versions"], clock=Clock(low=41.0, high=42.0)))
    assert set(wrong) == {"versions", "kernels", "shared memory", "store", "clock"}
    assert f"torch {healthy['versions']['torch']}" in wrong["versions"].advice
    assert "--shm-size" in wrong["shared memory"].advice
    assert "Read-only" in wrong["store"].found
    assert "41.0 s" in wrong["clock"].found and "NTP" in wrong["clock"].advice


def test_a_gpu_without_its_kernels(healthy: dict[str, Any]) -> None:
    ill = copy.deepcopy(healthy)
    ill["kernels"] = {
        "error": "", "device": "H100", "chosen": {"attention": "flex"},
        "passed_over": {"attention": {"flash-attn": "the package flash_attn is missing"}},
    }  # fmt: skip
    assert "gridlaw[gpu]" in failed(judge(ill))["kernels"].advice


def test_clocks_agree_as_far_as_can_be_known() -> None:
    assert Clock(low=-3.0, high=30.0).skew_seconds == 0
    assert Clock(low=6.0, high=7.0).skew_seconds == 6
    assert Clock(low=-9.0, high=-8.0).skew_seconds == 8


def test_a_folder_of_the_same_name_is_not_the_same_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "shared", create=True)
    with token(store) as task:
        assert store_probe(task)["error"] == ""
        assert "does not see" in store_probe(task | {"token": "another"})["error"]
        assert store_probe(task | {"store": str(tmp_path / "elsewhere")})["error"]
    assert not store.exists(task["name"])


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--json", *arguments])
    return int(end.value.code or 0), json.loads(capsys.readouterr().out)


def test_the_command_tells_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, told = doctor(capsys)
    by_name = {each["check"]: each for each in told["checks"]}
    assert by_name["store"]["ok"] and by_name["tracking"]["ok"] and by_name["versions"]["ok"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("no folder")
    code, told = doctor(capsys, "--store", str(tmp_path / "file" / "store"), "--tracking-uri", "http://127.0.0.1:9")
    wrong = {each["check"]: each for each in told["checks"] if not each["ok"]}
    assert code == 1 and not told["ok"]
    assert {"store", "tracking"} <= set(wrong)
    assert "127.0.0.1:9 does not answer" in wrong["tracking"]["found"]
