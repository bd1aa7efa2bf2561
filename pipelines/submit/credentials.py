"""Passwords and tokens on their way from a client to a job: in one file of the shipped folder, and nowhere else.

Ray shows a job's command line, metadata and environment to everybody who may look at its dashboard, and a command line
is open to every user of a machine. So credentials travel as a file that only its owner may read, and become environment
variables of the driver and of the workers there. Who may read the files of the cluster's own user can read it, as can
who may submit jobs; a cluster whose nodes have their credentials already needs none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gridlaw.platform.addresses import redacted
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.sections import RunSection

FILE = ".gridlaw-credentials.json"
TRACKING_URI = "GRIDLAW_TRACKING_URI"
STORAGE = "GRIDLAW_STORAGE"
"""Addresses of the tracking server and of studies' databases: here where they hold a password, which may not stand on a
command line or in a file that others can read."""
_TRACKING = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_TRACKING_TLS = ("MLFLOW_TRACKING_INSECURE_TLS",)
_S3 = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "MLFLOW_S3_ENDPOINT_URL",
)


def collect(environment: Mapping[str, str], run: RunSection, *, asked: Iterable[str] = ()) -> dict[str, str]:
    """The variables that a job needs: those of the tracking server, of an s3 store, and those asked for by name.

    Addresses with a password are among them. ``BadInput`` for a name that is not set.
    """
    names = [*_TRACKING, *_TRACKING_TLS] if (run.tracking_uri or "").startswith("http") else []
    if (run.store or "").startswith("s3://"):
        names += _S3
    for name in asked:
        if name not in environment:
            raise BadInput("--forward", seen=name, allowed="a variable that is set here")
        names.append(name)
    found = {name: environment[name] for name in dict.fromkeys(names) if environment.get(name)}
    addresses = {TRACKING_URI: run.tracking_uri, STORAGE: run.storage}
    return found | {name: address for name, address in addresses.items() if address and not public(address)}


def public(address: str | None) -> str | None:
    """An address that holds no password, for command lines; else None."""
    return address if address is None or redacted(address) == address else None


def write(folder: Path, credentials: Mapping[str, str]) -> None:
    """Make the file, for its owner alone from the first moment on."""
    descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(dict(credentials), file)


def load(folder: Path | None = None) -> None:
    """Take the file of a job's folder, by default the working directory, into this process's environment.

    What a node has in its environment already stays. Nothing happens where there is no file.
    """
    path = (folder or Path.cwd()) / FILE
    with suppress(FileNotFoundError):
        for name, value in json.loads(path.read_text(encoding="utf-8")).items():
            os.environ.setdefault(name, value)
