"""The language model: embedding, pre-norm layers of a mixer and a SwiGLU, final norm, untied head.

What a layer mixes with is data (`ModelConfig.layers`); nothing here knows a mixer by name.
Shapes: B batch rows, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.base import MixerSpec
from gridlaw.modules.mixers.module_base import ForwardContext, state_tensors
from gridlaw.modules.mixers.softmax_module import cache_full
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.ffn import SwiGLU
from gridlaw.modules.models.norm import RMSNorm
from gridlaw.modules.models.rope import RotaryTables
from gridlaw.modules.scale import Scale


class Block(nn.Module):
    """x + mixer(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, spec: MixerSpec, scale: Scale, *, layer_index: int, norm_eps: float) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(scale.d_model, eps=norm_eps)
        self.mixer = spec.build(scale, layer_index=layer_index, num_layers=scale.num_layers, norm_eps=norm_eps)
        self.ffn_norm = RMSNorm(scale.d_model, eps=norm_eps)
        self.ffn = SwiGLU(scale.d_model, spec.ffn_dim(scale))

    def forward(self, x_BTD: Tensor, ctx: ForwardContext, *, last: int | None = None) -> Tensor:
        """last: only so many outputs, those of the last tokens."""
        x_BTD = x_BTD + self.mixer(self.mixer_norm(x_BTD), ctx)
        x_BTD = x_BTD if last is None else x_BTD[:, -last:]
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))

    def extend(self, x_BTD: Tensor, state: Any, ctx: ForwardContext) -> Tensor:
        """The same for T further tokens from a state."""
        x_BTD = x_BTD + self.mixer.extend(self.mixer_norm(x_BTD), state, ctx)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


@dataclass(kw_only=True)
class Cache:
    """What decoding keeps: one state per layer, and how many tokens they have seen."""

    states: list[Any]
    batch_size: int
    max_length: int
    length: int = 0

    def num_bytes(self) -> int:
        """Bytes of all tensors kept."""
        return sum(tensor.numel() * tensor.element_size() for tensor in state_tensors(self.states))


