"""What one node is like, seen from a process on it: versions, kernels, shared memory, store. Free of Ray and MLflow.

A probe tells; whether that is good is judged in one place (``checks``).
"""

from __future__ import annotations

import platform
import shutil
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

from gridlaw.platform.errors import GridlawError
from gridlaw.platform.ledger.version import code_version
from gridlaw.platform.store.open import open_store

PACKAGES = ("gridlaw", "torch", "lightning", "ray", "mlflow")
VERSION = metadata.version("gridlaw")
_SHARED_MEMORY = Path("/dev/shm")


def probe(task: dict[str, Any]) -> dict[str, Any]:
    """task: store (address, or None for none), token (what the driver wrote there as ``name``), name, node."""
    found: dict[str, Any] = {"node": task["node"] or socket.gethostname(), "versions": versions(), "kernels": kernels()}
    found["shared_memory_bytes"] = shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.is_dir() else None
    found["store"] = None if task["store"] is None else store_probe(task)
    return found


def versions() -> dict[str, str]:
    """Of Python, of the packages that training and tracking depend on, and of gridlaw's own commit."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    commit = code_version().commit
    return found | ({"commit": commit} if commit else {})


def kernels() -> dict[str, Any]:
    """device: cuda or cpu. chosen: kernel by operation. passed_over: why better ones are not used. error: why torch
    cannot be imported."""
    try:
        import torch

        from gridlaw.modules.kernels.dispatch import choices
    except Exception as error:  # a broken installation raises anything
        return {"device": "", "chosen": {}, "passed_over": {}, "error": f"{type(error).__name__}: {error}"[:300]}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = choices(device)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "chosen": {choice.operation: choice.kernel for choice in found},
        "passed_over": {choice.operation: dict(choice.passed_over) for choice in found if choice.passed_over},
        "error": "",
    }


def store_probe(task: dict[str, Any]) -> dict[str, Any]:
    """Whether this node reads what the driver wrote, and can write itself. error: "" if so."""
    found = {"version": VERSION, "error": "", "free_bytes": None}
    try:
        store = open_store(task["store"], create=False)
        try:
            same = store.read_bytes(task["name"]) == task["token"].encode()
        except FileNotFoundError:
            same = False
        if not same:
            return found | {"error": "it does not see what another node wrote there: a folder of the same name"}
        store.check_writable()
        return found | {"free_bytes": store.free_bytes()}
    except (GridlawError, OSError) as error:
        return found | {"error": str(error)}
