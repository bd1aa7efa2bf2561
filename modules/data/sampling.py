"""Which window a sample is: a pure function of (data fingerprint, seed, sample number). Free of torch and of state.

Sample g lies in epoch g // num_windows at place g % num_windows; each epoch has its own permutation, evaluated by
index and never stored, so starting at sample 10^9 costs what starting at 0 costs. Optimizer step s with a batch of B
takes the samples s·B … s·B + B - 1, whatever the micro-batch, accumulation or number of ranks.

The permutation is an unbalanced Feistel network on Z_a × Z_b with a·b just above num_windows (each round adds a hash of
one half to the other, which is one-to-one), and places that fall outside are walked on until they fall inside
(Black and Rogaway 2002, "Ciphers with arbitrary finite domains"). Integer arithmetic only: no generator whose stream
could change between versions of a library.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

NUM_ROUNDS = 12

IntArray = npt.NDArray[np.int64]
_Unsigned = npt.NDArray[np.uint64]


@lru_cache(maxsize=64)
def _round_keys(data_fingerprint: str, seed: int, epoch: int) -> tuple[np.uint64, ...]:
    digest = hashlib.shake_256(f"gridlaw-windows-1|{data_fingerprint}|{seed}|{epoch}".encode()).digest(8 * NUM_ROUNDS)
    return tuple(np.frombuffer(digest, dtype="<u8").astype(np.uint64))


def _mix(value: _Unsigned) -> _Unsigned:
    """The finaliser of splitmix64 (Steele et al. 2014): every bit of the input moves every bit of the output."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _permute(places: _Unsigned, num_windows: int, keys: tuple[np.uint64, ...]) -> _Unsigned:
    """Images of ``places`` (each below num_windows) under the permutation of ``keys``: [num] to [num]."""
    num_rows = math.isqrt(num_windows - 1) + 1
    rows, columns = np.uint64(num_rows), np.uint64(-(-num_windows // num_rows))
    images, outside = places, np.arange(len(places))
    while len(outside):
        left, right = images[outside] // columns, images[outside] % columns
        for index, key in enumerate(keys):
            if index % 2 == 0:
                left = (left + _mix(right ^ key) % rows) % rows
            else:
                right = (right + _mix(left ^ key) % columns) % columns
        images = images.copy()
        images[outside] = left * columns + right
        outside = outside[images[outside] >= np.uint64(num_windows)]
    return images


def window_indices(seed: int, data_fingerprint: str, num_windows: int, samples: IntArray) -> IntArray:
    """The window of each sample.

    samples: sample numbers, any order, each >= 0, [num]. Returns window numbers in [0, num_windows), [num].
    """
    if num_windows < 1:
        raise ValueError(f"num_windows is {num_windows}; allowed: 1 or more")
    samples = np.asarray(samples, dtype=np.int64)
    if samples.size and samples.min() < 0:
        raise ValueError(f"sample is {samples.min()}; allowed: 0 or more")
    epochs, places = np.divmod(samples, num_windows)
    windows = np.empty_like(samples)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        keys = _round_keys(data_fingerprint, seed, int(epoch))
        windows[chosen] = _permute(places[chosen].astype(np.uint64), num_windows, keys).astype(np.int64)
    return windows


def window_index(seed: int, data_fingerprint: str, num_windows: int, sample: int) -> int:
    """The window of one sample: ``window_indices`` for a single number."""
    return int(window_indices(seed, data_fingerprint, num_windows, np.array([sample]))[0])
