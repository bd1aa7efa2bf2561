"""DuoAttention's way to tell retrieval heads from streaming heads (arXiv 2410.10819, section 2.2; its released code).

All weights are frozen but one gate per KV head. On made text in which passkeys far back are asked for, the final hidden
states with gated heads are compared with those of the same model with every head full:

    loss = mean over answers' tokens and features of (full − gated)² + l1 · mean |gate|

Gates are clamped to [0, 1] before every forward pass. At the end they become 0 or 1: above a threshold, or the largest
ones up to a share of all heads (the original adds a little noise to break ties; here the earlier head wins).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.duo.module import ALL_FULL, DuoAttention
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.training.settings import DistillSettings

Hidden = Callable[..., Tensor]
"""Tokens [B, T] and their context → hidden states [B, T, D]."""


def duo_layers(model: DecoderLM) -> list[DuoAttention]:
    """The layers with gates, in order."""
    return [layer.mixer for layer in model.blocks() if isinstance(layer.mixer, DuoAttention)]


class Distillation:
    """The objective of one run; freezes all parameters of ``model`` but the gates.

    marker: ids after which, up to an end token, the answers stand; None compares all tokens.
    """

    def __init__(
        self, model: DecoderLM, settings: DistillSettings, *, marker: tuple[int, ...] | None, end_token_id: int
    ) -> None:
        self.model, self.settings, self.marker, self.end_token_id = model, settings, marker, end_token_id
        model.requires_grad_(False)
        for mixer in duo_layers(model):
            mixer.gate.requires_grad_(True)

    def losses(self, tokens_BT: Tensor, ctx: ForwardContext, hidden: Hidden) -> tuple[Tensor, Tensor]:
        """(distance of hidden states, l1 · mean gate) of one micro-batch.

        ctx: of the gated pass, which leaves its statistics there. hidden: the model's, compiled where that was asked.
        """
        gates: list[Tensor] = [mixer.gate for mixer in duo_layers(self.model)]
        with torch.no_grad():
            for gate in gates:
                gate.clamp_(0.0, 1.0)
            full_ctx = self.model.context_for(tokens_BT, document_ids=ctx.document_ids, options={ALL_FULL: True})
            full_BTD = self.model.hidden(tokens_BT, ctx=full_ctx)
        gated_BTD = hidden(tokens_BT, ctx=ctx)
        distance_BT = (gated_BTD.float() - full_BTD.float()).square().mean(-1)
        penalty = self.settings.l1 * torch.cat(gates).abs().mean()
        if self.marker is None:
            return distance_BT.mean(), penalty
        is_answer_BT = answer_tokens(tokens_BT, self.marker, self.end_token_id)
        if not bool(is_answer_BT.any()):
            raise BadSetting(
                "training.distill.tokens",
                seen="answers",
                allowed="all, or text with answers in every micro-batch (generate:passkey)",
                hint="Make its documents about as long as the context, so that each window holds a question",
            )
        return (distance_BT * is_answer_BT).sum() / is_answer_BT.sum(), penalty


def answer_tokens(tokens_BT: Tensor, marker: tuple[int, ...], end_token_id: int) -> Tensor:
    """True from behind a marker up to the next end token, that one not included, [B, T]."""
    length, places_T = tokens_BT.shape[1], torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    found_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    if length >= len(marker):
        windows = tokens_BT.unfold(1, len(marker), 1)
        found_BT[:, len(marker) - 1 :] = (windows == tokens_BT.new_tensor(marker)).all(-1)
    last_marker_BT = torch.where(found_BT, places_T, -1).cummax(1).values
    last_end_BT = torch.where(tokens_BT == end_token_id, places_T, -1).cummax(1).values
    return (last_marker_BT > last_end_BT) & (places_T > last_marker_BT)


def binary_gates(gates: list[list[float]], settings: DistillSettings) -> list[list[bool]]:
    """Which heads stay full, by layer, from the learned gates."""
    if settings.full_heads is None:
        return [[gate > settings.threshold for gate in layer] for layer in gates]
    places = [(-gate, layer, head) for layer, row in enumerate(gates) for head, gate in enumerate(row)]
    chosen = {place[1:] for place in sorted(places)[: round(settings.full_heads * len(places))]}
    return [[(layer, head) in chosen for head in range(len(row))] for layer, row in enumerate(gates)]


def binarised(model: DecoderLM, settings: DistillSettings) -> tuple[DecoderLM, list[list[float]]]:
    """The model with gates of 0 and 1 and layers that compute and keep only what these need; and the learned gates."""
    learned = [mixer.gate.detach().clamp(0, 1).tolist() for mixer in duo_layers(model)]
    layers = tuple(
        {**layer, "binary": True} if layer["mixer"] == "duo" else dict(layer) for layer in model.config.layers
    )
    result = DecoderLM(dataclasses.replace(model.config, layers=layers))
    result.load_state_dict(model.state_dict())
    with torch.no_grad():
        for mixer, chosen in zip(duo_layers(result), binary_gates(learned, settings), strict=True):
            mixer.gate.copy_(torch.tensor(chosen, dtype=mixer.gate.dtype))
    return result, learned
