"""Language models that say which tokens are key: one of ours, or any causal LM of the ``transformers`` package.

An evaluator turns text into ids with offsets and gives the loss of every token after the first.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from gridlaw.modules.data.tokenizers import Tokenizer
from gridlaw.pipelines.evaluations.scoring import BATCH_TOKENS, batches_by_length, pad_rows, token_losses
from gridlaw.platform.errors import BadInput

if TYPE_CHECKING:
    from gridlaw.modules.models.decoder import DecoderLM

Ids = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int64]
Losses = npt.NDArray[np.float32]

MAX_BATCH_LOGITS = 1 << 29
"""1 GiB in bf16."""


class Evaluator(ABC):
    """Ids and offsets of a text, and losses of many sequences of ids at once."""

    max_length: int

    @abstractmethod
    def encode(self, text: str) -> tuple[Ids, Offsets]:
        """ids [T] and, for each, [start, end) in characters of ``text`` [T, 2]; special tokens have start == end."""

    @property
    def batch_tokens(self) -> int:
        """Tokens of one forward pass, unless a single row has more."""
        return BATCH_TOKENS

    @abstractmethod
    def _batch_losses(self, rows: Sequence[Ids], skip: int) -> torch.Tensor:
        """Loss of ids[t + 1] given ids[: t + 1] for t >= skip, fp32 [B, longest - 1 - skip]; what lies beyond a row's
        end is unused."""

    def losses(self, rows: Sequence[Ids], *, skip: int = 0) -> list[Losses]:
        """For each row of T ids (T >= 2 + skip), the losses of its last T - 1 - skip, in nats; batched by length."""
        results: list[Losses] = [np.empty(0, np.float32)] * len(rows)
        for group in batches_by_length([len(row) for row in rows], batch_tokens=self.batch_tokens):
            batch = self._batch_losses([rows[index] for index in group], skip).numpy()
            for index, losses in zip(group, batch, strict=True):
                results[index] = losses[: len(rows[index]) - 1 - skip]
        return results


class OwnEvaluator(Evaluator):
    """A model of this project. No token is put before a text, as the reference implementation does it."""

    def __init__(self, model: DecoderLM, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_length = model.config.context

    def encode(self, text: str) -> tuple[Ids, Offsets]:
        """By the model's tokenizer."""
        tokens, offsets = self.tokenizer.encode_with_offsets(text)
        return tokens.astype(np.int64), offsets

    def _batch_losses(self, rows: Sequence[Ids], skip: int) -> torch.Tensor:
        padded = pad_rows(rows, fill=0)
        return token_losses(self.model, padded[:, :-1], padded[:, 1 + skip :])


class HuggingFaceEvaluator(Evaluator):
    """A causal LM of ``transformers`` with a fast tokenizer, which puts its own special tokens before a text."""

    def __init__(self, name: str, *, revision: str | None = None, device: str = "cpu") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(name, revision=revision)
            loaded: Any = AutoModelForCausalLM.from_pretrained(name, revision=revision, use_safetensors=True)
        except (OSError, ValueError) as error:
            raise BadInput(
                "evaluate.longppl.evaluator",
                seen=name,
                allowed="a point of the grid, a folder, or a causal LM that transformers can load",
                hint=str(error).splitlines()[0],
            ) from error
        self.model: Any = loaded.to(device).eval()
        if not self.tokenizer.is_fast:
            raise BadInput(
                "evaluate.longppl.evaluator",
                seen=name,
                allowed="a model whose tokenizer gives offsets (a fast tokenizer)",
                hint="Key tokens are carried over by their place in the text",
            )
        self.max_length = int(getattr(self.model.config, "max_position_embeddings", 1 << 30))
        self._skips_logits = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    @property
    def batch_tokens(self) -> int:
        """So few that a batch's logits stay within ``MAX_BATCH_LOGITS``: the vocabulary may be large."""
        return min(BATCH_TOKENS, MAX_BATCH_LOGITS // int(self.model.config.vocab_size))

    def encode(self, text: str) -> tuple[Ids, Offsets]:
        """By the model's own tokenizer, special tokens included."""
        encoded = self.tokenizer(text, return_offsets_mapping=True)
        offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return np.array(encoded["input_ids"], dtype=np.int64), offsets

    @torch.inference_mode()
    def _batch_losses(self, rows: Sequence[Ids], skip: int) -> torch.Tensor:
        padded = pad_rows(rows, fill=0).to(self.model.device)
        targets = padded[:, 1 + skip :]
        keep = {"logits_to_keep": targets.shape[1]} if self._skips_logits else {}
        logits = self.model(padded[:, :-1], **keep).logits[:, -targets.shape[1] :]
        losses = [
            torch.nn.functional.cross_entropy(own.float(), target, reduction="none")
            for own, target in zip(logits, targets, strict=True)  # a row at a time: fp32 logits of all would not fit
        ]
        return torch.stack(losses).cpu()


def open_evaluator(
    name: str, *, revision: str | None, folder: str | None, tokenizer: Tokenizer, device: str
) -> Evaluator:
    """The model in ``folder``, one of ours or of transformers; without a folder the Hugging Face model ``name``."""
    from gridlaw.modules.models.checkpoint import MODEL_TYPE, load_model

    if folder is None:
        return HuggingFaceEvaluator(name, revision=revision, device=device)
    path = Path(folder).expanduser()
    config = path / "config.json"
    if not config.is_file() or f'"model_type": "{MODEL_TYPE}"' not in config.read_text(encoding="utf-8"):
        return HuggingFaceEvaluator(str(path), device=device)
    model = load_model(path, device=device)
    if model.config.vocab_size != tokenizer.vocab_size:
        raise BadInput(
            f"vocabulary of the evaluator {name}",
            seen=model.config.vocab_size,
            allowed=f"{tokenizer.vocab_size}, that of its tokenizer",
            hint="Give the prepared data that the evaluator was trained on",
        )
    return OwnEvaluator(model, tokenizer)