class DecoderLM(nn.Module):
    """A decoder-only language model; call `initialise(seed)` before training from scratch."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        scale, specs = config.scale, config.mixers()
        for spec in specs:
            spec.check(scale)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(
            Block(spec, scale, layer_index=index, norm_eps=config.norm_eps) for index, spec in enumerate(specs)
        )
        self.final_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        needs_rope = any(spec.uses_rope for spec in specs)
        self.rotary = (
            RotaryTables(config.head_dim, config.rope_base, scaling=config.rope_scaling) if needs_rope else None
        )

    def blocks(self) -> list[Block]:
        """The layers, in order."""
        return cast(list[Block], list(self.layers))

    @torch.no_grad()
    def initialise(self, seed: int) -> DecoderLM:
        """Fill every parameter from (seed, its name): the global RNG, other layers and the device play no part."""
        std, num_layers = self.config.init_std, self.config.num_layers
        for name, parameter in self.named_parameters():
            generator = torch.Generator().manual_seed(_seed_of(seed, name))
            values = torch.empty(parameter.shape, dtype=torch.float32)
            parts = name.split(".")
            if parts[0] == "layers" and parts[2] == "mixer":
                mixer = self.blocks()[int(parts[1])].mixer
                mixer.init_parameter(".".join(parts[3:]), values, generator, std=std, num_layers=num_layers)
            elif parameter.dim() == 1:
                values.fill_(1.0)
            else:
                is_output = parts[-2] == "down_proj"
                values.normal_(0.0, std / math.sqrt(2 * num_layers) if is_output else std, generator=generator)
            parameter.copy_(values)
        return self

    def context_for(
        self, tokens_BT: Tensor, *, position: int = 0, document_ids: Tensor | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ForwardContext:  # fmt: skip
        """What the mixers get besides their input; pass it to `hidden` to read `outputs` afterwards."""
        cos, sin = (None, None)
        if self.rotary is not None:
            cos, sin = self.rotary(position, tokens_BT.shape[1], tokens_BT.device)
        return ForwardContext(
            cos_TK=cos, sin_TK=sin, position=position, document_ids=document_ids, options=dict(options or {})
        )

    def hidden(
        self,
        tokens_BT: Tensor,
        *,
        document_ids: Tensor | None = None,
        ctx: ForwardContext | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Hidden states after the final norm, [B, T, D]; times `head.weight` they are the logits.

        last: only those of so many last tokens, which saves what nobody asks for.
        """
        ctx = self.context_for(tokens_BT, document_ids=document_ids) if ctx is None else ctx
        x_BTD = self.embedding(tokens_BT)
        *earlier, end = self.blocks()
        for layer in earlier:
            x_BTD = layer(x_BTD, ctx)
        return self.final_norm(end(x_BTD, ctx, last=last))

    def forward(self, tokens_BT: Tensor, *, document_ids: Tensor | None = None) -> Tensor:
        """Logits [B, T, V]. document_ids [B, T]: given, the documents of a packed window do not see each other."""
        return self.head(self.hidden(tokens_BT, document_ids=document_ids))

    def auxiliary_loss(self, ctx: ForwardContext, nll_BT: Tensor) -> Tensor | None:
        """Mean over layers and tokens of the mixers' own losses after `hidden(..., ctx=ctx)`; None if they have none.

        nll_BT: negative log-likelihood per token, nats. Layers without such a loss do not enter the mean.
        """
        losses = [
            loss
            for index, outputs in sorted(ctx.outputs.items())
            if (loss := self.blocks()[index].mixer.auxiliary_loss(outputs, nll_BT)) is not None
        ]
        return torch.stack([loss.mean() for loss in losses]).mean() if losses else None

    def full_shares(self, ctx: ForwardContext) -> list[Tensor]:
        """Share of full attention by layer after `hidden` or `extend` with `ctx`: [B, T] per token, or one number."""
        scale, shares = self.config.scale, []
        for index, layer in enumerate(self.blocks()):
            share = layer.mixer.full_share(ctx.outputs.get(index, {}))
            if share is None:
                fixed = layer.mixer.spec.fixed_full_ratio(scale)
                assert fixed is not None, f"mixer {layer.mixer.spec.name} tells no share of full attention"
                share = torch.tensor(fixed, device=self.embedding.weight.device)
            shares.append(share)
        return shares

    @property
    def chooses(self) -> bool:
        """Whether some layer's share of full attention is decided by its weights or tokens (switch, duo)."""
        return any(spec.fixed_full_ratio(self.config.scale) is None for spec in self.config.mixers())

    def init_cache(
        self, batch_size: int, max_length: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Cache:
        """An empty cache for `batch_size` rows of at most `max_length` tokens."""
        device = self.embedding.weight.device if device is None else device
        dtype = self.embedding.weight.dtype if dtype is None else dtype
        states = [layer.mixer.init_state(batch_size, max_length, device=device, dtype=dtype) for layer in self.blocks()]
        return Cache(states=states, batch_size=batch_size, max_length=max_length)

    @torch.no_grad()
    def extend(self, tokens_BT: Tensor, cache: Cache, *, ctx: ForwardContext | None = None) -> Tensor:
        """Logits [B, T, V] of T >= 1 further tokens; the cache then holds them, too."""
        return self.head(self.extend_hidden(tokens_BT, cache, ctx=ctx))

    @torch.no_grad()
    def extend_hidden(self, tokens_BT: Tensor, cache: Cache, *, ctx: ForwardContext | None = None) -> Tensor:
        """Hidden states [B, T, D] of T >= 1 further tokens, without the head."""
        batch_size, num_tokens = tokens_BT.shape
        if batch_size != cache.batch_size:
            raise BadSetting("cache: batch size", seen=batch_size, allowed=f"{cache.batch_size}, as in init_cache")
        if cache.length + num_tokens > cache.max_length:
            raise cache_full(cache.length + num_tokens, cache.max_length)
        ctx = self.context_for(tokens_BT, position=cache.length) if ctx is None else ctx
        x_BTD = self.embedding(tokens_BT)
        for layer, state in zip(self.blocks(), cache.states, strict=True):
            x_BTD = layer.extend(x_BTD, state, ctx)
        cache.length += num_tokens
        return self.final_norm(x_BTD)

    @torch.no_grad()
    def generate_greedy(self, tokens_BT: Tensor, num_new: int, *, stop_token: int | None = None) -> Tensor:
        """The most likely continuation, [B, num_new] (fewer if every row has met `stop_token`)."""
        cache = self.init_cache(tokens_BT.shape[0], tokens_BT.shape[1] + num_new)
        hidden = self.extend_hidden(tokens_BT, cache)
        new: list[Tensor] = []
        stopped = torch.zeros(tokens_BT.shape[0], dtype=torch.bool, device=tokens_BT.device)
        for _ in range(num_new):
            token_B1 = F.linear(hidden[:, -1:], self.head.weight).argmax(-1)
            new.append(token_B1)
            if stop_token is not None:
                stopped |= token_B1[:, 0] == stop_token
            if len(new) == num_new or bool(stopped.all()):
                break
            hidden = self.extend_hidden(token_B1, cache)
        return torch.cat(new, 1) if new else tokens_BT[:, :0]


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
