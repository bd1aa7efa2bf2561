from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from disks import fill
from gridlaw.platform.errors import InUse, Surroundings
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.lease import Lease, Owner, lease_name, look
from gridlaw.platform.store.local import LocalStore
from running import let_go

Start = Callable[..., "subprocess.Popen[str]"]
Age = Callable[[Store, str, float], None]

HOLDER = """if True:
    import sys
    from dataclasses import replace
    from gridlaw.platform.store.lease import Lease, Owner
    from gridlaw.platform.store.open import attach_store
    owner = Owner.this_process("grid", job_id="job-7")
    if sys.argv[2]:
        owner = replace(owner, host=sys.argv[2], machine=sys.argv[2])
    times = dict(heartbeat_seconds=0.1, stale_after_seconds=float(sys.argv[3]))
    lease = Lease.acquire(attach_store(sys.argv[1]), "grid", owner=owner, **times)
    print("held", flush=True)
    lease.lost.wait(60)
    print(lease.lost_reason, flush=True)
"""


LEASE = lease_name("grid")


def elsewhere(host: str = "node-b") -> Owner:
    return replace(Owner.this_process("grid"), host=host, machine=f"{host} boot", pid=4242)


def test_the_second_driver_is_told_where_the_first_runs(store: Store, start: Start) -> None:
    holder = start(HOLDER, store.address, "", 60)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(InUse) as refused:
        Lease.acquire(store, "grid")
    for part in ("'grid'", f"pid {holder.pid}", f"on {socket.gethostname()}", "job job-7", "since 20", "another name"):
        assert part in str(refused.value)
    assert refused.value.exit_code == 2
    with Lease.acquire(store, "another grid") as other:
        assert not other.lost.is_set()


def test_a_killed_driver_is_followed_at_once(store: Store, start: Start) -> None:
    holder = start(HOLDER, store.address, "", 60)
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)  # not waited for: a zombie still has its pid
    deadline = time.monotonic() + 10
    while True:
        try:
            lease = Lease.acquire(store, "grid")
            break
        except InUse:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert look(store, "grid").owner == lease.owner
    lease.release()
    assert look(store, "grid") is None


def test_a_pid_used_again_is_no_owner(store: Store) -> None:
    earlier = replace(Owner.this_process("grid"), process_start="1")
    assert store.create(LEASE, earlier.encode())
    with Lease.acquire(store, "grid") as lease:
        assert look(store, "grid").owner == lease.owner


def test_a_driver_on_another_host_is_waited_for(store: Store, age: Age) -> None:
    assert store.create(LEASE, elsewhere().encode())
    age(store, LEASE, 55)
    with pytest.raises(InUse, match="pid 4242 on node-b"):
        Lease.acquire(store, "grid")
    age(store, LEASE, 61)
    with Lease.acquire(store, "grid") as lease:
        assert look(store, "grid").owner == lease.owner


def test_a_driver_that_slept_finds_that_it_lost(store: Store, start: Start) -> None:
    holder = start(HOLDER, store.address, "node-b", 1)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(InUse):
        Lease.acquire(store, "grid", stale_after_seconds=1)
    holder.send_signal(signal.SIGSTOP)
    time.sleep(2.2)  # an S3 server's clock shows whole seconds
    with Lease.acquire(store, "grid", stale_after_seconds=1) as lease:
        holder.send_signal(signal.SIGCONT)
        assert f"taken over by pid {os.getpid()}" in holder.stdout.readline()
        assert lease.renew(), "the loser's end must not take the winner's lease"


def test_a_stale_lease_has_one_heir(store: Store, start: Start, age: Age) -> None:
    source = """if True:
        import sys
        from gridlaw.platform.errors import InUse
        from gridlaw.platform.store.lease import Lease
        from gridlaw.platform.store.open import attach_store
        store = attach_store(sys.argv[1])
        store.exists("x")
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            lease = Lease.acquire(store, "grid")
            print("won", flush=True)
        except InUse:
            print("refused", flush=True)
        sys.stdin.readline()
    """
    store.create(LEASE, elsewhere().encode())
    age(store, LEASE, 100)
    heirs = [start(source, store.address) for _ in range(5)]
    let_go(heirs)
    assert sorted(heir.stdout.readline() for heir in heirs) == ["refused\n"] * 4 + ["won\n"]


def test_a_lease_taken_away_is_lost_once(store: Store) -> None:
    reasons: list[str] = []
    lease = Lease.acquire(store, "grid", heartbeat_seconds=0.05, on_lost=reasons.append)
    store.write_bytes(LEASE, elsewhere().encode())
    assert lease.lost.wait(10)
    with pytest.raises(Surroundings, match="taken over by pid 4242 on node-b"):
        lease.check()
    lease.release()
    assert len(reasons) == 1
    assert look(store, "grid").owner.host == "node-b", "release leaves another driver's lease alone"


def test_a_lease_removed_is_lost(store: Store) -> None:
    lease = Lease.acquire(store, "grid", heartbeat_seconds=1000)
    lease.check()
    store.delete(LEASE)
    assert not lease.renew()
    assert "removed" in lease.lost_reason


def test_an_owner_that_cannot_renew_gives_up_when_others_may_follow(
    store: Store, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    lease = Lease.acquire(store, "grid", heartbeat_seconds=1000, clock=lambda: now[0])
    if isinstance(store, LocalStore):
        shutil.rmtree(store.address)
        away, why = nullcontext(), "is gone"
    else:
        monkeypatch.setattr("gridlaw.platform.store.s3._LEASE_PATIENCE_SECONDS", 0.1)
        away, why = request.getfixturevalue("s3").busy(), "overloaded"
    with away:
        now[0] = 59.0
        assert lease.renew()
        lease.check()
        now[0] = 61.0
        assert not lease.renew()
        with pytest.raises(Surroundings, match=f"could not be renewed for 60 s.*{why}"):
            lease.check()


def test_a_heartbeat_that_hangs_keeps_no_lease(store: Store) -> None:
    now, reasons = [0.0], list[str]()
    lease = Lease.acquire(store, "grid", heartbeat_seconds=1000, clock=lambda: now[0], on_lost=reasons.append)
    now[0] = 59.0
    assert lease.held()
    now[0] = 60.0
    assert not lease.held()
    assert not lease.renew()
    assert reasons == ["the lease could not be renewed for 60 s"]
    lease.release()


def test_a_slow_answer_does_not_lengthen_the_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store counts from when it wrote, so the owner may not count from when it heard of it."""
    now = [0.0]

    def slowly(method: Callable[..., bool]) -> Callable[..., bool]:
        def call(*arguments: object, **named: object) -> bool:
            done = method(*arguments, **named)
            now[0] += 9.0
            return done

        return call

    monkeypatch.setattr(store, "create", slowly(store.create))
    monkeypatch.setattr(store, "touch_if", slowly(store.touch_if))
    lease = Lease.acquire(store, "grid", heartbeat_seconds=1000, clock=lambda: now[0])
    now[0] = 50.0
    assert lease.renew()  # written at 50, heard of at 59
    now[0] = 109.0
    assert lease.held()
    now[0] = 110.0
    assert not lease.held()
    another = Lease.acquire(store, "another", heartbeat_seconds=1000, clock=lambda: now[0])  # at 110, heard at 119
    now[0] = 170.0
    assert not another.held()
    for each in (lease, another):
        each.release()


def test_a_full_disk_does_not_cost_the_lease(small_disk: Path, age: Age) -> None:
    store = LocalStore(small_disk / "store")
    lease = Lease.acquire(store, "grid", heartbeat_seconds=1000)
    store.write_bytes("filler", b"x" * 1_000_000)
    with pytest.raises(Surroundings, match="full"):
        store.write_bytes("more", b"x" * 2_000_000)
    fill(small_disk / "rest")
    age(store, LEASE, 50)
    assert lease.renew()
    assert look(store, "grid").age_seconds < 10
    lease.release()


def test_an_unreadable_lease_is_respected_until_it_is_old(store: Store, age: Age) -> None:
    store.write_bytes(LEASE, b'{"version": 9}')
    with pytest.raises(InUse, match="cannot read"):
        Lease.acquire(store, "grid")
    age(store, LEASE, 61)
    Lease.acquire(store, "grid").release()
