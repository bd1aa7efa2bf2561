"""A real PostgreSQL server of one test session: on loopback, on a free port, in a temporary folder, with a password.

It can be killed and started again on the same data and port. PostgreSQL refuses to run as root, so under root it runs
as another user, in a folder of that user's (pytest's own temporary folders are closed to others).
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

USER = "gridlaw"
_START_SECONDS = 60


class Postgres:
    """``start`` makes the data folder the first time; ``remove`` ends the server and deletes everything.

    After ``start``: ``uri`` of the database that is there from the beginning, ``database(NAME)`` makes another one.
    """

    def __init__(self) -> None:
        self.password = secrets.token_hex(12)
        self.port = _free_port()
        self._binaries = _binaries()
        self._account = _account()
        self.folder = Path(tempfile.mkdtemp(prefix="gridlaw-postgres-"))
        self._log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """For SQLAlchemy, with the password in it."""
        return self._uri("postgres")

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        assert self._process is not None, "not started"
        return self._process.pid

    def database(self, name: str) -> str:
        """Make an empty database; returns its URI."""
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self._uri(name)

    def connect(self, database: str = "postgres") -> Any:
        """An open connection of psycopg that commits each statement."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname=database, autocommit=True,
            connect_timeout=5,
        )  # fmt: skip

    def start(self) -> None:
        """Start, again after ``stop`` or ``kill``; returns when it answers."""
        assert self._process is None, "already started"
        if not (self.folder / "data").exists():
            self._initialise()
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        # A test's database need not survive the machine, only its processes.
        for setting in ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=50"):
            command += ["-c", setting]
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with open(self._log, "ab") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output, **self._account)
            while process.poll() is None and time.monotonic() < deadline:
                with suppress(Exception), self.connect():
                    self._process = process
                    return
                time.sleep(0.05)
            # After a kill the old server's children may hold its memory for a moment more: try again.
            process.kill()
            process.wait()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.2)

    def stop(self) -> None:
        """An orderly end that waits for nobody's transaction."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As if its machine had gone: kill -9. Its children notice within moments and end."""
        self._end(signal.SIGKILL)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(timeout=60)
        self._process = None

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if "user" in self._account:
            for path in (self.folder, secret):
                os.chown(path, self._account["user"], self._account["group"])
        command = [str(self._binaries / "initdb"), "-D", str(self.folder / "data"), "-U", USER, "--no-sync"]
        command += ["--auth=scram-sha-256", "--pwfile", str(secret), "--encoding=UTF8", "--locale=C"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, **self._account)
        assert done.returncode == 0, done.stdout + done.stderr
        secret.unlink()

    def _uri(self, database: str) -> str:
        return f"postgresql+psycopg://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"


def _binaries() -> Path:
    """Where PostgreSQL's programs are: Debian keeps the server's out of the path."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    found = [folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()]
    assert found, "no PostgreSQL server on this machine: apt-get install postgresql"
    return found[0]


def _account() -> dict[str, Any]:
    """Under root, the arguments that make a process another user's."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}
    raise AssertionError("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
