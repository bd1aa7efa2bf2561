"""Reading another experiment of the same tracking server: for weights that one grid takes from another's point."""

from __future__ import annotations

from dataclasses import dataclass

from gridlaw.platform.ledger.experiments import STORE_TAG, connect, look_up
from gridlaw.platform.ledger.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class OtherExperiment:
    """An experiment that is read and never written. store_address: where its checkpoints are; None if it has none."""

    ledger: Ledger
    store_address: str | None


def find_experiment(tracking_uri: str, name: str) -> OtherExperiment | None:
    """The experiment of that name; None if there is none, or if it was deleted. Makes nothing."""
    tracking = connect(tracking_uri, create=False)
    found = look_up(tracking, name) if tracking is not None else None
    if tracking is None or found is None or found.deleted:
        return None
    return OtherExperiment(ledger=Ledger(tracking, name, found.experiment_id), store_address=found.tags.get(STORE_TAG))
