"""A real S3-compatible server for tests (moto's), as a process of its own on loopback.

Run as a program it serves moto's application with what an S3 has beyond it: a conditional write is one step, whatever
other writes arrive (moto checks and writes without a lock). While the file that it is given exists, it answers every
request with 503 Slow Down, as S3 does under load.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import Request, urlopen

_AGE = "/tests-age"
ACCESS_KEY, SECRET_KEY = "AKIDGRIDLAWTESTS", "gridlaw-tests-secret-8c1d"


class S3Server:
    """``start``, then ``environment`` for the processes that use it. ``stop`` forgets everything it kept."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory(prefix="gridlaw-s3-")
        self._busy = Path(self._folder.name) / "busy"
        self._log = Path(self._folder.name) / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._num_buckets = 0

    @property
    def environment(self) -> dict[str, str]:
        """The standard variables of AWS's own tools, and no files of the user's."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }

    def start(self) -> None:
        command = [sys.executable, __file__, str(self.port), str(self._busy)]
        with open(self._log, "ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.05)
        raise AssertionError(self._log.read_text())

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._folder.cleanup()

    def client(self) -> Any:
        """Of boto3, with this server's key."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )

    def new_bucket(self) -> str:
        """Make an empty bucket; returns its name."""
        self._num_buckets += 1
        name = f"bucket-{self._num_buckets}"
        self.client().create_bucket(Bucket=name)
        return name

    def age(self, bucket: str, key: str, seconds: float) -> None:
        """Let an object have been written so many seconds ago, by the server's clock."""
        request = Request(f"{self.environment['AWS_ENDPOINT_URL']}{_AGE}/{seconds}/{bucket}/{key}", method="POST")
        with urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    @contextmanager
    def strict(self) -> Iterator[None]:
        """Inside, keys and rights are checked: only users of ``new_user`` get in."""
        self._check_rights_after(0)
        try:
            yield
        finally:
            self._check_rights_after(10**9)

    def new_user(self, name: str, actions: list[str]) -> tuple[str, str]:
        """Key and secret of a user with these rights on everything."""
        self._check_rights_after(10**9)
        import boto3

        iam = boto3.client(
            "iam",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )
        iam.create_user(UserName=name)
        policy = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}],
        }
        iam.put_user_policy(UserName=name, PolicyName="rights", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        self._check_rights_after(0)
        return key["AccessKeyId"], key["SecretAccessKey"]

    def _check_rights_after(self, num_requests: int) -> None:
        address = f"{self.environment['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
        request = Request(address, data=str(num_requests).encode(), headers={"Content-Type": "text/plain"})
        with urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Inside, every request is answered with 503."""
        self._busy.touch()
        try:
            yield
        finally:
            self._busy.unlink()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Inside, nothing is answered at all."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def one_write_at_a_time(application: Application, busy: Path) -> Application:
    """Bodies are read before the lock is taken, so that a client that stalls holds up nobody."""
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if busy.exists():
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
        if environ["PATH_INFO"].startswith(_AGE):
            _set_age(environ["PATH_INFO"])
            start_response("200 OK", [("Content-Length", "0")])
            return [b""]
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return application(environ, start_response)
        environ["wsgi.input"] = io.BytesIO(_body(environ))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        with lock:
            return application(environ, start_response)

    return serve


def _body(environ: dict[str, Any]) -> bytes:
    if environ.get("wsgi.input_terminated"):  # chunked
        body: bytes = environ["wsgi.input"].read()
        environ["CONTENT_LENGTH"] = str(len(body))
        return body
    read: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return read


def _set_age(path: str) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.core.utils import utcnow
    from moto.s3.models import s3_backends

    seconds, bucket, key = unquote(path).removeprefix(_AGE + "/").split("/", 2)
    written = utcnow() - timedelta(seconds=float(seconds))
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys[key].last_modified = written


def serve() -> None:
    """The program: PORT BUSY_FILE."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    class Quiet(MotoRequestHandler):
        def log_request(self, *arguments: Any) -> None:
            """Failures alone are worth a line."""

    port, busy = int(sys.argv[1]), Path(sys.argv[2])
    os.environ["MOTO_PORT"] = str(port)
    application = one_write_at_a_time(DomainDispatcherApplication(create_backend_app), busy)
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=Quiet)


if __name__ == "__main__":
    serve()
