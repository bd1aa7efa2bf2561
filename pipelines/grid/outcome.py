"""How a stage call ended, as a record: the driver never sees an exception of a stage.

Why records: in Ray a failed task fails every task that depends on it, and a traceback alone does not say whether trying
again can help. ``Failure.kind`` says it:

========== =========================================================== ===============
kind       what happened                                               tried again
========== =========================================================== ===============
lost       the worker or its node died                                 yes
memory     the worker ran out of memory                                yes, smaller micro-batch
store      store, disk or tracking server failed                       yes
diverged   loss or gradient is not finite                              no
input      data or settings turned out to be unusable                  no
exception  any other exception of our code                             no
stopped    asked to stop: it saved and left                            by the next run
pruned     ended early by its study's rule                             no
========== =========================================================== ===============
"""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass
from typing import Any, Literal

from gridlaw.modules.errors import BadSetting
from gridlaw.platform.errors import BadInput, Surroundings
from gridlaw.platform.store.local import explain

FailureKind = Literal["lost", "memory", "store", "diverged", "input", "exception", "stopped", "pruned"]
TRY_AGAIN: frozenset[str] = frozenset({"lost", "memory", "store"})
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "cuda out of memory",
    "cublas_status_alloc_failed",
)
_STORE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


@dataclass(frozen=True, kw_only=True)
class Failure:
    kind: FailureKind
    reason: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of one attempt: ``result`` of the stage function, or ``failure``."""

    result: dict[str, Any] | None = None
    failure: Failure | None = None
    node: str = ""

    @property
    def ok(self) -> bool:
        return self.failure is None


def failure_of(error: BaseException, *, store: str = "") -> Failure:
    """Which kind of failure an exception of a stage is. store: the folder whose files are ours to write, not data."""
    kind = _kind_of(error, store)
    text = f"{type(error).__name__}: {error}".strip()
    if kind == "store" and isinstance(error, OSError):
        text = str(explain(error, f"cannot write {error.filename or 'to the store'}"))
    elif kind == "input":  # a whole sentence: field, value seen, what is allowed
        text = str(error)
    trace = "".join(traceback.format_exception(error))
    return Failure(kind=kind, reason=text[:2000], traceback=trace[-20_000:])


def _kind_of(error: BaseException, store: str) -> FailureKind:
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "stopped"
    if type(error).__name__ == "Diverged":
        return "diverged"
    if isinstance(error, BadInput | BadSetting):
        return "input"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "memory"
    if isinstance(error, RuntimeError | OSError) and any(part in str(error).lower() for part in _OUT_OF_MEMORY):
        return "memory"
    if isinstance(error, Surroundings) or (isinstance(error, OSError) and _is_the_disks(error, store)):
        return "store"
    return "exception"


def _is_the_disks(error: OSError, store: str) -> bool:
    if error.errno in _STORE_ERRNOS:
        return True
    return bool(store) and error.errno in _FORBIDDEN and str(error.filename or "").startswith(store)
