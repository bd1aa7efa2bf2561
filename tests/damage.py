"""What happens to files on disks, done to checkpoints by tests."""

from __future__ import annotations

from pathlib import Path

from gridlaw.modules.training import checkpoint_files


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Lose the end, as a file does that was half-written."""
    path.write_bytes(path.read_bytes()[:-100])


def lose_sidecar(path: Path) -> None:
    checkpoint_files.sidecar(path).unlink()


def spoil_sidecar(path: Path) -> None:
    checkpoint_files.sidecar(path).write_text("{")
