"""A store in an S3 bucket, under a prefix: AWS or anything that speaks S3 with conditional writes.

Address: ``s3://BUCKET/PREFIX``. Credentials, region and endpoint come from the environment and the files of AWS's own
tools (``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``, ``AWS_ENDPOINT_URL`` …) or from the machine's role; they are in no grid
file, tag or message of ours.

Why boto3: AWS keeps it, its clients may be shared by threads, it is what MLflow uses for artifacts in S3, and it hands
conditional writes through, on which the lease rests. (s3fs sits on an asynchronous client that pins botocore, and
caches listings.)

Concurrency. A put is atomic, large objects too (an upload in parts appears when it is complete). ``create`` is a put
with If-None-Match, ``replace_if`` and ``touch_if`` are puts with If-Match on the version that was compared. A repeated
request may find its own first attempt: each conditional put carries a mark of its own in the object's metadata, by
which a refused writer sees that it was the one. Removal under a condition is the put of a tombstone, because S3 servers
differ in conditional deletes; a tombstone counts as absent everywhere. Ages compare two times of the server's clock.

Transient failures (no connection, 5xx, throttling) are tried again by botocore and then by us, for ``PATIENCE_SECONDS``
in all; calls on which a lease depends give up sooner, well within the time after which others may take it over.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from gridlaw.platform.addresses import split_address
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.store.local import TEMPORARY_PREFIX, explain
from gridlaw.platform.store.s3_trouble import Trouble, diagnose

Result = TypeVar("Result")

PATIENCE_SECONDS = 60.0
_LEASE_PATIENCE_SECONDS = 10.0
_LEASE_READ_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.5
_MARK, _DELETED = "gridlaw-mark", "gridlaw-deleted"
_READ_AT_ONCE = 8 * 2**20
_AT_ONCE = 1000  # keys of one listing or deletion: S3's limit
_TURNS = 100  # of a conditional change that others get in the way of
_AGAIN = "Mend that, then run again: what is done stays done"


def parse_address(address: str) -> tuple[str, str]:
    """(bucket, prefix) of ``s3://BUCKET/PREFIX``; ``BadInput`` that repeats nothing secret."""
    authority = address.removeprefix("s3://").partition("/")[0]
    if set("@:") & set(authority) or set("?#") & set(address):
        raise BadInput(
            "run.store",
            seen="an s3:// address with credentials or options in it",
            allowed="s3://BUCKET/PREFIX",
            hint="Credentials and endpoint come from the environment: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL",
        )
    parts = split_address("run.store", address, allowed="s3://BUCKET/PREFIX")
    prefix = "/".join(part for part in parts.path.split("/") if part)
    if not parts.netloc or ".." in prefix.split("/"):
        raise BadInput("run.store", seen=address, allowed="s3://BUCKET/PREFIX")
    return parts.netloc, prefix


