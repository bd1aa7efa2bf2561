"""Two drivers of one experiment: on one store under two hosts' names, and a driver that loses its lease."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gridlaw.platform.store.lease import Owner, lease_name
from running import (
    alive,
    check_nothing_lost_nothing_twice,
    finish,
    held,
    kill,
    losses_of,
    under_way,
    wait_for,
    workers_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

GRID: dict[str, Any] = {
    "architectures": ["full"],
    "scales": ["n1"],
    "budgets": ["20N"],
    "laws": [],
    "run": {"checkpoint_every_steps": 20, "max_parallel": 1},
}
ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname node-b && exec "$@"', "sh")
"""In front of a command: another host's name, as on a second machine with the same store mounted."""


@pytest.fixture(scope="module")
def undisturbed(new_workplace: Callable[[], Any]) -> dict[str, float]:
    place = new_workplace()
    place.write(GRID)
    return losses_of(place)


def where_the_trunk_is(place: Any) -> str:
    """The process that trains it, by the ledger; told once it has been under way for some seconds."""
    return "".join(run.data.tags.get("gridlaw.pid", "") for run in place.runs("trunk"))


@pytest.mark.skipif(os.geteuid() != 0, reason="another host's name needs root")
def test_a_driver_on_another_host_is_respected_while_it_lives_and_followed_when_it_is_dead(
    new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    place = new_workplace()
    place.write(GRID)
    place.prefix = ELSEWHERE
    driver = under_way(place)
    place.prefix = ()
    told = wait_for(lambda: where_the_trunk_is(place), "the ledger to say where the trunk runs")
    with held(driver):
        second = place.run()
        shown = json.loads(place.gridlaw("status", "grid.yaml", "--json").stdout)
        text = place.gridlaw("status", "grid.yaml").stdout
    assert second.returncode == 2, second.stderr
    assert re.search(rf"is being run by pid {driver.pid} on node-b, since .* another name", second.stderr)
    assert f"pid {driver.pid} on node-b" in shown["driver"]
    (trunk,) = shown["trunks"]
    assert (trunk["state"], trunk["where"]) == ("running", f"node-b (pid {told})")
    assert f"on node-b (pid {told})" in text and "1 left" in text
    kill(driver)
    killed_at = time.monotonic()
    refused = place.run()  # from here nobody can know that a process there is dead, before its lease is old
    if time.monotonic() - killed_at < 45:
        assert refused.returncode == 2 and "last sign of life" in refused.stderr
    time.sleep(max(0.0, 75 - (time.monotonic() - killed_at)))
    finish(place, undisturbed)


def test_a_driver_that_loses_its_lease_stops_and_writes_nothing_more(
    new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    """As after a sleep of an hour: another host's driver has taken the lease over, and the runs with it."""
    place = new_workplace()
    place.write(GRID)
    driver = under_way(place)
    workers = workers_of(driver.pid)
    heir = replace(Owner.this_process("small"), host="node-b", machine="node-b boot", pid=4242)
    lease = place.store / lease_name("small")
    lease.write_bytes(heir.encode())
    assert driver.wait(timeout=300) == 3
    told = (place.folder / "run.log").read_text()
    assert "taken over by pid 4242 on node-b" in told and "Traceback" not in told
    assert not any(alive(pid) for pid in workers)
    statuses = {
        run.data.tags["gridlaw.kind"]: run.info.status for kind in ("submission", "trunk") for run in place.runs(kind)
    }
    assert statuses == {"submission": "RUNNING", "trunk": "RUNNING"}, "they are the heir's to end"
    assert lease.read_bytes() == heir.encode()
    os.utime(lease)
    refused = place.run()
    assert refused.returncode == 2 and "pid 4242 on node-b" in refused.stderr
    lease.unlink()  # the heir has ended
    finish(place, undisturbed)


def test_a_paused_driver_is_followed_and_ends_when_it_wakes(
    new_workplace: Callable[[], Any], undisturbed: dict[str, float]
) -> None:
    """SIGSTOP of a driver under another host's name; its workers go on until it wakes and ends them."""
    place = new_workplace()
    place.write(GRID)
    place.prefix = ELSEWHERE
    driver = under_way(place)
    workers = workers_of(driver.pid)
    for pid in (driver.pid, *workers):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(65)
    place.prefix = ()
    second = place.start("--plain")
    wait_for(lambda: f'"pid": {second.pid}' in (place.store / lease_name("small")).read_text(), "the heir to take over")
    for pid in (driver.pid, *workers):
        os.kill(pid, signal.SIGCONT)
    assert driver.wait(timeout=300) == 3
    assert second.wait(timeout=1500) == 0, (place.folder / "run.log").read_text()[-3000:]
    check_nothing_lost_nothing_twice(place, undisturbed)
