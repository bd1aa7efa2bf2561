"""What every mixer's torch module offers, and what the model hands to it. No algebra is here.

Shapes: B batch rows, T tokens, D model width, H query heads, G key/value heads, K head dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.base import MixerSpec
from gridlaw.modules.models.rope import turns


@dataclass(kw_only=True)
class ForwardContext:
    """What a mixer needs besides its input, and where it leaves what is not its output.

    cos_TK, sin_TK: rotary tables of the T tokens at hand (already at their positions), [T, K/2], or None without RoPE.
    position: tokens before these in the sequence; 0 in the parallel form.
    document_ids: [B, T], equal within a document, or None. Given, documents of a packed window are kept apart:
        masked in softmax mixers, state reset in recurrent ones. Only the parallel form takes it.
    outputs: by layer index, tensors a mixer leaves for the loss or for statistics (switch: router logits, ...).
    options: by name, what a caller asks of mixers that know it (switch: a forced gate); ignored by all others.
    """

    cos_TK: Tensor | None = None
    sin_TK: Tensor | None = None
    position: int = 0
    document_ids: Tensor | None = None
    outputs: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    _turns: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def turns(self, num_turned: int, num_kept: int) -> Tensor:
        """`rope.turns` for these tokens, made once for all layers: num_turned rotated heads, then num_kept others."""
        key = (num_turned, num_kept)
        if key not in self._turns:
            assert self.cos_TK is not None, "the model made no rotary tables"
            assert self.sin_TK is not None, "the model made no rotary tables"
            self._turns[key] = turns(self.cos_TK, self.sin_TK, num_turned, num_kept)
        return self._turns[key]


class Mixer(nn.Module):
    """Mixes tokens; three forms that agree: forward (parallel), extend with T > 1 (prefill), extend with T = 1.

    hidden_matrices: names of the child Linear layers whose weights are hidden matrices (Muon's); the optimiser takes
        every other parameter of a mixer (routers, decays, low-rank gates, vectors) as AdamW's.
    output_projection: the child that writes to the residual stream; its initial scale is divided by sqrt(2·layers).
    """

    output_projection: ClassVar[str] = "o_proj"

    def __init__(self, spec: MixerSpec) -> None:
        super().__init__()
        self.spec = spec

    @property
    def hidden_matrices(self) -> tuple[str, ...]:
        """By default the usual four projections, as far as the mixer has them; a subclass sets a tuple instead."""
        return tuple(name for name in ("q_proj", "k_proj", "v_proj", "o_proj") if hasattr(self, name))

    def forward(self, x_BTD: Tensor, ctx: ForwardContext) -> Tensor:
        """Outputs [B, T, D] of a whole sequence from nothing: the parallel form, for training.

        By default what `extend` gives from an empty state, which cannot keep documents apart.
        """
        if ctx.document_ids is not None:
            raise BadSetting(
                f"mixer {self.spec.name}: document_mask",
                seen=True,
                allowed="false: it does not keep documents apart",
                hint="Override forward in its module and reset or mask where ctx.document_ids changes",
            )
        state = self.init_state(x_BTD.shape[0], x_BTD.shape[1], device=x_BTD.device, dtype=x_BTD.dtype)
        return self.extend(x_BTD, state, ctx)

    def init_state(self, batch_size: int, max_length: int, *, device: torch.device | str, dtype: torch.dtype) -> Any:
        """The state before the first token, for `batch_size` rows of at most `max_length` tokens.

        By default an empty dict that `extend` fills.
        """
        return {}

    def extend(self, x_BTD: Tensor, state: Any, ctx: ForwardContext) -> Tensor:
        """Outputs [B, T, D] of T >= 1 further tokens; `state` is updated in place. Not for training."""
        raise NotImplementedError

    def init_parameter(
        self, name: str, parameter: Tensor, generator: torch.Generator, *, std: float, num_layers: int
    ) -> None:
        """Fill one parameter (name within this module) with its initial values, on the CPU.

        Matrices are normal(0, std), the output projection's std is divided by sqrt(2·num_layers); vectors of norms
        are 1. A mixer with other parameters overrides this and calls super() for the rest.
        """
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            return
        if name.split(".")[0] == self.output_projection:
            std = std / math.sqrt(2 * num_layers)
        parameter.normal_(0.0, std, generator=generator)

    def auxiliary_loss(self, outputs: dict[str, Tensor], nll_BT: Tensor) -> Tensor | None:
        """This layer's own loss per token, [B, T], from what `forward` left in `ctx.outputs`; None without one.

        nll_BT: negative log-likelihood of every token's target, nats; never receives a gradient.
        """
        return None

    def full_share(self, outputs: dict[str, Tensor]) -> Tensor | None:
        """How much of full attention this layer took after `forward` or `extend` left `outputs`.

        [B, T] per token, or one number for all tokens; without a gradient. None where the settings fix it
        (`MixerSpec.fixed_full_ratio`).
        """
        return None


def state_tensors(state: Any) -> list[Tensor]:
    """All tensors inside a mixer's state (tensors, lists, dicts and dataclass-like objects of them)."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, dict):
        return [tensor for value in state.values() for tensor in state_tensors(value)]
    if isinstance(state, list | tuple):
        return [tensor for value in state for tensor in state_tensors(value)]
    if hasattr(state, "__dict__"):
        return state_tensors(vars(state))
    return []
