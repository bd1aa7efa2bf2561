"""The colours of every figure by name, for white paper and dark screens, and which scale or architecture has which.

The ramp for scales is cut from viridis (ordered, even in grey print); architectures have the Okabe–Ito hues (2008),
told apart by people with any colour vision, darkened for white paper and lightened for dark screens. Marks repeat the
distinction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

LIGHT = {
    "paper": "#ffffff", "tint": "#f5f6f8", "ink": "#1b2027", "muted": "#5a6472", "line": "#c9ced6", "grid": "#e8ebef",
    "link": "#0b5cad", "good": "#00684a", "bad": "#b3261e", "warn": "#8a5200",
    "scale-0": "#cc7a0c", "scale-1": "#5aa02c", "scale-2": "#1f9e89", "scale-3": "#26718e", "scale-4": "#414487",
    "scale-5": "#440154",
    "arch-0": "#0072b2", "arch-1": "#c94f00", "arch-2": "#008b62", "arch-3": "#b0508a", "arch-4": "#9a7224",
    "arch-5": "#2b90c8", "arch-6": "#4d4d4d",
}  # fmt: skip
DARK = {
    "paper": "#14171b", "tint": "#1d2127", "ink": "#e7eaee", "muted": "#a2acb9", "line": "#474f5a", "grid": "#2a2f37",
    "link": "#7ab8ff", "good": "#4fd1a1", "bad": "#ff8a80", "warn": "#f2b45a",
    "scale-0": "#8f86e0", "scale-1": "#5d9bd1", "scale-2": "#35b3a8", "scale-3": "#5ec962", "scale-4": "#b5de2b",
    "scale-5": "#fde725",
    "arch-0": "#56b4e9", "arch-1": "#ff8245", "arch-2": "#2fc99a", "arch-3": "#e394c8", "arch-4": "#e8bd38",
    "arch-5": "#9dc3ff", "arch-6": "#c4cac3",
}  # fmt: skip
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "hexagon")
NUM_ARCHITECTURE_COLOURS = 7
NUM_SCALE_COLOURS = 6
RAMP = [[index / (NUM_SCALE_COLOURS - 1), f"var:--scale-{index}"] for index in range(NUM_SCALE_COLOURS)]
"""The ramp of scales as a colour scale of plotly's."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """Colour name and symbol of each scale and architecture, the same in every figure of a page."""

    scales: tuple[str, ...]
    architectures: tuple[str, ...]

    def scale(self, name: str) -> tuple[str, str]:
        """Colour and symbol; the ramp runs from the smallest scale to the largest, whatever their number."""
        index = self.scales.index(name) if name in self.scales else 0
        steps = max(len(self.scales) - 1, 1)
        return f"--scale-{round(index * (NUM_SCALE_COLOURS - 1) / steps)}", SYMBOLS[index % len(SYMBOLS)]

    def architecture(self, name: str) -> tuple[str, str]:
        """Colour and symbol; beyond seven architectures colours repeat with other symbols."""
        index = self.architectures.index(name) if name in self.architectures else 0
        shift = index // NUM_ARCHITECTURE_COLOURS
        return f"--arch-{index % NUM_ARCHITECTURE_COLOURS}", SYMBOLS[(index + shift) % len(SYMBOLS)]


def resolved(item: Any, colours: dict[str, str]) -> Any:
    """A plotly description with ``var:--NAME`` and ``var:--NAME/OPACITY`` replaced by values of ``colours``."""
    if isinstance(item, dict):
        return {key: resolved(value, colours) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [resolved(value, colours) for value in item]
    match = re.fullmatch(r"var:--([\w-]+)(?:/([\d.]+))?", item) if isinstance(item, str) else None
    if match is None:
        return item
    value, opacity = colours[match[1]], match[2]
    if opacity is None:
        return value
    red, green, blue = (int(value[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
