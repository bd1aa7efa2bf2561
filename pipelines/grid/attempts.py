"""What the store holds of runs, as the driver sees it: addresses for tasks, checkpoints, models. Moves nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from gridlaw.modules.training import checkpoint_files
from gridlaw.platform.store.base import Store, attempt_name

MODEL_FOLDER = "model"
WEIGHTS = "model.safetensors"
_LISTINGS_AT_ONCE = 16


def attempt_address(store: Store, run_id: str, inside: str = "") -> str:
    """Full address of a run's folder, or of something in it, as tasks carry it."""
    return store.url(f"{attempt_name(run_id)}/{inside}" if inside else attempt_name(run_id))


def model_address(store: Store, run_id: str) -> str:
    """Full address of a finished point's model."""
    return attempt_address(store, run_id, MODEL_FOLDER)


def has_model(store: Store, run_id: str) -> bool:
    """Whether a finished point's model is still there."""
    return store.exists(f"{attempt_name(run_id)}/{MODEL_FOLDER}/{WEIGHTS}")


def stored_steps(store: Store, run_ids: Iterable[str]) -> Mapping[str, list[int]]:
    """By run: steps of its checkpoints in the store, rising; whether they are whole is not looked at."""
    wanted = list(dict.fromkeys(run_ids))
    if not wanted:
        return {}
    with ThreadPoolExecutor(min(_LISTINGS_AT_ONCE, len(wanted))) as pool:
        return dict(zip(wanted, pool.map(lambda run_id: _steps(store, run_id), wanted), strict=True))


def whole_steps(store: Store, run_id: str, steps: Collection[int]) -> set[int]:
    """Those of ``steps`` whose checkpoints are what was written, as far as can be told without moving them."""
    whole = set()
    for step in _steps(store, run_id):
        if step not in steps:
            continue
        name = f"{attempt_name(run_id)}/{checkpoint_files.checkpoint_name(step)}"
        try:
            expected = json.loads(store.read_bytes(name + checkpoint_files.SIDECAR))
            if store.fault(name, num_bytes=expected["bytes"], sha256=expected["sha256"]) is None:
                whole.add(step)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue  # pruned meanwhile, or no sidecar of ours
    return whole


def _steps(store: Store, run_id: str) -> list[int]:
    folder = attempt_name(run_id)
    return checkpoint_files.complete_steps(name.removeprefix(f"{folder}/") for name in store.list(folder))
