"""Needle-in-a-haystack samples as token arrays: where an answer is hidden, and what it is ranked among.

One definition for training text (the source ``generate:needle``) and for the evaluation. The needle says
``{OPEN}{key}{IS}{value}{CLOSE}`` and the sample ends with ``{OPEN}{key}{IS}``, so the tokens that lead to the answer
are the same in both places. Key and value are words of a text; all candidates have as many tokens as the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gridlaw.modules.data.tokenizers import TokenArray, Tokenizer
from gridlaw.modules.errors import BadSetting

OPEN, IS, CLOSE = "\nThe key of ", " is", ".\n"
_WORD = re.compile(r"[A-Za-z]{4,10}")
MAX_WORDS = 4096


@dataclass(frozen=True, kw_only=True)
class NeedleSample:
    """One question.

    prompt: tokens up to where the answer starts. candidates: values, all of one token length, [candidates, answer
    tokens]; answer: which of them is right. depth: 0 (haystack's start) to 1 (its end). needle_at: index in the prompt
    of the needle's first token.
    """

    prompt: npt.NDArray[np.int64]
    candidates: npt.NDArray[np.int64]
    answer: int
    depth: float
    needle_at: int

    @property
    def length(self) -> int:
        """Prompt and generated answer together, in tokens."""
        return len(self.prompt) + self.candidates.shape[1]


class WordPool:
    """Words of a text with a leading space, all of one number of tokens: the number that most of its words have.

    Answers of equal length keep ranking fair without a length penalty, and samples of one length in step.
    """

    def __init__(self, texts: Iterable[str], tokenizer: Tokenizer) -> None:
        found: set[str] = set()
        for text in texts:
            found.update(word.lower() for word in _WORD.findall(text))
            if len(found) >= MAX_WORDS:
                break
        by_length: dict[int, list[TokenArray]] = {}
        for tokens in tokenizer.encode_many([" " + word for word in sorted(found)[:MAX_WORDS]]):
            by_length.setdefault(len(tokens), []).append(tokens)
        self.words = max(by_length.values(), key=len, default=[])

    def draw(self, count: int, rng: np.random.Generator) -> list[TokenArray]:
        """``count`` different words."""
        if len(self.words) < count:
            raise BadSetting(
                "words to draw needles from",
                seen=f"{len(self.words)} words of one length",
                allowed=f"{count} or more words that have equally many tokens",
                hint="Use more held-out text or fewer candidates",
            )
        return [self.words[index] for index in rng.choice(len(self.words), size=count, replace=False)]


@dataclass(frozen=True, kw_only=True)
class NeedleMaker:
    """Makes samples from a stream of haystack tokens and a pool of words."""

    haystack: TokenArray
    words: WordPool
    tokenizer: Tokenizer

    def make(self, *, length: int, depth: float, candidates: int, rng: np.random.Generator) -> NeedleSample:
        """A sample of exactly ``length`` tokens, the answer's included, that starts with an end-of-document token."""
        # Values and key come from one draw: the key is never a candidate.
        *values, key = self.words.draw(candidates + 1, rng)
        answer = int(rng.integers(candidates))
        opening, middle, closing = (self.tokenizer.encode(text) for text in (OPEN.rstrip(" "), IS, CLOSE))
        question = np.concatenate([opening, key, middle])
        needle = np.concatenate([question, values[answer], closing])
        num_haystack = length - 1 - len(needle) - len(question) - len(values[answer])
        if num_haystack < 0:
            raise BadSetting(
                "needle sample length",
                seen=length,
                allowed=f"at least {length - num_haystack} tokens, needle, question and answer",
                hint="Ask for longer samples",
            )
        if num_haystack > len(self.haystack):
            raise BadSetting(
                "haystack text",
                seen=f"{len(self.haystack)} tokens",
                allowed=f"{num_haystack} tokens or more",
                hint="Use more held-out text or shorter samples",
            )
        start = int(rng.integers(len(self.haystack) - num_haystack + 1))
        straw = self.haystack[start : start + num_haystack]
        at = round(depth * num_haystack)
        end = [self.tokenizer.end_token_id]
        prompt = np.concatenate([end, straw[:at], needle, straw[at:], question]).astype(np.int64)
        sample = NeedleSample(
            prompt=prompt,
            candidates=np.stack(values).astype(np.int64),
            answer=answer,
            depth=depth,
            needle_at=1 + at,
        )
        assert sample.length == length, f"sample of {sample.length} tokens, {length} asked for"
        return sample


def needle_grid(
    maker: NeedleMaker, *, lengths: list[int], num_depths: int, samples: int, candidates: int, seed: int
) -> list[NeedleSample]:
    """Samples of a length × depth grid, cell by cell; each cell has its own random stream, so any can be made alone."""
    made = []
    for row, length in enumerate(lengths):
        for column, depth in enumerate(depth_fractions(num_depths)):
            rng = np.random.default_rng([seed, row, column, length])
            made += [maker.make(length=length, depth=depth, candidates=candidates, rng=rng) for _ in range(samples)]
    return made


def depth_fractions(num_depths: int) -> list[float]:
    """Evenly spaced from 0 to 1; the middle for a single one."""
    if num_depths == 1:
        return [0.5]
    return [index / (num_depths - 1) for index in range(num_depths)]


def haystack_of(documents: Iterable[npt.NDArray[Any]], *, max_tokens: int) -> TokenArray:
    """Documents one after another, without end tokens, up to ``max_tokens``."""
    taken: list[npt.NDArray[Any]] = []
    count = 0
    for tokens in documents:
        taken.append(tokens)
        count += len(tokens)
        if count >= max_tokens:
            break
    return np.concatenate(taken)[:max_tokens] if taken else np.empty(0, dtype=np.int64)
