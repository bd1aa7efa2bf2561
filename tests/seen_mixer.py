"""A third party's mixer, installed for a test: full attention that notes which GPUs its process may see, and when.

Nothing of gridlaw is replaced but the Trainer's accelerator, because the GPUs of that test are a cluster's word only.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gridlaw.modules.mixers.full.spec import FullSpec

FOLDER = "GRIDLAW_TESTS_SEEN"
"""Variable with the folder of notes: one file a training, with what it saw and when its first and last step were."""


@dataclass(frozen=True, kw_only=True)
class SeenSpec(FullSpec):
    name: ClassVar[str] = "seen"

    def build(self, scale: Any, *, layer_index: int, **more: Any) -> Any:
        from gridlaw.modules.mixers.full.module import FullAttention

        train_on_cpu()
        note = Path(os.environ[FOLDER]) / f"{os.getpid()}-{time.time_ns()}.json"
        about = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "width": scale.d_model, "first": 0.0}

        class Seen(FullAttention):
            def forward(self, x_BTD: Any, ctx: Any) -> Any:
                if self.training and layer_index == 0:
                    about["first"] = about["first"] or time.time()
                    note.write_text(json.dumps(about | {"last": time.time()}))
                return super().forward(x_BTD, ctx)

        return Seen(self, scale)


def train_on_cpu() -> None:
    """The Trainer's accelerator, whatever it is asked for."""
    import lightning.pytorch as pl

    trainer = pl.Trainer
    if getattr(trainer, "on_cpu", False):
        return

    class Trainer(trainer):
        on_cpu = True

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings | {"accelerator": "cpu"})

    pl.Trainer = Trainer
