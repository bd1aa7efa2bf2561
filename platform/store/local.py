"""A store in a folder of this machine, or of a network mount that several hosts share.

Concurrency. Every write goes to a temporary file in the same folder, is flushed to the disk and renamed: readers and
crashes see the old content or the new one, never a part. ``create`` links the finished temporary file to its name,
which fails if the name exists: like O_EXCL, but the winner's content is complete at once. ``replace_if`` and
``touch_if`` compare and change under a lock (``flock``) on a file beside the object, which the kernel frees when its
holder dies.

Ages are read from the files' own times against a probe file written now, so that on a network mount both come from the
server's clock.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gridlaw.platform.errors import BadInput, Surroundings

TEMPORARY_PREFIX = ".part-"
MARKER = ".gridlaw-store"
"""A file in every store's root. Without it a folder is not the store, even if it is there: an unmounted disk leaves an
empty folder behind, and work must not start anew in it."""
_LOCK_SUFFIX = ".lock"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


class LocalStore:
    """A folder that holds everything of its experiments: data, attempts, leases, progress, and by default the ledger.

    root: the folder. create: make it if missing, and check that it can be written.
    """

    def __init__(self, root: str | Path, *, create: bool = True) -> None:
        self.root = Path(root).expanduser().absolute()
        _refuse_file(self.root)
        self._was_there, self._marked = create, False
        if create:
            with self._explained("make", self.root):
                self.root.mkdir(parents=True, exist_ok=True)
            self.check_writable()
            if is_gone(self.root):
                self.create(MARKER, b"A store of gridlaw. Without this file the store counts as gone.\n")
        self._was_there, self._marked = self.root.is_dir(), (self.root / MARKER).exists()

    @property
    def address(self) -> str:
        """The folder's absolute path, links resolved: two spellings of one folder are one store."""
        return str(self.root.resolve())

    def path(self, name: str) -> Path:
        """Where an object lies. Names that leave the store are our own bugs."""
        inside = bool(name) and not name.startswith("/") and ".." not in name.split("/")
        assert inside, f"not a name inside the store: {name!r}"
        return self.root / name

    def url(self, name: str) -> str:
        return str(self.path(name))

    def check_writable(self) -> None:
        probe = f"{TEMPORARY_PREFIX}probe-{os.getpid()}-{secrets.token_hex(4)}"
        self.write_bytes(probe, b"probe")
        with self._explained("read", self.path(probe)):
            same = self.path(probe).read_bytes() == b"probe"
        assert same, f"the store {self.root} gave back other bytes than were written"
        self.delete(probe)

    def write_bytes(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """durable: flush to the disk; without it the object is still whole or absent, but a power cut may lose it."""
        path = self.path(name)
        with self._explained("write", path):
            temporary = self._write_temporary(path, data, durable=durable)
            try:
                os.replace(temporary, path)
            except BaseException:
                _remove_quietly(temporary)
                raise
            if durable:
                _sync_folder(path.parent)

    def write_text(self, name: str, text: str) -> None:
        """``write_bytes`` of UTF-8 text."""
        self.write_bytes(name, text.encode())

    def read_bytes(self, name: str) -> bytes:
        path = self.path(name)
        with self._explained("read", path):
            return path.read_bytes()

    def read_text(self, name: str) -> str:
        """``read_bytes`` as UTF-8 text."""
        return self.read_bytes(name).decode()

    def create(self, name: str, data: bytes) -> bool:
        path = self.path(name)
        with self._explained("write", path):
            temporary = self._write_temporary(path, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}:
                    raise
                return _create_without_links(path, data)  # some network filesystems know no hard links
            finally:
                _remove_quietly(temporary)
            _sync_folder(path.parent)
            return True

    def replace_if(self, name: str, data: bytes | None, *, expected: bytes) -> bool:
        path = self.path(name)
        with self._locked(path):
            if _content(path) != expected:
                return False
            if data is None:
                self.delete(name)
            else:
                self.write_bytes(name, data)
            return True

    def touch_if(self, name: str, *, expected: bytes) -> bool:
        path = self.path(name)
        with self._locked(path), self._explained("touch", path):
            if _content(path) != expected:
                return False
            os.utime(path)
            return True

    def age_seconds(self, name: str) -> float:
        path = self.path(name)
        with self._explained("read", path):
            modified = path.stat().st_mtime
        return max(0.0, self._now(path.parent) - modified)

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def list(self, prefix: str = "") -> list[str]:
        start = self.path(prefix) if prefix else self.root
        names = []
        for folder, _, files in os.walk(start):
            for file in files:
                if not file.startswith((TEMPORARY_PREFIX, MARKER)) and not file.endswith(_LOCK_SUFFIX):
                    names.append((Path(folder) / file).relative_to(self.root).as_posix())
        return sorted(names)

    def versions(self, prefix: str = "") -> dict[str, tuple[int, str]]:
        found = {}
        for name in self.list(prefix):
            with suppress(FileNotFoundError):  # removed meanwhile
                status = self.path(name).stat()
                found[name] = (status.st_size, f"{status.st_mtime_ns}-{status.st_ino}")
        return found

    def delete(self, name: str) -> None:
        path = self.path(name)
        with self._explained("delete", path), suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def delete_objects(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.path(name)
            with self._explained("delete", path), suppress(FileNotFoundError):
                path.unlink()

    def checksum(self, name: str) -> str:
        path = self.path(name)
        with self._explained("read", path), path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def fault(self, name: str, *, num_bytes: int, sha256: str) -> str | None:
        path = self.path(name)
        if not path.is_file():
            return "it is missing"
        size = path.stat().st_size
        if size != num_bytes:
            return f"it has {size} bytes instead of {num_bytes}"
        return None if self.checksum(name) == sha256 else "its content does not match its checksum"

    def upload(self, path: Path, name: str) -> None:
        target = self.path(name)
        with self._explained("write", target):
            self._require_root()
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-{target.name}"[:250]
            try:
                shutil.copyfile(path, temporary)
                os.replace(temporary, target)
            finally:
                _remove_quietly(temporary)

    def download(self, name: str, path: Path) -> None:
        with self._explained("read", self.path(name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.path(name), path)

    def free_bytes(self) -> int | None:
        with self._explained("look at", self.root):
            return shutil.disk_usage(self.root).free

    def folder(self, name: str) -> Path:
        path = self.path(name)
        self._require_root()
        with self._explained("make", path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def name_of(self, path: str | Path) -> str:
        """The name of a file or folder inside the store, for tags; ``ValueError`` if it lies elsewhere."""
        return Path(path).resolve().relative_to(self.root.resolve()).as_posix()

    def remove_leftovers(self, *, older_than_seconds: float = 3600.0) -> int:
        """Delete temporary files that killed writers left behind; returns how many. Never fails."""
        limit, num_removed = time.time() - older_than_seconds, 0
        for folder, _, files in os.walk(self.root):
            for file in files:
                path = Path(folder) / file
                with suppress(OSError):
                    if file.startswith(TEMPORARY_PREFIX) and path.stat().st_mtime < limit:
                        path.unlink()
                        num_removed += 1
        return num_removed

    def _write_temporary(self, path: Path, data: bytes, *, durable: bool = True) -> Path:
        """The data on disk in a fresh file beside ``path``; a write that fails leaves nothing behind."""
        self._require_root()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-{path.name}"[:250]
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
        except BaseException:
            _remove_quietly(temporary)
            raise
        return temporary

    def _require_root(self) -> None:
        """A store that vanished must not be made again, empty, by the next write: a mount may be missing."""
        if not self.root.is_dir() or (self._marked and is_gone(self.root)):
            raise Surroundings(gone_message(self.root))

    def _now(self, folder: Path) -> float:
        """The clock that stamps this folder's files; on a full disk, this host's."""
        probe = folder / f"{TEMPORARY_PREFIX}clock-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            probe.touch(exist_ok=False)
            return probe.stat().st_mtime
        except OSError:
            return time.time()
        finally:
            _remove_quietly(probe)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        self._require_root()
        with self._explained("lock", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path.with_name(path.name + _LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with self._explained("lock", path):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _explained(self, verb: str, path: Path) -> Iterator[None]:
        """Turn the operating system's errors into one message; a missing object stays ``FileNotFoundError``."""
        try:
            yield
        except FileNotFoundError:
            if self._was_there:
                self._require_root()
            raise
        except OSError as error:
            raise explain(error, f"cannot {verb} {path}") from error


def is_gone(address: str | Path) -> bool:
    """Whether a store that was opened for writing before is not there any more; False for what is no folder."""
    return "://" not in str(address) and not (Path(address) / MARKER).exists()


def gone_message(root: str | Path) -> str:
    """What to tell of a store that vanished."""
    return (
        f"the store {root} is gone (its folder was removed, or a mount is missing). "
        "Bring it back, then run again: what is done stays done"
    )


def _refuse_file(root: Path) -> None:
    """``BadInput`` where the store's folder could never be made, because the path or a part of it is a file."""
    for path in (root, *root.parents):
        if os.path.lexists(path) and not os.path.isdir(path):
            hint = f"{path} is there and is no folder: move it, or name another one"
            raise BadInput("run.store", seen=str(root), allowed="a folder", hint=hint)


def explain(error: OSError, what: str) -> Surroundings:
    """One message for a failed disk operation: what failed, why, the next step."""
    if error.errno in _FULL:
        return Surroundings(f"{what}: the disk is full. Nothing was damaged; make room, then run again")
    if error.errno in _FORBIDDEN:
        return Surroundings(f"{what}: {error.strerror}. Make it writable, or give another folder as run.store")
    if error.errno in {errno.ENOSYS, errno.ENOLCK}:
        return Surroundings(f"{what}: this filesystem has no file locks. Mount it with them, or change run.store")
    return Surroundings(f"{what}: {error.strerror or error}. Mend the store, then run again: what is done stays done")


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _create_without_links(path: Path, data: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


def _remove_quietly(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; filesystems that cannot sync a folder are left as they are."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
