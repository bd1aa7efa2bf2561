"""Which MLflow experiment a name stands for, whose store it belongs to, and how a new one is made.

An experiment carries its store's address as a tag: a driver with another store is refused. What is in an experiment is
``ledger``'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gridlaw.platform.addresses import redacted
from gridlaw.platform.errors import BadInput, InUse
from gridlaw.platform.ledger import tables
from gridlaw.platform.ledger.records import PREFIX, ExperimentRecord
from gridlaw.platform.ledger.tracking import (
    CREDENTIALS,
    Tracking,
    TrackingDenied,
    create_database,
    ping,
    resolve_tracking_uri,
    sqlite_path,
)
from gridlaw.platform.store.base import experiment_name
from gridlaw.platform.store.open import is_remote

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

STORE_TAG = PREFIX + "store"


def connect(tracking_uri: str, *, create: bool, patience_seconds: float = 90.0) -> Tracking | None:
    """The tracking server or database at an address; None where there is no database and none is to be made.

    MLflow is not imported then.
    """
    uri = resolve_tracking_uri(tracking_uri)
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        if not create:
            return None
        create_database(uri)
    ping(uri)
    return Tracking(uri=uri, patience_seconds=patience_seconds)


def look_up(tracking: Tracking, name: str) -> ExperimentRecord | None:
    """The experiment of that name, a deleted one, too; ``BadInput`` if the server does not let this user in."""
    try:
        return tracking.read(
            "look up the experiment",
            lambda connection: tables.find_experiment(connection, name),
            lambda client: _asked_for(client, name),
        )
    except TrackingDenied as error:
        raise BadInput(
            CREDENTIALS, allowed=f"a user of the tracking server {redacted(tracking.uri)}", hint=_reason(error)
        ) from None


def _asked_for(client: MlflowClient, name: str) -> ExperimentRecord | None:
    found = client.get_experiment_by_name(name)
    if found is None:
        return None
    return ExperimentRecord(
        experiment_id=str(found.experiment_id), deleted=found.lifecycle_stage == "deleted", tags=found.tags
    )


def claim(tracking: Tracking, name: str, store_address: str, *, create: bool) -> str | None:
    """Id of a grid's own experiment; None if there is none and none is to be made.

    ``InUse`` if it belongs to another store, ``BadInput`` if it was deleted in MLflow.
    """
    found = look_up(tracking, name)
    if found is None:
        return _make(tracking, name, store_address) if create else None
    if found.deleted:
        raise BadInput(
            "name",
            seen=name,
            allowed="the name of an experiment that was not deleted in MLflow",
            hint=f"Bring it back: `mlflow experiments restore -x {found.experiment_id}`; or choose another name",
        )
    experiment_id, tagged = found.experiment_id, found.tags.get(STORE_TAG)
    if tagged is None and create:  # made by hand in MLflow's page: adopt it
        tracking.call(
            "tag the experiment", lambda client: client.set_experiment_tag(experiment_id, STORE_TAG, store_address)
        )
    if tagged not in (None, store_address):
        raise InUse(
            f"experiment {name!r} keeps its checkpoints in {tagged}, and this grid names the store {store_address}. "
            "Use that store, or give this grid another name"
        )
    return experiment_id


def _make(tracking: Tracking, name: str, store_address: str) -> str:
    database = sqlite_path(tracking.uri)
    artifacts = None  # where the tracking server keeps them
    if database is not None:
        place = database.parent if is_remote(store_address) else Path(store_address)
        artifacts = (place / "artifacts" / experiment_name(name)).as_uri()
    # The kind makes MLflow's page open in its model-training view.
    tags = {STORE_TAG: store_address, "mlflow.experimentKind": "custom_model_development"}

    def ask(client: MlflowClient) -> str:
        found = client.get_experiment_by_name(name)  # an earlier try may have made it
        return str(found.experiment_id if found else client.create_experiment(name, artifacts, tags))

    return tracking.call(f"make the experiment {name!r}", ask)


def _reason(error: Exception) -> str:
    """What the server said, without the words around it."""
    return "It said: " + str(error).partition("Response body: ")[2].partition(". Check ")[0].strip("'\" ")[:200]
