"""A real MLflow server for tests, which can be stopped and started again."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class Server:
    """A real ``mlflow server`` on loopback that can be stopped and started again on the same database and port."""

    def __init__(
        self,
        folder: Path,
        *,
        password: str | None = None,
        database: str | None = None,
        artifacts: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """password: of the user ``admin``; with it the server asks for a name and a password (basic authentication).

        database, artifacts: addresses of its own, sqlite and a folder by default. environment: more of it.
        """
        self.folder, self.password = folder, password
        self.database = database or f"sqlite:///{folder}/mlflow.db"
        self.artifacts = artifacts or str(folder / "artifacts")
        self._environment = dict(environment or {})
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--artifacts-destination", self.artifacts]
        if self.password is not None:
            command += ["--app-name", "basic-auth"]
        environment = os.environ | self._environment | self._authentication()
        environment["MLFLOW_BACKEND_STORE_URI"] = self.database  # it may hold a password
        environment |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with open(self.folder / "server.log", "ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + 600  # it makes its database, on a busy machine
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                assert answer.status == 200
                return
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.1)
        self.stop()
        raise AssertionError((self.folder / "server.log").read_text())

    def _authentication(self) -> dict[str, str]:
        if self.password is None:
            return {}
        settings = self.folder / "auth.ini"
        settings.write_text(
            "[mlflow]\ndefault_permission = READ\nadmin_username = admin\n"
            f"database_uri = sqlite:///{self.folder}/auth.db\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        return {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16),
        }

    def stop(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the server's own group: its workers, too
            self._process.wait()
            self._process = None
