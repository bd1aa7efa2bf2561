"""What only a store in S3 has: a server that fails, credentials, conditional writes that are repeated."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gridlaw.platform.errors import BadInput, GridlawError, Surroundings
from gridlaw.platform.store.local import TEMPORARY_PREFIX
from gridlaw.platform.store.open import open_store
from gridlaw.platform.store.s3 import S3Store, parse_address
from s3_server import SECRET_KEY, S3Server


@pytest.fixture
def store(s3: S3Server) -> S3Store:
    return S3Store(f"s3://{s3.new_bucket()}/some/prefix")


def test_addresses() -> None:
    assert parse_address("s3://bucket") == ("bucket", "")
    assert parse_address("s3://bucket//a/b/") == ("bucket", "a/b")
    for wrong in ("s3://", "s3:///prefix", "s3://bucket:9000/x", "s3://bucket/../x"):
        with pytest.raises(BadInput, match=r"s3://BUCKET/PREFIX"):
            parse_address(wrong)
    with pytest.raises(BadInput, match=r"run\.store is 'gs://…'; allowed: a folder, or s3://BUCKET/PREFIX"):
        open_store("gs://user:secret@bucket/x", create=True)


@pytest.mark.parametrize("address", ["s3://key:hushhush@bucket/x", "s3://bucket/x?endpoint=http://hushhush"])
def test_credentials_and_endpoints_in_an_address_are_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(BadInput, match="AWS_ENDPOINT_URL") as refused:
        open_store(address, create=True)
    assert "hushhush" not in str(refused.value)


def refused_at_the_start(address: str) -> str:
    """Exit code 2, one line, and nothing of the endpoint or the credentials in it."""
    messages = []
    for create in (False, True):
        with pytest.raises(BadInput) as refused:
            open_store(address, create=create)
        messages.append(str(refused.value))
    for message in messages:
        assert message.startswith(f"run.store is '{address}'; allowed: a bucket that can be listed, read and written")
        assert "\n" not in message
        for secret in (SECRET_KEY, os.environ.get("AWS_ENDPOINT_URL", "127.0.0.1"), "127.0.0.1"):
            assert secret not in message
    return messages[0]


def test_a_missing_bucket(s3: S3Server) -> None:
    assert "the bucket does not exist. Make it" in refused_at_the_start("s3://nobody-made-it/x")


def test_missing_credentials(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "no credentials. Set AWS_ACCESS_KEY_ID" in refused_at_the_start(store.address)


def test_a_wrong_endpoint(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridlaw.platform.store.s3._LEASE_PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert "no S3 server answers. Check AWS_ENDPOINT_URL" in refused_at_the_start(store.address)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9")
    assert "the address in AWS_ENDPOINT_URL is none" in refused_at_the_start(store.address)


def test_denied_access(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3.new_bucket()
    with s3.strict():  # keys are checked; this one has no rights
        assert "the credentials are not accepted (InvalidAccessKeyId)" in refused_at_the_start(f"s3://{bucket}/x")
        key, secret = s3.new_user("list-only", ["s3:ListBucket"])
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        open_store(f"s3://{bucket}/x", create=False)
        with pytest.raises(BadInput, match=r"Cannot write to it: access is denied.*s3:PutObject"):
            open_store(f"s3://{bucket}/x", create=True)
        with pytest.raises(Surroundings, match=r"cannot write y: access is denied.*run again"):
            S3Store(f"s3://{bucket}/x").write_bytes("y", b"")


def test_a_missing_package_is_named(s3: S3Server) -> None:
    source = """if True:
        import sys
        sys.modules["boto3"] = None
        from gridlaw.platform.errors import BadInput
        from gridlaw.platform.store.open import open_store
        try:
            open_store("s3://bucket/x", create=False)
        except BadInput as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert "pip install 'gridlaw[s3]'" in done.stdout, done.stderr


