"""From an address to a store: a folder of this machine, or ``s3://BUCKET/PREFIX``."""

from __future__ import annotations

from pathlib import Path

from gridlaw.platform.errors import BadInput
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.local import LocalStore
from gridlaw.platform.store.s3 import S3Store


def open_store(address: str | Path, *, create: bool) -> Store:
    """The store at an address, for a command that begins: what cannot be used is refused now.

    address: a folder, absolute or relative to the working directory; ``file://`` and a folder; ``s3://BUCKET/PREFIX``.
    create: it will be written, so a missing folder is made (a bucket never is) and a probe is written. Without it, a
    missing folder gives a store in which nothing exists.
    """
    store = _at(str(address), create=create)
    if isinstance(store, S3Store):
        store.check_readable()
        if create:
            store.check_writable()
    return store


def attach_store(address: str) -> Store:
    """The store of work that is under way, for its workers: nothing is made or checked, and an outage is one."""
    return _at(address, create=False)


def is_remote(address: str) -> bool:
    """Whether every node of a cluster can reach a store of this address."""
    return "://" in address and not address.startswith("file://")


def _at(address: str, *, create: bool) -> LocalStore | S3Store:
    folder = address.removeprefix("file://")
    if "://" not in folder:
        return LocalStore(folder, create=create)
    if not folder.startswith("s3://"):
        scheme = folder.partition("://")[0]  # no more of it: it may hold a password
        raise BadInput("run.store", seen=f"{scheme}://…", allowed="a folder, or s3://BUCKET/PREFIX")
    return S3Store(folder)
