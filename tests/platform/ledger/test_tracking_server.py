"""A real ``mlflow server`` that goes away, comes back, and loses answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from gridlaw.platform.ledger.journal import Journal
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.sender import flush_journal
from gridlaw.platform.ledger.tracking import TrackingOutage


class Server(Protocol):
    uri: str
    port: int
    start: Callable[[], None]
    stop: Callable[[], None]


class LossyProxy:
    """Hands requests to the server; while ``lose`` is above 0, takes the server's answer and hangs up instead."""

    def __init__(self, port: int) -> None:
        self.lose = 0
        self.num_lost = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            upward = threading.Thread(target=self._copy, args=(client, server), daemon=True)
            upward.start()
            while data := self._receive(server):
                if self.lose > 0:
                    self.lose -= 1
                    self.num_lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := self._receive(source):
                target.sendall(data)

    def _receive(self, source: socket.socket) -> bytes:
        try:
            return source.recv(65536)
        except OSError:
            return b""


@pytest.fixture
def proxy(server: Server) -> Iterator[LossyProxy]:
    lossy = LossyProxy(server.port)
    yield lossy
    lossy.close()


def history(ledger: Ledger, run_id: str) -> list[tuple[int, float]]:
    found = ledger.tracking.client.get_metric_history(run_id, "loss")
    return [(metric.step, metric.value) for metric in found]


def expected(num_steps: int) -> list[tuple[int, float]]:
    return [(step, 1 / step) for step in range(1, num_steps + 1)]


def journal_of(tmp_path: Path, ledger: Ledger, run_id: str) -> Journal:
    return Journal(
        tmp_path / run_id, run_id, tracking_uri=ledger.tracking_uri, system_metrics_seconds=None, send_seconds=0.1
    )


def test_the_ledger_works_through_a_server(server: Server) -> None:
    ledger = Ledger.open(server.uri, "through a server", "/store", create=True)
    submission = ledger.start_submission(note="# Grid")
    run_id = ledger.start_run(
        "point", name="p", fingerprint="f", parent_id=submission, tags={"scale": "S1"}, identity={"lr": 1}
    )
    ledger.log_table(run_id, "tables/laws.json", [{"E": 1.5}])
    ledger.finish_run(run_id, metrics={"loss": 1.5}, step=3)
    found = ledger.find_runs("point", tags={"scale": "S1"})
    assert [(record.run_id, record.finished, record.metrics) for record in found] == [(run_id, True, {"loss": 1.5})]
    assert ledger.identity(run_id) == {"lr": 1}
    assert ledger.read_text(run_id, "absent.txt") is None
    assert ledger.read_json(run_id, "tables/laws.json")["data"] == [[1.5]]
    other = ledger.start_run("point", name="without", fingerprint="f")
    tables = ledger.read_jsons([run_id, other], "tables/laws.json")
    assert tables[run_id]["data"] == [[1.5]] and tables[other] is None
    ledger.log_json(other, "top.json", {"a": 1})
    assert ledger.read_jsons([run_id, other], "top.json") == {run_id: None, other: {"a": 1}}


def test_lost_answers_double_nothing(server: Server, proxy: LossyProxy, tmp_path: Path) -> None:
    ledger = Ledger.open(proxy.uri, "lossy", "/store", create=True)
    proxy.lose = 1
    run_id = ledger.start_run("point", name="p", fingerprint="f")
    assert proxy.num_lost == 1
    assert [record.run_id for record in ledger.find_runs()] == [run_id]
    proxy.lose = 1
    ledger.log_results(run_id, metrics={"result": 2.0}, step=9)
    assert len(ledger.tracking.client.get_metric_history(run_id, "result")) == 1
    journal = journal_of(tmp_path, ledger, run_id)
    for step in range(1, 101):
        if step % 25 == 0:
            proxy.lose = 1
            time.sleep(0.3)
        journal.log({"loss": 1 / step}, step)
    proxy.lose = 0
    assert journal.close().complete
    assert proxy.num_lost >= 4
    assert history(ledger, run_id) == expected(100)


def test_tracking_outage_stops_no_training_and_loses_nothing(server: Server, tmp_path: Path) -> None:
    """Lightning #12833: a tracking outage kills training."""
    ledger = Ledger.open(server.uri, "outage", "/store", create=True, patience_seconds=1)
    lasting, ending = (ledger.start_run("trunk", name=name, fingerprint="f") for name in ("lasting", "ending"))
    journals = {run_id: journal_of(tmp_path, ledger, run_id) for run_id in (lasting, ending)}

    def train(run_id: str, first: int, last: int) -> float:
        slowest = 0.0
        for step in range(first, last + 1):
            begin = time.thread_time()
            journals[run_id].log({"loss": 1 / step}, step)
            slowest = max(slowest, time.thread_time() - begin)
        return slowest

    for run_id in journals:
        train(run_id, 1, 50)
    deadline = time.monotonic() + 60
    while len(history(ledger, lasting)) < 50 or len(history(ledger, ending)) < 50:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    server.stop()
    assert train(lasting, 51, 100) < 0.1
    train(ending, 51, 100)
    begin = time.monotonic()
    status = journals[ending].close(timeout_seconds=1.5)  # stopped for good, as far as this run can tell
    assert time.monotonic() - begin < 10
    assert status.pending_bytes > 0
    assert "cannot" in status.failure
    assert not flush_journal(journals[ending].path, ending, ledger.tracking, timeout_seconds=0.5).complete
    assert not ledger.describe(lasting, "# away"), "a description is not worth waiting for"
    with pytest.raises(TrackingOutage, match=f"cannot read run {lasting}"):
        ledger.read_run(lasting)
    restart = threading.Timer(1.0, server.start)
    restart.start()
    ledger.tracking.patience_seconds = 120
    ledger.set_tags(lasting, {"waited": True})
    train(lasting, 101, 120)
    assert journals[lasting].close(timeout_seconds=60).complete
    assert history(ledger, lasting) == expected(120)
    assert flush_journal(journals[ending].path, ending, ledger.tracking).num_sent == 50
    assert history(ledger, ending) == expected(100)
    restart.join()


def test_an_address_where_nobody_answers_is_said_at_once(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(TrackingOutage, match=r"127\.0\.0\.1:9 does not answer"):
        Ledger.open("http://127.0.0.1:9", "grid", "/store", create=True)
    assert time.monotonic() - begin < 20