def test_a_short_outage_is_waited_for_and_a_long_one_is_told(store: S3Store, s3: S3Server) -> None:
    store.write_bytes("x", b"1")
    with s3.busy():
        ended = threading.Timer(2.0, lambda: None)
        impatient = S3Store(store.address, patience_seconds=0.5)
        with pytest.raises(Surroundings, match=r"cannot read x: the server is overloaded.*run again") as told:
            impatient.read_bytes("x")
        assert told.value.exit_code == 3
        result: list[bytes] = []
        reader = threading.Thread(target=lambda: result.append(store.read_bytes("x")))
        reader.start()
        ended.start()
        ended.join()
    reader.join(timeout=60)
    assert result == [b"1"]


def test_a_lease_call_gives_up_on_a_server_that_hangs(
    store: S3Store, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gridlaw.platform.store.s3._LEASE_READ_SECONDS", 0.3)
    monkeypatch.setattr("gridlaw.platform.store.s3._LEASE_PATIENCE_SECONDS", 0.5)
    store.write_bytes("x", b"1")
    started = time.monotonic()
    with s3.hanging(), pytest.raises(Surroundings, match="no S3 server answers"):
        store.touch_if("x", expected=b"1")
    assert time.monotonic() - started < 30
    patient = S3Store(store.address)
    assert patient.read_bytes("x") == b"1"


def test_a_repeated_conditional_write_finds_its_own_first_attempt(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a put is lost after the server has acted: the second try is refused, and it was us."""
    lost = [True, True]
    original = S3Store._retried

    def losing(self: S3Store, call: Any, *, quick: bool) -> Any:
        def once(client: Any) -> Any:
            answer = call(client)
            if isinstance(answer, dict) and "ETag" in answer and "ContentLength" not in answer and lost:
                lost.pop()
                call(client)  # what botocore does when the connection breaks
            return answer

        return original(self, once, quick=quick)

    monkeypatch.setattr(S3Store, "_retried", losing)
    assert store.create("lease", b"mine")
    assert len(lost) == 1
    assert store.replace_if("lease", b"next", expected=b"mine")
    assert not lost
    assert not store.create("lease", b"other")


def test_an_unconditional_server_is_refused(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.client import BaseClient

    original = BaseClient._make_api_call

    def ignore(self: Any, operation: str, arguments: dict[str, Any]) -> Any:
        return original(self, operation, {k: v for k, v in arguments.items() if k not in ("IfMatch", "IfNoneMatch")})

    monkeypatch.setattr(BaseClient, "_make_api_call", ignore)
    with pytest.raises(BadInput, match="honours If-None-Match and If-Match"):
        open_store(store.address, create=True)
    assert store.list() == []


def test_a_full_disk_under_a_download_is_told_from_the_network(store: S3Store, small_disk: Path) -> None:
    store.write_bytes("x", b"x" * 3_000_000)
    with pytest.raises(GridlawError, match=r"cannot write .*the disk is full"):
        store.download("x", small_disk / "x")
    assert not [path for path in small_disk.iterdir() if path.name.startswith(TEMPORARY_PREFIX)]


def test_many_objects_are_listed_and_deleted_in_pages(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gridlaw.platform.store.s3._AT_ONCE", 3)
    names = [f"many/{number}" for number in range(7)]
    for name in [*names, "more"]:
        store.write_bytes(name, b"x")
    assert store.list("many") == names
    store.delete("many")
    assert store.list() == ["more"]


def test_a_file_that_is_written_to_while_it_goes_up_has_a_moment_of_it_in_the_store(
    s3: S3Server, tmp_path: Path
) -> None:
    """Such as the count of executed steps: the checksum that goes along has to be of the bytes that go."""
    store, path, over = S3Store(f"s3://{s3.new_bucket()}/x"), tmp_path / "executed.count", threading.Event()
    path.write_bytes(bytes(8))

    def count() -> None:
        with path.open("r+b", buffering=0) as file:
            for number in itertools.count(1):
                if over.is_set():
                    return
                os.pwrite(file.fileno(), number.to_bytes(8, "little"), 0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        seen = []
        for _ in range(40):
            store.upload(path, "count")
            seen.append(int.from_bytes(store.read_bytes("count"), "little"))
    finally:
        over.set()
        thread.join()
    assert seen == sorted(seen) and seen[-1] > seen[0]
