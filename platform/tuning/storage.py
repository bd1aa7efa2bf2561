"""Where studies are kept: Optuna's own databases and journal files, by address.

Concurrency. One driver writes, under the experiment's lease; readers (status, the dashboard) may look at any time. A
database that goes away is ``Surroundings``: the driver asks again once it is back.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridlaw.platform.addresses import redacted, split_address
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.ledger.tracking import sqlite_path

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

FILE = "optuna.db"
ALLOWED = "sqlite:///PATH, postgresql+psycopg://…, mysql+DRIVER://…, or journal:///PATH"
_SCHEMES = ("sqlite", "postgresql", "mysql", "journal")
_CONNECT_SECONDS = 5
_SQLITE_BUSY_SECONDS = 30


def default_storage(store_address: str) -> str:
    """A sqlite database beside the store's objects; ``BadInput`` for a store that is no folder."""
    if "://" in store_address:
        raise BadInput(
            "run.storage",
            allowed=f"the storage of the study beside a store at {redacted(store_address)}: {ALLOWED}",
            hint="A database cannot lie in a bucket",
        )
    return f"sqlite:///{Path(store_address).expanduser().absolute()}/{FILE}"


def resolve_storage(url: str) -> str:
    """The address in a form that means the same everywhere: paths made absolute. ``BadInput`` for what it cannot be."""
    scheme = split_address("run.storage", url, allowed=ALLOWED).scheme.partition("+")[0]
    if "://" not in url or scheme not in _SCHEMES:
        raise BadInput("run.storage", seen=redacted(url), allowed=ALLOWED, hint="Leave it out for sqlite by the store")
    if scheme not in ("sqlite", "journal"):
        return url
    path = file_of(url)
    if path is None:
        raise BadInput("run.storage", seen=url, allowed=f"{scheme}:///PATH of a file")
    return f"{scheme}:///{path.expanduser().absolute()}"


def file_of(url: str) -> Path | None:
    """The file behind a sqlite or journal address; None for servers and for databases in memory."""
    if url.startswith("journal:///"):
        return Path(url.removeprefix("journal:///")) if len(url) > len("journal:///") else None
    return sqlite_path(url)


def check_storage(url: str) -> None:
    """``BadInput`` unless studies can be kept there, before anything is made: a server answers, a folder is writable.

    A file's folder may be missing if its own folder is there: the store's is made with the store.
    """
    path = file_of(url)
    if path is not None:
        folder = path.parent if path.parent.is_dir() else path.parent.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise BadInput("run.storage", seen=url, allowed="a file in a folder that is there and can be written")
        if not path.exists():
            return
    try:
        _open(url, create=False)
    except Surroundings as error:
        raise BadInput(
            "run.storage", seen=redacted(url), allowed="a storage that answers", hint=str(error)
        ) from error  # fmt: skip


def open_storage(url: str, *, create: bool) -> BaseStorage | None:
    """Optuna's storage; without ``create`` None where there is none yet, and nothing is made."""
    path = file_of(url)
    if path is not None and not path.exists():
        if not create:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
    if path is not None and create and url.startswith("journal:"):
        _mend(path)
    return _open(url, create=create)


def _open(url: str, *, create: bool) -> BaseStorage | None:
    with storage_calls(url, "open"), quiet():
        from optuna.storages import JournalStorage, RDBStorage, _CachedStorage
        from optuna.storages.journal import JournalFileBackend

        if url.startswith("journal:"):
            return JournalStorage(JournalFileBackend(str(file_of(url))))
        options = _engine_options(url)
        if not create and not _has_tables(url, options):
            return None
        # Reading makes no tables, either.
        return _CachedStorage(RDBStorage(url, engine_kwargs=options, skip_table_creation=not create))


def _engine_options(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": _SQLITE_BUSY_SECONDS}}
    # pre_ping: a connection that a restarted server has forgotten is replaced before it is used.
    return {"pool_pre_ping": True, "connect_args": {"connect_timeout": _CONNECT_SECONDS}}


def _has_tables(url: str, options: dict[str, Any]) -> bool:
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, **options)
    try:
        return bool(sqlalchemy.inspect(engine).has_table("studies"))
    finally:
        engine.dispose()


@contextmanager
def storage_calls(url: str, what: str) -> Iterator[None]:
    """Turn what a storage raises when it is away into ``Surroundings`` with the address, without its password."""
    import sqlalchemy.exc
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError, OSError, ImportError) as error:
        # Optuna's own words for any failed commit guess at invalid data; the database's say what it was.
        told = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
        words = (str(told).strip().splitlines() or [type(error).__name__])[0].split()
        text = " ".join(redacted(word) if "://" in word else word for word in words)[:300]
        raise Surroundings(f"the study's storage {redacted(url)}: cannot {what}: {text}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna's notices off the terminal, and its warnings about what it calls experimental and about targets' signs."""
    import optuna
    from optuna.exceptions import ExperimentalWarning

    optuna.logging.set_verbosity(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", message="PedAnovaImportanceEvaluator")
        yield


def _mend(path: Path) -> None:
    """Cut off a line of a journal that a kill left half written: the next line would be appended to it."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with open(path, "r+b") as file:
            file.truncate(whole)
