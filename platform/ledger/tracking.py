"""The connection to MLflow: environment, addresses, the one creation of a sqlite database, and calls with bounded
waiting.

MLflow is imported here only, inside functions: the import takes over a second, and a command that needs no ledger shall
not pay.

Concurrency. A fresh sqlite database is migrated under a lock, in a file aside that is renamed when it is whole:
processes that race on a half-made one would break it for good, and so would a kill in the middle. Workers only ever
open a finished one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from gridlaw.platform.addresses import bearer, redacted, split_address
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.store.local import explain

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

Result = TypeVar("Result")

_ALLOWED = "http(s)://HOST:PORT, sqlite:///PATH, postgresql://…"
_ALLOWED_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https")
CREDENTIALS = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # Retries are ours (``Tracking.call``), with a bound in seconds; MLflow's own would block four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
_HOPELESS = {
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "BAD_REQUEST",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "ENDPOINT_NOT_FOUND",
    "FEATURE_DISABLED",
}
_BROKEN_DATABASE = {
    "disk is full": "the disk is full; make room",
    "readonly database": "it cannot be written; make it writable",
    "unable to open": "it cannot be opened; was its folder removed?",
    "no such table": "it is no MLflow database, or was damaged; move it away or give another tracking_uri",
    "not a database": "it is no MLflow database; move it away or give another tracking_uri",
    "malformed": "it is damaged; restore a copy or move it away",
    "disk i/o error": "the disk fails, or is full",
}


class TrackingOutage(Surroundings):
    """The tracking server or database did not answer in time; what was asked may be asked again later."""


class TrackingRefused(Surroundings):
    """The tracking server answered no: a run or an experiment that is gone, or a request that it will never take."""


class TrackingDenied(TrackingRefused):
    """The tracking server does not take our user, password or token, or does not let them do this."""


def prepare_environment() -> None:
    """Telemetry off, no progress bars, short time limits; what the user has set stays. Must precede MLflow's import."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def default_tracking_uri(store_root: str | Path) -> str:
    """The sqlite database beside the store's objects."""
    return f"sqlite:///{Path(store_root).absolute()}/mlflow.db"


def resolve_tracking_uri(uri: str, *, base_folder: Path | None = None) -> str:
    """The address in the one form that means the same in every process: sqlite paths made absolute.

    ``BadInput`` for addresses that MLflow 3 no longer takes (folders) or that we do not know.
    """
    parts = split_address("run.tracking_uri", uri, allowed=_ALLOWED)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in _ALLOWED_SCHEMES or "://" not in uri or (scheme in ("http", "https") and not parts.hostname):
        raise BadInput(
            "run.tracking_uri",
            seen=redacted(uri),
            allowed=_ALLOWED,
            hint="Leave it out to keep an sqlite database beside the store",
        )
    if scheme != "sqlite":
        return uri.rstrip("/")
    path = sqlite_path(uri)
    if path is None:
        raise BadInput("run.tracking_uri", seen=uri, allowed="sqlite:///PATH of a file", hint="memory is not kept")
    if not path.is_absolute():
        path = (base_folder or Path.cwd()) / path
    return f"sqlite:///{path}"


def sqlite_path(uri: str) -> Path | None:
    """The database file of an sqlite address; None for other addresses and for databases in memory."""
    if not uri.startswith("sqlite"):
        return None
    path = uri.partition(":///")[2].partition("?")[0]
    return Path(path) if path and path != ":memory:" else None


def create_database(uri: str) -> bool:
    """Make the sqlite database behind ``uri`` unless it exists; True if this call made it. Other addresses: False."""
    path = sqlite_path(uri)
    if path is None or path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(path.name + ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return False
            aside = path.with_name(f"{path.name}.part-{os.getpid()}-{secrets.token_hex(4)}")
            try:
                _migrate(aside)
                os.replace(aside, path)
            finally:
                for left in path.parent.glob(aside.name + "*"):
                    left.unlink(missing_ok=True)
    except OSError as error:
        raise explain(error, f"cannot make the tracking database {path}") from error
    except Exception as error:
        raise translated(error, f"cannot make the tracking database {path}") from error
    return True


def _migrate(path: Path) -> None:
    """Run MLflow's migrations on a fresh file and check that the result is whole."""
    prepare_environment()
    quiet()
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(f"sqlite:///{path}", str(path.parent))
    store.search_experiments()
    store._dispose_engine()
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), "a fresh database must be whole"
    finally:
        connection.close()


def quiet() -> None:
    """Keep MLflow's and alembic's notices off the terminal; its database errors come back as exceptions anyway."""
    import mlflow.utils.logging_utils  # noqa: F401  (configures the loggers, so it has to come first)

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)


