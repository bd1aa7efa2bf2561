"""Process-wide settings of torch and Lightning during a fit, and their return afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.deterministic

_filling: Any = torch.utils.deterministic  # its one setting is a property of a module class, which no checker knows
_LOUD = ("lightning.pytorch", "lightning.fabric")


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


@functools.cache
def keep_heap() -> bool:
    """Let glibc keep the memory that a step frees for the next one; whether that could be set, once per process.

    By default it gives large blocks back to the system and asks for them anew, and every page is then faulted in and
    cleared again: about a tenth of a nano model's step on a CPU (tests/benchmarks/bench_fit_overhead.py). It stays set.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    settings = ((_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 1 << 28), (_M_MMAP_THRESHOLD, 1 << 25))
    return all(mallopt(name, value) == 1 for name, value in settings)


@contextlib.contextmanager
def surroundings(num_threads: int) -> Iterator[None]:
    """Threads, random state, determinism and quiet for the duration of one fit; what was before comes back.

    num_threads: of torch; 0 leaves them. Lightning itself turns deterministic algorithms on, and never off again.
    """
    threads, filled = torch.get_num_threads(), _filling.fill_uninitialized_memory
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    levels = {name: logging.getLogger(name).level for name in _LOUD}
    try:
        if num_threads:
            torch.set_num_threads(num_threads)
        # With deterministic algorithms torch fills every new tensor first, against reads of what was never written.
        _filling.fill_uninitialized_memory = False
        for name in _LOUD:
            logging.getLogger(name).setLevel(logging.WARNING)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        _filling.fill_uninitialized_memory = filled
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
