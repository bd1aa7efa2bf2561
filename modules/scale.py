"""Scales: what a model is at a size (depth, width, heads). Free of torch; how a size is trained is not here.

The values are those of "Rethinking the Role of Efficient Attention in Hybrid Architectures" (arXiv 2606.15378, Table 1:
S1 to S5), of "Switch Attention" (arXiv 2603.26380: switch-1.5b) and a nano ladder of our own for CPUs (n1 to n4).
"""

from __future__ import annotations

from dataclasses import dataclass

from gridlaw.modules.errors import BadSetting


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One row of the size table.

    attention_sink: whether softmax mixers that do not say it themselves have a learnable sink logit per head.
    """

    name: str
    num_layers: int
    d_model: int
    ffn_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention_sink: bool = True

    def __post_init__(self) -> None:
        for field in ("num_layers", "d_model", "ffn_dim", "num_heads", "num_kv_heads", "head_dim"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadSetting(f"scale {self.name}: {field}", seen=value, allowed="a whole number of at least 1")
        if self.num_heads % self.num_kv_heads:
            raise BadSetting(
                f"scale {self.name}: num_kv_heads",
                seen=self.num_kv_heads,
                allowed=f"a divisor of num_heads = {self.num_heads}",
                hint="Every group of query heads shares one key and value head, so the groups must be equal",
            )

    @property
    def inner_dim(self) -> int:
        """Width of all query heads together, H·K: features."""
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key (or value) heads together, G·K: features."""
        return self.num_kv_heads * self.head_dim


def _row(
    name: str, layers: int, d_model: int, ffn_dim: int, heads: tuple[int, int, int], *, attention_sink: bool = True
) -> Scale:
    return Scale(
        name=name,
        num_layers=layers,
        d_model=d_model,
        ffn_dim=ffn_dim,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        attention_sink=attention_sink,
    )


SCALES: dict[str, Scale] = {
    scale.name: scale
    for scale in (
        _row("S1", 10, 384, 960, (6, 2, 64)),
        _row("S2", 12, 512, 1280, (8, 2, 64)),
        _row("S3", 16, 640, 1600, (10, 2, 64)),
        _row("S4", 18, 768, 1920, (12, 2, 64)),
        _row("S5", 30, 1280, 3200, (20, 2, 64)),
        _row("switch-1.5b", 22, 2048, 8192, (16, 8, 128), attention_sink=False),
        _row("n1", 2, 32, 80, (2, 2, 16)),
        _row("n2", 4, 32, 80, (2, 2, 16)),
        _row("n3", 4, 48, 120, (4, 2, 12)),
        _row("n4", 4, 64, 160, (4, 2, 16)),
    )
}
