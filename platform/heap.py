"""Python's cycle collector kept away from heaps that hold nothing for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Hold off the collector: where very many objects are made and kept, scanning them again and again as their number
    grows can more than double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def present_objects_kept() -> Iterator[None]:
    """What exists now is not looked through again until the end: a process that works for hours after its imports
    would scan a million objects of its libraries with every full collection, and free none."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
