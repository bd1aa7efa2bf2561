"""What every store offers: named objects written whole or not at all, and folders for attempts and prepared data.

Names are relative, with forward slashes (``leases/paper.json``); they mean the same in a folder and in a bucket. The
ledger keeps such names, never absolute paths, so that a store can be read from several hosts that mount it at different
places.

Not here: what is inside a checkpoint (``modules/training``), and which runs exist (``platform/ledger``).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote


class Store(Protocol):
    """Objects by name. Disk and network failures are ``Surroundings``; a missing object is ``FileNotFoundError``."""

    @property
    def address(self) -> str:
        """Where the store is, as people write it and as the experiment's tag records it."""

    def path(self, name: str) -> Path | None:
        """Where an object or folder lies as plain files; None where a store has no plain files."""

    def folder(self, name: str) -> Path | None:
        """As ``path``, for a folder that is made if it is missing; in a store that vanished nothing is made."""

    def url(self, name: str) -> str:
        """An object's full address, for people."""

    def check_writable(self) -> None:
        """Write, read back and remove a probe; an error that tells what to do if that fails."""

    def write_bytes(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace the object as a whole: a reader or a crash sees the old content or the new one."""

    def read_bytes(self, name: str) -> bytes:
        """Whole content; ``FileNotFoundError`` if there is no such object."""

    def create(self, name: str, data: bytes) -> bool:
        """Make the object if there is none; False if there is one. Of several callers exactly one gets True."""

    def replace_if(self, name: str, data: bytes | None, *, expected: bytes) -> bool:
        """Replace the object (None: delete it) only while its content is ``expected``; False otherwise. Atomic."""

    def touch_if(self, name: str, *, expected: bytes) -> bool:
        """Renew the object's age while its content is ``expected``; needs no space on a full disk."""

    def age_seconds(self, name: str) -> float:
        """Seconds since the object was written or touched, by the store's own clock: hosts' clocks may differ."""

    def exists(self, name: str) -> bool:
        """Whether there is an object or a folder of this name."""

    def list(self, prefix: str = "") -> list[str]:
        """Names of all objects under a folder, sorted; temporary files are left out."""

    def versions(self, prefix: str = "") -> dict[str, tuple[int, str]]:
        """What ``list`` gives, with each object's size in bytes and a text that changes with its content."""

    def delete(self, name: str) -> None:
        """Remove an object or a folder with what is in it; nothing happens if there is none."""

    def delete_objects(self, names: Iterable[str]) -> None:
        """Remove objects by their full names, many at once; those that are gone are passed over."""

    def checksum(self, name: str) -> str:
        """SHA-256 of the object, in hex."""

    def fault(self, name: str, *, num_bytes: int, sha256: str) -> str | None:
        """Why an object is not what was written, None if it is, as far as can be told without moving it."""

    def upload(self, path: Path, name: str) -> None:
        """Make a local file an object, whole or not at all."""

    def download(self, name: str, path: Path) -> None:
        """Make an object a local file, whole or not at all; folders are made. ``FileNotFoundError`` if it is none."""

    def free_bytes(self) -> int | None:
        """Space left, or None where the store knows no limit."""


STOP_FILE = "stop"
"""Its appearance in an attempt's folder asks the task that works there to save and leave."""


def attempt_name(run_id: str) -> str:
    """Folder of one run's checkpoints and journal. By run id: a run deleted in the MLflow UI really starts anew."""
    return f"attempts/{run_id}"


def data_name(fingerprint: str) -> str:
    """Folder of prepared data, by content: shared by all experiments of a store."""
    return f"data/{fingerprint}"


def examples_name(fingerprint: str) -> str:
    """Folder of an evaluation's examples, by content: shared by all experiments of a store."""
    return f"examples/{fingerprint}"


def experiment_name(experiment: str) -> str:
    """Folder-safe form of an experiment's name: one level, no separators, no leading dot."""
    quoted = quote(experiment, safe=" ()+,=@")
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted
