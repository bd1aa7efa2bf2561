"""Lightning's CheckpointIO over ``checkpoint_files``: whole files with a checksum, no pickles read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training import checkpoint_files


class WholeFileIO(CheckpointIO):
    """Saves through a temporary file in the same folder, fsync and rename, with a SHA-256 sidecar written first."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write ``checkpoint`` to ``path``; an error leaves the file that was there."""
        target = Path(path)

        def write_sidecar(file: checkpoint_files.HashingFile) -> None:
            about = {"bytes": file.num_bytes, "sha256": file.sha256, "step": checkpoint["global_step"]}
            checkpoint_files.write_json(checkpoint_files.sidecar(target), about)

        def write(file: checkpoint_files.HashingFile) -> None:
            torch.save(checkpoint, cast(IO[bytes], file))  # it only ever appends

        checkpoint_files.write_whole(target, write, before_rename=write_sidecar)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read ``path`` with ``weights_only``, whatever is asked: nothing of a checkpoint is ever run."""
        del weights_only
        return load(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete the checkpoint and its sidecar."""
        checkpoint_files.remove(Path(path))


def load(path: Path) -> dict[str, Any]:
    """A checkpoint on the CPU, after its checksum was verified; BadSetting names what is wrong with it."""
    reason = checkpoint_files.fault(path)
    if reason is not None:
        raise BadSetting("checkpoint", seen=str(path), allowed="a whole checkpoint", hint=f"Here {reason}")
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    assert isinstance(loaded, Mapping), f"{path} holds no mapping"
    return dict(loaded)
