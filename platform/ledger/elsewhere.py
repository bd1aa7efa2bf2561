"""Reading another experiment of the same tracking server: for weights that one grid takes from another's point."""

from __future__ import annotations

from dataclasses import dataclass

from gridlaw.platform.ledger.ledger import STORE_TAG, Ledger
from gridlaw.platform.ledger.tracking import Tracking, ping, resolve_tracking_uri, sqlite_path


@dataclass(frozen=True, kw_only=True)
class OtherExperiment:
    """An experiment that is read and never written. store_address: where its checkpoints are; None if it has none."""

    ledger: Ledger
    store_address: str | None


def find_experiment(tracking_uri: str, name: str) -> OtherExperiment | None:
    """The experiment of that name; None if there is none, or if it was deleted. Makes nothing."""
    uri = resolve_tracking_uri(tracking_uri)
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        return None
    ping(uri)
    tracking = Tracking(uri=uri)
    found = tracking.call("look up an experiment", lambda client: client.get_experiment_by_name(name))
    if found is None or found.lifecycle_stage == "deleted":
        return None
    return OtherExperiment(ledger=Ledger(tracking, name, found.experiment_id), store_address=found.tags.get(STORE_TAG))
