"""Serves Optuna's dashboard over one storage; a process of its own, started by ``gridlaw ui --optuna``.

The storage's address comes by the environment: it may hold a password, and command lines can be read by everybody.
"""

from __future__ import annotations

import copy
import os
import sys
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer, make_server

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STORAGE_VARIABLE = "GRIDLAW_STORAGE"


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection: browsers open some before they need them, and one alone would wait for those."""

    daemon_threads = True


def show_constraints(storage: BaseStorage) -> None:
    """The dashboard looks for a trial's constraints where Optuna kept them before version 5: show them there, too.

    Without it trials beyond their constraints would be drawn as the best. Nothing is written.
    """
    read = storage.get_all_trials

    def get_all_trials(study_id: int, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
        return [_shown(trial) for trial in read(study_id, deepcopy=deepcopy, states=states)]

    storage.get_all_trials = get_all_trials  # type: ignore[method-assign]


def _shown(trial: FrozenTrial) -> FrozenTrial:
    if not trial.constraints:
        return trial
    shown = copy.copy(trial)
    shown.system_attrs = {**trial.system_attrs, "constraints": list(trial.constraints.values())}
    return shown


def serve(url: str, host: str, port: int) -> None:
    """Serve until ended. url: as ``resolve_storage`` returns it, of a storage that is there."""
    from optuna_dashboard import wsgi

    from gridlaw.platform.tuning.storage import open_storage

    storage = open_storage(url, create=False)
    assert storage is not None, "the caller checks that there is one"
    show_constraints(storage)
    make_server(host, port, wsgi(storage), server_class=Server).serve_forever()


if __name__ == "__main__":
    serve(os.environ.pop(STORAGE_VARIABLE), sys.argv[1], int(sys.argv[2]))