@dataclass(kw_only=True)
class Tracking:
    """An MLflow client whose calls wait at most ``patience_seconds`` for a server that is away.

    uri: as ``resolve_tracking_uri`` returns it.
    """

    uri: str
    patience_seconds: float = 90.0
    _client: MlflowClient | None = None

    @property
    def client(self) -> MlflowClient:
        """MLflow's client, made on first use. A missing sqlite database is refused, not made."""
        if self._client is None:
            if self.uri.startswith("http"):
                _token_header()  # MLflow would repeat in its message a token that no header can carry
            self._require_database()
            prepare_environment()
            quiet()
            from mlflow.tracking import MlflowClient

            # Without a registry of its own the client would look for the default tracking address.
            self._client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        return self._client

    def _require_database(self) -> None:
        """An sqlite file that vanished is not made again: the next connection would make an empty one."""
        path = sqlite_path(self.uri)
        if path is not None and not path.exists():
            raise TrackingRefused(f"the tracking database {path} does not exist; was the store removed?")

    def read(
        self,
        what: str,
        query: Callable[[sqlite3.Connection], Result],
        ask: Callable[[MlflowClient], Result],
    ) -> Result:
        """Query an sqlite database in one transaction, without MLflow; else ``call``.

        MLflow is also asked where the query fails, and tells why.
        """
        path = sqlite_path(self.uri)
        if path is not None:
            with suppress(sqlite3.Error), closing(_connected(path)) as connection:
                connection.execute("BEGIN")
                return query(connection)
        return self.call(what, ask)

    def call(
        self,
        what: str,
        ask: Callable[[MlflowClient], Result],
        *,
        patience_seconds: float | None = None,
    ) -> Result:
        """Ask, and ask again while the server is away, for ``patience_seconds`` in total.

        what: finishes "the tracking server … : cannot WHAT". Raises ``TrackingOutage`` or ``TrackingRefused``.
        ask: must be harmless when repeated; an answer may get lost after the server has acted.
        """
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        deadline, pause = time.monotonic() + patience, 0.25
        while True:
            self._require_database()
            try:
                return ask(self.client)
            except Surroundings:
                raise
            except Exception as error:
                failure = translated(error, f"{redacted(self.uri)}: cannot {what}")
                if isinstance(failure, TrackingRefused) or time.monotonic() + pause > deadline:
                    raise failure from error
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _connected(path: Path) -> sqlite3.Connection:
    """For writing, too, as the first reader after a kill in the middle of a transaction has to undo it."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=20.0)


def translated(error: Exception, what: str) -> Surroundings:
    """The typed error for an exception that came out of MLflow; exceptions of our own code pass through."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, RequestException):
        return TrackingOutage(f"{what}: {_first_line(error)}")
    if isinstance(error, OSError):
        return explain(error, what)
    if isinstance(error, MlflowException):
        code = str(getattr(error, "error_code", "") or "")
    elif isinstance(error, (SQLAlchemyError, sqlite3.Error)):
        code = "TEMPORARILY_UNAVAILABLE"
    else:
        raise error
    text = str(error).lower()
    if "out-of-date database schema" in text:
        return TrackingRefused(
            f"{what}: its tables are those of another version of MLflow. Keep a copy, then bring them up to date with "
            f"`mlflow db upgrade ADDRESS`, or use the version that made them"
        )
    for sign, advice in _BROKEN_DATABASE.items():
        if sign in text and "sqlite" in text:
            return TrackingRefused(f"{what}: {advice}. Then run again: what is done stays done")
    if code in _HOPELESS:
        if code in {"PERMISSION_DENIED", "UNAUTHENTICATED"}:
            return TrackingDenied(f"{what}: {_first_line(error)}. Check {CREDENTIALS}")
        return TrackingRefused(f"{what}: {_first_line(error)}")
    return TrackingOutage(f"{what}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    """The telling part of an exception; addresses in it lose their passwords."""
    words = (str(error).strip().splitlines() or [type(error).__name__])[0].split()
    return " ".join(redacted(word) if "://" in word else word for word in words)[:400]


def ping(uri: str, *, timeout_seconds: float = 5.0) -> None:
    """Check that a tracking server answers and is not too old; nothing for databases. ``Surroundings`` or
    ``BadInput``."""
    if not uri.startswith("http"):
        return
    import requests

    with suppress(ValueError):
        try:
            answer = requests.get(f"{uri}/version", timeout=timeout_seconds, headers=_token_header(), auth=_user())
        except requests.exceptions.RequestException as error:
            raise TrackingOutage(
                f"the tracking server {redacted(uri)} does not answer ({type(error).__name__}). Is it running, "
                "and is the address right?"
            ) from error
        if answer.ok and int(answer.text.strip().partition(".")[0]) < 3:
            raise BadInput(
                "run.tracking_uri",
                seen=redacted(uri),
                allowed="MLflow 3 or newer",
                hint=f"it runs {answer.text.strip()}",
            )


def _user() -> tuple[str, str] | None:
    name, password = (os.environ.get(f"MLFLOW_TRACKING_{each}") for each in ("USERNAME", "PASSWORD"))
    return (name, password) if name and password else None


def _token_header() -> dict[str, str]:
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return bearer("MLFLOW_TRACKING_TOKEN", token) if token and _user() is None else {}
