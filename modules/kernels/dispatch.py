"""Which kernel does an operation: chosen by device, by what is installed and by what a call needs, and said on request.

An operation ("attention", "gated_delta_rule", ...) has several kernels with one signature. They are registered in
order of preference; the first that is available on the device and supports the call is taken. `choices` says which,
and why the ones before it were passed over. Nothing here imports lightning.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gridlaw.modules.errors import BadSetting


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One way to do an operation.

    devices: device types it runs on.
    unavailable: why it cannot run in this installation, or None; asked once.
    unsupported: why it cannot do this call (keywords of the call's needs), or None.
    """

    operation: str
    name: str
    devices: tuple[str, ...]
    function: Callable[..., Any]
    unavailable: Callable[[], str | None]
    unsupported: Callable[..., str | None]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen for an operation, and why others were not: pairs of kernel and reason."""

    operation: str
    kernel: str
    passed_over: tuple[tuple[str, str], ...]


_KERNELS: dict[str, list[Kernel]] = {}
_FORCED: dict[str, str] = {}


def _always(**needs: Any) -> None:
    return None


def register_kernel(
    operation: str,
    name: str,
    *,
    devices: tuple[str, ...],
    unavailable: Callable[[], str | None] = _always,
    unsupported: Callable[..., str | None] = _always,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a kernel's function; register the preferred one first."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        kernel = Kernel(
            operation=operation,
            name=name,
            devices=devices,
            function=function,
            unavailable=functools.cache(unavailable),
            unsupported=unsupported,
        )
        others = [other for other in _KERNELS.get(operation, []) if other.name != name]
        _KERNELS[operation] = [*others, kernel]
        _select.cache_clear()
        return function

    return register


def missing_package(*modules: str) -> Callable[[], str | None]:
    """For `unavailable`: the reason when one of these modules cannot be imported, after really importing it."""

    def reason() -> str | None:
        for module in modules:
            try:
                if importlib.util.find_spec(module.partition(".")[0]) is None:
                    return f"{module.partition('.')[0]} is not installed"
                importlib.import_module(module)
            except Exception as error:  # a package built for another CUDA fails in many ways
                return f"{module} does not import ({type(error).__name__}: {error})"
        return None

    return reason


def choose(operation: str, device: torch.device | str, **needs: Any) -> Callable[..., Any]:
    """The function for this operation on this device; needs are hashable and go to `unsupported`."""
    device_type = device.type if isinstance(device, torch.device) else torch.device(device).type
    return _select(operation, device_type, _FORCED.get(operation), tuple(sorted(needs.items())))[0].function


@functools.cache
def _select(
    operation: str, device_type: str, forced: str | None, needs: tuple[tuple[str, Any], ...]
) -> tuple[Kernel, tuple[tuple[str, str], ...]]:
    passed_over: list[tuple[str, str]] = []
    for kernel in _KERNELS.get(operation, []):
        if forced is not None and kernel.name != forced:
            reason: str | None = f"{forced} is forced"
        elif device_type not in kernel.devices:
            reason = f"not for {device_type}"
        else:
            reason = kernel.unavailable() or kernel.unsupported(**dict(needs))
        if reason is None:
            return kernel, tuple(passed_over)
        passed_over.append((kernel.name, reason))
    raise BadSetting(
        f"kernel for {operation} on {device_type}",
        seen=dict(needs),
        allowed="; ".join(f"{name}: {reason}" for name, reason in passed_over) or "none is registered",
    )


@contextlib.contextmanager
def forced(operation: str, kernel: str) -> Iterator[None]:
    """Use this kernel and no other inside the block: for tests and benchmarks."""
    names = [known.name for known in _KERNELS.get(operation, [])]
    if kernel not in names:
        raise BadSetting(f"kernel of {operation}", seen=kernel, allowed=", ".join(names))
    before = _FORCED.get(operation)
    _FORCED[operation] = kernel
    try:
        yield
    finally:
        if before is None:
            del _FORCED[operation]
        else:
            _FORCED[operation] = before


def choices(device: torch.device | str) -> list[Choice]:
    """What every operation runs on at this device, for calls without special needs."""
    package = importlib.import_module("gridlaw.modules.kernels")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"gridlaw.modules.kernels.{module.name}")
    device_type = torch.device(device).type
    found = []
    for operation in sorted(_KERNELS):
        kernel, passed_over = _select(operation, device_type, _FORCED.get(operation), ())
        found.append(Choice(operation=operation, kernel=kernel.name, passed_over=passed_over))
    return found
