"""Serves Optuna's dashboard over one storage; a process of its own, started by ``gridlaw ui --optuna``.

The storage's address comes by the environment: it may hold a password, and command lines can be read by everybody.
"""

from __future__ import annotations

import os
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server

STORAGE_VARIABLE = "GRIDLAW_STORAGE"


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection: browsers open some before they need them, and one alone would wait for those."""

    daemon_threads = True


def serve(url: str, host: str, port: int) -> None:
    """Serve until ended. url: as ``resolve_storage`` returns it, of a storage that is there."""
    from optuna_dashboard import wsgi

    from gridlaw.platform.tuning.storage import open_storage

    storage = open_storage(url, create=False)
    assert storage is not None, "the caller checks that there is one"
    make_server(host, port, wsgi(storage), server_class=Server).serve_forever()


if __name__ == "__main__":
    serve(os.environ.pop(STORAGE_VARIABLE), sys.argv[1], int(sys.argv[2]))