class S3Store:
    """Objects under a prefix of a bucket. Making one talks to nobody; ``check_writable`` and ``check_readable`` do."""

    def __init__(self, address: str, *, patience_seconds: float | None = None) -> None:
        self.bucket, self.prefix = parse_address(address)
        self._patience_seconds = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        self._session: Any = None
        self._clients: dict[bool, Any] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Without a slash at its end: two spellings of one prefix are one store."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def path(self, name: str) -> Path | None:
        """None: nothing here is a plain file."""
        return None

    def folder(self, name: str) -> Path | None:
        return None

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    # Checks at the start

    def check_readable(self) -> None:
        """One listing; ``BadInput`` that says what is wrong with package, credentials, endpoint, bucket or rights."""
        self._checked("list", lambda client: client.list_objects_v2(**self._place(self._key("leases/")), MaxKeys=1))

    def check_writable(self) -> None:
        """Write, read back and remove a probe, and see that conditional writes are honoured; ``BadInput`` if not."""
        name = f"{TEMPORARY_PREFIX}probe-{secrets.token_hex(8)}"
        key = {"Bucket": self.bucket, "Key": self._key(name)}
        self._checked("write to", lambda client: client.put_object(**key, Body=b"probe"))
        read = self._checked("read from", lambda client: client.get_object(**key)["Body"].read())
        assert read == b"probe", f"the store {self.address} gave back other bytes than were written"
        refused = not self.create(name, b"again") and not self.replace_if(name, b"again", expected=b"other")
        overwritten = self._put_if(name, b"again", IfMatch='"00000000000000000000000000000000"')
        self._checked("delete from", lambda client: client.delete_object(**key))
        if overwritten or not refused:
            raise BadInput(
                "run.store",
                seen=self.address,
                allowed="an S3 server that honours If-None-Match and If-Match on writes",
                hint="Without them two drivers of one experiment could not be told apart",
            )

    def _checked(self, verb: str, call: Callable[[Any], Result]) -> Result:
        try:
            return self._retried(call, quick=True)
        except Exception as error:
            trouble = diagnose(error)
            if trouble is None:
                raise
            raise BadInput(
                "run.store",
                seen=self.address,
                allowed="a bucket that can be listed, read and written",
                hint=f"Cannot {verb} it: {trouble.reason}. {trouble.next_step}",
            ) from error

    # Objects

    def write_bytes(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """durable: of no consequence, S3 acknowledges only what it keeps."""
        self._call(f"write {name}", lambda client: client.put_object(**self._object(name), Body=data))

    def read_bytes(self, name: str) -> bytes:
        return self._read(name)[0]

    def create(self, name: str, data: bytes) -> bool:
        for _ in range(_TURNS):
            if self._put_if(name, data, IfNoneMatch="*"):
                return True
            head = self._head(name, quick=True)
            if head is not None and _DELETED not in head["Metadata"]:
                return False
            if head is not None and self._put_if(name, data, IfMatch=head["ETag"]):
                return True
        raise Surroundings(f"{self.url(name)} is made and removed again and again by others")

    def replace_if(self, name: str, data: bytes | None, *, expected: bytes) -> bool:
        for _ in range(_TURNS):
            try:
                content, version = self._read(name, quick=True)
            except FileNotFoundError:
                return False
            if content != expected:
                return False
            metadata = {_DELETED: "1"} if data is None else {}
            if self._put_if(name, data or b"", metadata=metadata, IfMatch=version):
                return True
        raise Surroundings(f"{self.url(name)} is changed again and again by others")

    def touch_if(self, name: str, *, expected: bytes) -> bool:
        return self.replace_if(name, expected, expected=expected)

    def age_seconds(self, name: str) -> float:
        head = self._head(name, quick=True)
        if head is None or _DELETED in head["Metadata"]:
            raise FileNotFoundError(self.url(name))
        headers: Mapping[str, str] = head["ResponseMetadata"]["HTTPHeaders"]
        now = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else time.time()
        return max(0.0, float(now - head["LastModified"].timestamp()))

    def exists(self, name: str) -> bool:
        head = self._head(name)
        if head is not None:
            return _DELETED not in head["Metadata"]
        found = self._call(
            f"look for {name}",
            lambda client: client.list_objects_v2(**self._place(self._key(name) + "/"), MaxKeys=1),
        )
        return bool(found.get("KeyCount"))

    def list(self, prefix: str = "") -> list[str]:
        return [*self.versions(prefix)]

    def versions(self, prefix: str = "") -> dict[str, tuple[int, str]]:
        start = self._key(prefix) + "/" if prefix else self._key("")
        found = {}
        for entry in self._list(start):
            name = entry["Key"][len(self._key("")) :]
            if name.rpartition("/")[2].startswith(TEMPORARY_PREFIX) or name.endswith("/"):
                continue
            if entry["Size"] == 0 and not self.exists(name):
                continue  # a tombstone
            found[name] = (int(entry["Size"]), str(entry["ETag"]))
        return dict(sorted(found.items()))

    def delete(self, name: str) -> None:
        start = len(self._key(""))
        self.delete_objects([name, *(entry["Key"][start:] for entry in self._list(self._key(name) + "/"))])

    def delete_objects(self, names: Iterable[str]) -> None:
        keys = [{"Key": self._object(name)["Key"]} for name in names]
        for start in range(0, len(keys), _AT_ONCE):
            part = {"Objects": keys[start : start + _AT_ONCE], "Quiet": True}
            answer = self._call("delete objects", partial(_delete_objects, bucket=self.bucket, objects=part))
            for refused in answer.get("Errors", []):
                raise Surroundings(f"cannot delete {refused.get('Key')}: {refused.get('Code')}. {_AGAIN}")

    def checksum(self, name: str) -> str:
        def read(client: Any) -> str:
            body, state = client.get_object(**self._object(name))["Body"], hashlib.sha256()
            for part in body.iter_chunks(2**20):
                state.update(part)
            return state.hexdigest()

        return self._call(f"read {name}", read)

    def fault(self, name: str, *, num_bytes: int, sha256: str) -> str | None:
        """By size alone: S3 keeps its objects' integrity, and a reader checks what it has fetched."""
        head = self._head(name)
        if head is None:
            return "it is missing"
        size = int(head["ContentLength"])
        return None if size == num_bytes else f"it has {size} bytes instead of {num_bytes}"

    def free_bytes(self) -> int | None:
        return None

    # Files

    def upload(self, path: Path, name: str) -> None:
        def send(client: Any) -> None:
            with open(path, "rb") as file:
                # A small file may be written to meanwhile: what goes, and its checksum, are of one moment.
                start = file.read(_READ_AT_ONCE + 1)
                if len(start) <= _READ_AT_ONCE:
                    client.put_object(**self._object(name), Body=start)
                    return
                file.seek(0)
                client.upload_fileobj(file, self.bucket, self._key(name), Config=_transfer())

        self._call(f"write {name}", send)

    def download(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-{path.name}"[:250]

        def receive(client: Any) -> None:
            with open(temporary, "wb") as file:
                client.download_fileobj(self.bucket, self._key(name), _Checked(file), Config=_transfer())

        try:
            self._call(f"read {name}", receive)
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink()

    # Calls

    def _key(self, name: str) -> str:
        inside = not name.startswith("/") and ".." not in name.split("/")
        assert inside, f"not a name inside the store: {name!r}"
        return f"{self.prefix}/{name}" if self.prefix else name

    def _object(self, name: str) -> dict[str, str]:
        assert name, f"not a name inside the store: {name!r}"
        return {"Bucket": self.bucket, "Key": self._key(name)}

    def _place(self, prefix: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Prefix": prefix}

    def _read(self, name: str, *, quick: bool = False) -> tuple[bytes, str]:
        """(content, version) in one request; a tombstone is FileNotFoundError."""

        def get(client: Any) -> tuple[bytes, str, Mapping[str, str]]:
            answer = client.get_object(**self._object(name))
            return answer["Body"].read(), answer["ETag"], answer["Metadata"]

        data, version, metadata = self._call(f"read {name}", get, quick=quick)
        if _DELETED in metadata:
            raise FileNotFoundError(self.url(name))
        return data, version

    def _head(self, name: str, *, quick: bool = False) -> Any:
        """Its headers, a tombstone's, too; None if there is none."""
        try:
            return self._call(f"look at {name}", lambda client: client.head_object(**self._object(name)), quick=quick)
        except FileNotFoundError:
            return None

    def _put_if(self, name: str, data: bytes, *, metadata: Mapping[str, str] | None = None, **condition: str) -> bool:
        """A conditional put; False if the condition does not hold (and no earlier try of this call made that so)."""
        mark = secrets.token_hex(8)
        marked = {**(metadata or {}), _MARK: mark}
        while True:
            try:
                self._call(
                    f"write {name}",
                    lambda client: client.put_object(**self._object(name), Body=data, Metadata=marked, **condition),
                    quick=True,
                )
                return True
            except FileNotFoundError:
                return False  # If-Match on an object that is gone
            except _Refused as refused:
                if not refused.another_write_is_under_way:
                    head = self._head(name, quick=True)
                    return head is not None and head["Metadata"].get(_MARK) == mark
                time.sleep(0.05)

    def _list(self, prefix: str) -> Iterator[Any]:
        def ask(client: Any) -> Sequence[Any]:
            pages = client.get_paginator("list_objects_v2").paginate(
                **self._place(prefix), PaginationConfig={"PageSize": _AT_ONCE}
            )
            return [entry for page in pages for entry in page.get("Contents", [])]

        yield from self._call(f"list {prefix}", ask)

    def _call(self, what: str, call: Callable[[Any], Result], *, quick: bool = False) -> Result:
        """Every request goes through here. quick: of a lease, which must not hang."""
        try:
            return self._retried(call, quick=quick)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.address}: cannot {what}: there is no such object") from error
        except _Refused:
            raise
        except OSError as error:  # of our own disk; botocore's are told below
            trouble = diagnose(error)
            if trouble is None:
                raise explain(error, f"cannot {what}") from error
            raise self._surroundings(what, trouble) from error
        except Exception as error:
            trouble = diagnose(error)
            if trouble is None:
                raise
            raise self._surroundings(what, trouble) from error

    def _surroundings(self, what: str, trouble: Trouble) -> Surroundings:
        told = ". ".join(each for each in (trouble.reason, trouble.next_step, _AGAIN) if each)
        return Surroundings(f"the store {self.address}: cannot {what}: {told}")

    def _retried(self, call: Callable[[Any], Result], *, quick: bool) -> Result:
        patience = min(self._patience_seconds, _LEASE_PATIENCE_SECONDS) if quick else self._patience_seconds
        deadline, pause = time.monotonic() + patience, _FIRST_PAUSE_SECONDS
        while True:
            try:
                return call(self._client(quick=quick))
            except Exception as error:
                trouble = diagnose(error)
                if trouble is not None and trouble.missing_object:
                    raise FileNotFoundError from error
                if trouble is not None and trouble.refused:
                    raise _Refused(another_write_is_under_way=trouble.conflict) from error
                if trouble is None or not trouble.may_pass or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _client(self, *, quick: bool) -> Any:
        with self._lock:
            if self._session is None:
                self._session = _new_session()
            if quick not in self._clients:
                self._clients[quick] = _new_client(self._session, quick=quick)
            return self._clients[quick]


def _delete_objects(client: Any, *, bucket: str, objects: Mapping[str, Any]) -> Any:
    return client.delete_objects(Bucket=bucket, Delete=objects)


class _Refused(Exception):
    """A condition of a put does not hold, or another conditional put of this object is under way."""

    def __init__(self, *, another_write_is_under_way: bool) -> None:
        super().__init__()
        self.another_write_is_under_way = another_write_is_under_way


class _Checked:
    """A file to download into: an error of our own disk is told from one of the network."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise explain(error, f"cannot write {self._file.name} in the cache") from error

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _new_session() -> Any:
    """One of each store's own: boto3's default session is not for threads, and keeps the first credentials it saw."""
    try:
        import boto3
    except ImportError as error:
        raise BadInput(
            "run.store",
            seen="an s3:// address",
            allowed="a folder, as the package boto3 is not installed",
            hint="Install it on every node: pip install 'gridlaw[s3]'",
        ) from error
    return boto3.session.Session()


def _new_client(session: Any, *, quick: bool) -> Any:
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": 2 if quick else 4},
        connect_timeout=3 if quick else 10,
        read_timeout=_LEASE_READ_SECONDS if quick else 60,
        max_pool_connections=32,
    )
    return session.client("s3", config=config)


def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(multipart_threshold=64 * 2**20, multipart_chunksize=32 * 2**20, max_concurrency=4)
