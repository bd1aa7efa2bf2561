"""A third party's mixer that fails on purpose, installed for a test through the entry-point group.

Real failures in real workers: an exception, a NaN in the activations, memory that cannot be had, a process that dies.
Apart from its fault it is full attention, so that a run that survives its fault can be compared with one that has none.
"""

from __future__ import annotations

import inspect
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gridlaw.modules.mixers.full.spec import FullSpec


@dataclass(frozen=True, kw_only=True)
class FaultySpec(FullSpec):
    """Full attention with a fault.

    fault: none; raise, nan, kill: at the ``after``-th forward pass of a process in ``stage``; memory: whenever a
    training pass has more than ``after`` windows; limit: from the first training pass on the process may take ``after``
    MiB more than it has, and no more. stage: training (trunks and branches), decay (branches alone) or evaluate. mark:
    a file that is made at the first fault; with it there is no second one.
    """

    name: ClassVar[str] = "faulty"
    fault: str = "raise"
    after: int = 3
    stage: str = "training"
    mark: str = ""

    def build(self, scale: Any, **more: Any) -> Any:
        from gridlaw.modules.mixers.full.module import FullAttention

        spec = self

        class Faulty(FullAttention):
            calls = 0

            def forward(self, x_BTD: Any, ctx: Any) -> Any:
                y_BTD = super().forward(x_BTD, ctx)
                if self.training != (spec.stage != "evaluate"):
                    return y_BTD
                if spec.fault == "memory":
                    return with_little_memory(y_BTD) if x_BTD.shape[0] > spec.after else y_BTD
                if spec.stage == "decay" and running_stage() != "decay":
                    return y_BTD
                Faulty.calls += 1
                if spec.fault == "none":
                    return y_BTD
                if spec.fault == "limit":
                    if Faulty.calls == 1:
                        limit_memory(spec.after)
                    return y_BTD
                return fail(spec, y_BTD) if Faulty.calls == spec.after else y_BTD

        return Faulty(self, scale)


def running_stage() -> str:
    """The stage function that called us, as it names itself: trunk or decay. A model cannot know; a test may look."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "_train" and "stage" in frame.f_locals:
            return str(frame.f_locals["stage"])
        frame = frame.f_back
    return ""


def limit_memory(mebibytes: int) -> None:
    """A limit on this process, as an administrator sets it: so much more than it has now, and no more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + mebibytes * 2**20, hard))


def fail(spec: FaultySpec, y_BTD: Any) -> Any:
    """The fault, unless ``mark`` says that it was there already."""
    if spec.mark:
        try:
            Path(spec.mark).touch(exist_ok=False)
        except FileExistsError:
            return y_BTD
    if spec.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if spec.fault == "nan":
        return y_BTD * float("nan")
    raise ZeroDivisionError("injected")


def with_little_memory(y_BTD: Any) -> Any:
    """Ask for 4 GiB under a limit of 64 MiB beyond what the worker has."""
    import torch

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, before[1]))
    try:
        return y_BTD + torch.zeros(2**30).sum()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
