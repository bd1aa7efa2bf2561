"""Where a grid on a cluster may keep its checkpoints and its ledger: what every node can reach, or a refusal.

A folder and an sqlite file belong to one machine. With one node they will do; with several, a task elsewhere would make
an empty folder of the same name, so they are refused unless the folder is said to be a mount that all nodes share.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from gridlaw.pipelines.submit.credentials import STORAGE
from gridlaw.platform.errors import BadInput
from gridlaw.platform.ledger.tracking import resolve_tracking_uri, sqlite_path
from gridlaw.platform.spec.sections import RunSection


def check_place(run: RunSection, *, num_nodes: int, shared_store: bool = False) -> None:
    """``BadInput`` for a store or a tracking server that tasks on a cluster could not use.

    shared_store: the store's folder is a mount that every node has.
    """
    _check_store(run.store, num_nodes=num_nodes, shared_store=shared_store)
    uri = run.tracking_uri
    if uri is None:
        if run.store is not None and "://" not in run.store.removeprefix("file://") and num_nodes > 1:
            raise BadInput(
                "run.tracking_uri",
                allowed=f"a tracking server, such as http://mlflow:5000: the cluster has {num_nodes} nodes, and an "
                "sqlite database beside the store is one machine's file",
                hint="Give --tracking-uri, or set it under run:",
            )
        return
    path = sqlite_path(resolve_tracking_uri(uri, base_folder=Path("/")))
    if path is None:
        return
    given = sqlite_path(uri)
    if given is not None and not given.is_absolute():
        raise BadInput(
            "run.tracking_uri",
            seen=uri,
            allowed="an absolute path, as in sqlite:////data/mlflow.db, or a tracking server",
            hint="A job does not run in your folder, so a relative path means another file there",
        )
    if num_nodes > 1:
        raise BadInput(
            "run.tracking_uri",
            seen=uri,
            allowed=f"a tracking server, such as http://mlflow:5000: the cluster has {num_nodes} nodes, and an sqlite "
            "file is one machine's",
        )


def check_storage_place(run: RunSection) -> None:
    """``BadInput`` for a storage of studies that a job could not go on with wherever it is started again."""
    url = run.storage
    if url is None or urlsplit(url).scheme.partition("+")[0] in ("sqlite", "journal"):
        raise BadInput(
            "run.storage",
            seen=url,
            allowed="a database server, such as postgresql+psycopg://HOST/NAME",
            hint="A file (sqlite, the default, or a journal) is one machine's, and a study's driver may go on on "
            f"another. Give --storage, or {STORAGE} where it holds a password",
        )


def _check_store(store: str | None, *, num_nodes: int, shared_store: bool) -> None:
    if store is not None and "://" in store and not store.startswith("file://"):
        return
    folder = None if store is None else store.removeprefix("file://")
    if folder is None or not Path(folder).is_absolute():
        raise BadInput(
            "run.store",
            seen=store,
            allowed="an absolute path, or s3://BUCKET/PATH",
            hint="A job does not run in your folder, so a relative path means another one there. Give --store, or set "
            "it under run:",
        )
    if num_nodes > 1 and not shared_store:
        raise BadInput(
            "run.store",
            seen=store,
            allowed=f"s3://BUCKET/PATH: the cluster has {num_nodes} nodes, and a folder is one machine's",
            hint="If every node has this folder as a mount, say so with --shared-store",
        )
