"""Which documents are held out, and how much of each part of a mixture makes an epoch: arithmetic that a plan needs,
too."""

from __future__ import annotations

from gridlaw.modules.errors import BadSetting


def held_out_by_hash(digest: bytes, fraction: float) -> bool:
    """Whether a document of this content hash is held out: its first 8 bytes as a fraction of 2^64."""
    return int.from_bytes(digest[:8], "big") < fraction * 2.0**64


def share_windows(weights: list[float], available: list[int]) -> list[int]:
    """How many windows of each part make one epoch in the proportion of the weights.

    The scarcest part, against its weight, is used whole; of the others the first windows are. All windows are equally
    long, so windows stand for tokens. BadSetting if a part would get none.
    """
    epoch = min(count / weight for count, weight in zip(available, weights, strict=True))
    shares = [min(count, round(epoch * weight)) for count, weight in zip(available, weights, strict=True)]
    if min(shares) < 1:
        raise BadSetting(
            "data.mixture weights",
            seen=weights,
            allowed=f"weights that leave each part at least one window; the parts have {available}",
            hint="Raise the smallest weight or give more text",
        )
    return shares
