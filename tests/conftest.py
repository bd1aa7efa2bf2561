"""Helpers that tests import by name (`import peers`) live beside this file; one thread per test process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path(
    "/dev/nvidiactl"
).exists():  # peers' kernels are interpreted then, and triton reads this when first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")
sys.path.append(str(Path(__file__).parent))  # appended, never first: tests/platform must not come before the library
