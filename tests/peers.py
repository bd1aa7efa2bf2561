"""Peers' Triton kernels on the CPU, as test oracles: fla and mamba-ssm in Triton's interpreter, in fp32.

Import this module (`import peers`; tests/conftest.py puts this folder on the path) before fla or mamba_ssm. Without a
CUDA device their kernels then run interpreted: about a second a call at 128 tokens, errors of 1e-6 forward and 1e-5 in
gradients. bf16 is silently wrong there, so fp32 only. Layout [B, T, H, D], log-decays [B, T, H].
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton.runtime.interpreter as interpreter
from triton.runtime.autotuner import Autotuner


class _Int(int):
    """An int that has `.to`: kernels call it on loop variables."""

    def to(self, *args: Any, **kwargs: Any) -> _Int:
        return self


def _install() -> None:
    # There is no driver to time on, so every configuration looks alike and the first is kept.
    Autotuner._bench = lambda self, *args, config, **kwargs: [1.0, 1.0, 1.0]
    patch_lang = interpreter._patch_lang

    def patched(fn: Any) -> Any:
        fn.__globals__.setdefault("range", lambda *args: map(_Int, builtins.range(*map(int, args))))
        return patch_lang(fn)

    interpreter._patch_lang = patched
    for name in (
        "selective_scan_cuda",
        "causal_conv1d_cuda",
    ):  # mamba imports them, these tests never call them
        sys.modules.setdefault(name, types.ModuleType(name))
    if torch.cuda.is_available():
        return
    enter, leave = torch.cuda.device.__enter__, torch.cuda.device.__exit__  # mamba enters torch.cuda.device(None)
    torch.cuda.device.__enter__ = lambda self: None if self.idx is None else enter(self)
    torch.cuda.device.__exit__ = lambda self, *args: False if self.idx is None else leave(self, *args)
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
        multi_processor_count=1, name="cpu", major=0, minor=0
    )


_install()
