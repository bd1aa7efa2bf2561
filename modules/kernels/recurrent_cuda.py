"""The recurrences on CUDA through fla's and mamba-ssm's Triton kernels, behind the signatures of our own.

Head dims are padded with zeros to a multiple of 16 (gdn's 46 is none) and sliced after; keys of zeros write and read
nothing. fla knows no states shared by query heads, so shared keys and values are repeated. The same functions run in
Triton's interpreter on the CPU, which is how the tests hold them.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gridlaw.modules.kernels.dispatch import missing_package

fla_unavailable = missing_package("fla.ops.gated_delta_rule", "fla.ops.simple_gla")
mamba_unavailable = missing_package("mamba_ssm.ops.triton.ssd_combined")
PADDED_TO = 16


def unsupported(*, documents: bool = False, half: bool = True) -> str | None:
    """Why these kernels cannot do a call."""
    if documents:
        return "keeps no documents apart within a row"
    return None if half else "takes float16 and bfloat16 only"


def _padded(x: Tensor, *dims: int) -> Tensor:
    """Zeros after the end of the last dims (given from the end: 1 is the last), up to a multiple of 16."""
    widths: list[int] = []
    for dim in range(1, max(dims) + 1):
        widths += [0, -x.shape[-dim] % PADDED_TO if dim in dims else 0]
    return F.pad(x, widths) if any(widths) else x


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)


def fla_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float,
    initial_state: Tensor | None, document_ids: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `gated_delta.gated_delta_rule`."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    assert document_ids is None, "the dispatch sends documents elsewhere"
    heads, groups, key_dim, value_dim = q.shape[2], k.shape[2], k.shape[3], v.shape[3]
    k, v, g, beta = (_repeated(x, heads) for x in (k, v, g.float(), beta))
    if initial_state is not None:
        initial_state = _padded(initial_state.float(), 1, 2).repeat_interleave(heads // groups, 1)
    out, state = chunk_gated_delta_rule(
        q=_padded(q, 1).to(v.dtype), k=_padded(k, 1).to(v.dtype), v=_padded(v, 1), g=g, beta=beta.to(v.dtype),
        scale=scale, initial_state=initial_state, output_final_state=True,
    )  # fmt: skip
    state = state[:, :: heads // groups, :key_dim, :value_dim]  # all states of a group are equal
    return out[..., :value_dim].to(q.dtype), state


def fla_scalar_decay(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float,
    initial_state: Tensor | None, document_ids: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `scalar_decay.scalar_decay`; fixed decays go in as gates, too.

    fla's own form for fixed decays overflows where the sequence is no whole number of chunks.
    """
    from fla.ops.simple_gla import chunk_simple_gla

    assert document_ids is None, "the dispatch sends documents elsewhere"
    heads, key_dim, value_dim = max(x.shape[2] for x in (q, k, v)), k.shape[3], v.shape[3]
    gates = g.float().expand(*q.shape[:2], heads).contiguous()
    if initial_state is not None:
        initial_state = _padded(initial_state.float(), 1, 2)
    out, state = chunk_simple_gla(
        q=_padded(_repeated(q, heads), 1), k=_padded(_repeated(k, heads), 1).to(q.dtype),
        v=_padded(_repeated(v, heads), 1).to(q.dtype), g=gates, scale=scale,
        initial_state=initial_state, output_final_state=True,
    )  # fmt: skip
    return out[..., :value_dim], state[..., :key_dim, :value_dim]


def mamba_ssd(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor,
    initial_state: Tensor | None, document_ids: Tensor | None, *, chunk_size: int = 128,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `scalar_decay.ssd`."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    assert document_ids is None, "the dispatch sends documents elsewhere"
    state_dim, head_dim = b.shape[3], x.shape[3]
    if initial_state is not None:  # mamba-ssm's states are [K, S], ours [S, K]
        initial_state = _padded(initial_state.float(), 1, 2).mT.contiguous()
    x_padded, b, c = _padded(x, 1), _padded(b, 1).to(x.dtype), _padded(c, 1).to(x.dtype)
    out, state = mamba_chunk_scan_combined(
        x_padded.contiguous(), dt.float(), a.float(), b.contiguous(), c.contiguous(), chunk_size,
        initial_states=initial_state, return_final_states=True,
    )  # fmt: skip
    return out[..., :head_dim], state.mT[..., :state_dim, :head_dim]
