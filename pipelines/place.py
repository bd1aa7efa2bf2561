"""Where a grid's checkpoints and ledger are; cheap to import, as every command asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gridlaw.platform.errors import BadInput
from gridlaw.platform.ledger.ledger import Ledger
from gridlaw.platform.ledger.tracking import default_tracking_uri
from gridlaw.platform.spec.sections import RunSection
from gridlaw.platform.store.base import Store
from gridlaw.platform.store.open import is_remote, open_store

if TYPE_CHECKING:
    from gridlaw.pipelines.plan import GridPlan

DEFAULT_STORE = "gridlaw-runs"


@dataclass(frozen=True, kw_only=True)
class Place:
    """``run.store`` and ``run.tracking_uri`` with their defaults."""

    store_address: str
    tracking_uri: str

    @staticmethod
    def of(plan: GridPlan) -> Place:
        return Place.of_run(plan.spec.run)

    @staticmethod
    def of_run(run: RunSection) -> Place:
        address = (run.store or DEFAULT_STORE).removeprefix("file://")
        if run.tracking_uri is None and is_remote(address):
            raise BadInput(
                "run.tracking_uri",
                allowed="an address, as this store has no place for a database",
                hint="Give the tracking server's, http://HOST:PORT, or sqlite:////ABSOLUTE/PATH.db on this machine",
            )
        root = str(Path(address).expanduser().absolute()) if not is_remote(address) else address
        return Place(store_address=address, tracking_uri=run.tracking_uri or default_tracking_uri(root))

    def store(self, *, create: bool) -> Store:
        return open_store(self.store_address, create=create)

    def ledger(self, plan: GridPlan, store: Store) -> Ledger | None:
        """The experiment, or None where there is none yet."""
        return Ledger.open(self.tracking_uri, plan.spec.name, store.address, create=False)
