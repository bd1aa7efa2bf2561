"""Made text for training abilities that rare real text teaches slowly: finding a needle, recalling associations.

A source ``generate:NAME`` is a fixed number of documents, each made from (settings, seed, its number) alone. Filler
words are made, too, so nothing from a held-out corpus can enter.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from gridlaw.modules.data.needles import CLOSE, IS, OPEN
from gridlaw.modules.errors import BadSetting

GENERATOR_VERSION = 1
NUM_WORDS = 2000
MOST = 1_000_000
"""Of documents, and of anything in one: all are made to be counted before anything starts."""
MAX_WORD_CHARACTERS = 8
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
VALUES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

LETTER_KEYS, LETTER_VALUES = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
REPEATED = VALUES + "= \n."

DEFAULTS: dict[str, dict[str, int | str]] = {
    "needle": {"documents": 2000, "words": 60, "questions": 1, "seed": 0},
    "mqar": {"documents": 2000, "pairs": 8, "questions": 8, "keys": "words", "seed": 0},
    "repeat": {"documents": 2000, "shortest": 4, "longest": 32, "characters": 128, "seed": 0},
    "passkey": {"documents": 2000, "characters": 2000, "passkeys": 4, "words": 4, "seed": 0},
}
CHOICES: dict[str, tuple[str, ...]] = {"keys": ("words", "letters")}
LEGACY: dict[str, int | str] = {"keys": "words"}
"""Settings that came later: left out of the identity while they have this value, so that older data stay the same."""
ANSWERS = "RECALL"
"""Opens the questions of ``passkey`` with their answers: nowhere else in its text."""
PASSKEY_SENTENCE = "\n\nThis sequence of words is passkey {number} to the vault: {words}\n\n"
PASSKEY_QUESTION = "\nWhat is passkey {number} to the vault?\nPasskey: {words}\n"


def resolve(name: str, settings: Any, *, field: str) -> dict[str, Any]:
    """Identity of ``generate:name``, every default filled in."""
    if name not in DEFAULTS:
        near = difflib.get_close_matches(name, DEFAULTS, n=1)
        raise BadSetting(
            f"{field}.source",
            seen=f"generate:{name}",
            allowed=", ".join(f"generate:{known}" for known in DEFAULTS),
            hint=f"Did you mean generate:{near[0]}?" if near else "",
        )
    defaults = DEFAULTS[name]
    settings = {} if settings is None else settings
    if not isinstance(settings, dict) or not settings.keys() <= defaults.keys():
        raise BadSetting(f"{field}.settings", seen=settings, allowed=f"a mapping with keys of {', '.join(defaults)}")
    for key, value in settings.items():
        least = 0 if key == "seed" else 1
        if key in CHOICES:
            if value not in CHOICES[key]:
                raise BadSetting(f"{field}.settings.{key}", seen=value, allowed=" or ".join(CHOICES[key]))
        elif isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadSetting(f"{field}.settings.{key}", seen=value, allowed=f"a whole number, {least} or more")
        elif key != "seed" and value > MOST:
            raise BadSetting(f"{field}.settings.{key}", seen=value, allowed=f"at most {MOST:,}")
    merged = {**defaults, **settings}
    most = len(LETTER_KEYS if merged.get("keys") == "letters" else VALUES)
    if name == "mqar" and merged["pairs"] > most:
        raise BadSetting(f"{field}.settings.pairs", seen=merged["pairs"], allowed=f"at most {most}")
    if name == "needle" and merged["questions"] > NUM_WORDS // 2:
        raise BadSetting(f"{field}.settings.questions", seen=merged["questions"], allowed=f"at most {NUM_WORDS // 2:,}")
    if name == "repeat" and not merged["shortest"] <= merged["longest"] <= merged["characters"] // 2:
        raise BadSetting(
            f"{field}.settings.longest",
            seen=merged["longest"],
            allowed=f"{merged['shortest']} (shortest) to {merged['characters'] // 2} (half of characters)",
        )
    if name == "passkey":
        needed = _passkey_characters(merged)
        if merged["characters"] < needed:
            raise BadSetting(
                f"{field}.settings.characters", seen=merged["characters"],
                allowed=f"at least {needed}, twice {merged['passkeys']} passkeys of {merged['words']} words",
                hint="Make documents longer, or passkeys fewer or shorter",
            )  # fmt: skip
    settings = {key: value for key, value in merged.items() if LEGACY.get(key) != value}
    return {"kind": "generate", "name": name, "version": GENERATOR_VERSION, **settings}


def documents(identity: dict[str, Any]) -> Iterator[str]:
    """The texts of a generator, in order."""
    make = _MAKERS[identity["name"]]
    words = made_words()
    for number in range(identity["documents"]):
        yield make(identity, words, np.random.default_rng([identity["seed"], number]))


def num_characters(identity: dict[str, Any]) -> int:
    """Of all documents of a generator together; without making them where each has the length that it is told."""
    if "characters" in identity:
        return int(identity["documents"] * identity["characters"])
    return sum(len(text) for text in documents(identity))


@cache
def made_words() -> tuple[str, ...]:
    """NUM_WORDS different words of four to eight letters, the same everywhere."""
    rng = np.random.default_rng(1)
    words: dict[str, None] = {}
    while len(words) < NUM_WORDS:
        syllables = [rng.choice(list(_CONSONANTS)) + rng.choice(list(_VOWELS)) for _ in range(rng.integers(2, 5))]
        words["".join(syllables)] = None
    return tuple(words)


def _needle(settings: dict[str, Any], words: Sequence[str], rng: np.random.Generator) -> str:
    """Filler with one needle per question somewhere in it, then the questions with their answers."""
    # Common words are drawn more often, as in real text (Zipf).
    shares = 1 / np.arange(1, len(words) + 1)
    filler = [words[i] for i in rng.choice(len(words), size=settings["words"], p=shares / shares.sum())]
    chosen = [words[i] for i in rng.choice(len(words), size=2 * settings["questions"], replace=False)]
    sentences = [f"{OPEN}{key}{IS} {value}{CLOSE}" for key, value in zip(chosen[::2], chosen[1::2], strict=True)]
    places = np.sort(rng.integers(0, len(filler) + 1, size=len(sentences)))
    text, last = "", 0
    for place, sentence in zip(places, sentences, strict=True):
        text += " ".join(filler[last:place]) + sentence
        last = place
    text += " ".join(filler[last:])
    return text + "".join(sentences[i] for i in rng.permutation(len(sentences)))


def _mqar(settings: dict[str, Any], words: Sequence[str], rng: np.random.Generator) -> str:
    """Key and value pairs, then keys asked again with their values (Arora et al. 2023, arXiv 2312.04927).

    Words stand in lines ``\\n key value``. Letters stand without anything between them, ``kvkv…``: a token predicts the
    next, as in the original, and a model of 100,000 parameters learns it within about a million tokens.
    """
    if settings.get("keys") == "letters":
        drawn = [rng.choice(list(text), size=settings["pairs"], replace=False) for text in (LETTER_KEYS, LETTER_VALUES)]
        pairs = ["".join(pair) for pair in zip(*drawn, strict=True)]
        return "".join(pairs) + "".join(pairs[i] for i in rng.integers(len(pairs), size=settings["questions"]))
    keys = [words[i] for i in rng.choice(len(words), size=settings["pairs"], replace=False)]
    values = [VALUES[i] for i in rng.choice(len(VALUES), size=settings["pairs"], replace=False)]
    lines = [f"\n {key} {value}" for key, value in zip(keys, values, strict=True)]
    asked = rng.integers(len(lines), size=settings["questions"])
    return "".join(lines) + "".join(lines[i] for i in asked) + "\n"


def _repeat(settings: dict[str, Any], words: Sequence[str], rng: np.random.Generator) -> str:
    """A random segment written again and again: what makes induction heads (Olsson et al. 2022, arXiv 2209.11895)."""
    size = int(rng.integers(settings["shortest"], settings["longest"] + 1))
    segment = "".join(rng.choice(list(REPEATED), size=size))
    return (segment * (settings["characters"] // size + 1))[: settings["characters"]]


def _passkey_characters(settings: dict[str, Any]) -> int:
    """Characters of the longest possible document without filler."""
    words = settings["words"] * (MAX_WORD_CHARACTERS + 1) - 1
    longest = {"number": settings["passkeys"], "words": "a" * words}
    one = len(PASSKEY_SENTENCE.format(**longest)) + len(PASSKEY_QUESTION.format(**longest))
    return settings["passkeys"] * one + len(f"\n\n{ANSWERS}\n")


def _passkey(settings: dict[str, Any], words: Sequence[str], rng: np.random.Generator) -> str:
    """Passkeys (sequences of random words) somewhere in filler, all asked for in order at the end.

    After DuoAttention's training text (Xiao et al. 2024, arXiv 2410.10819), with made words instead of a book. Every
    document has exactly ``characters`` characters: one less than a byte model's context fills its windows.
    """
    keys = [" ".join(words[i] for i in rng.integers(len(words), size=settings["words"]))
            for _ in range(settings["passkeys"])]  # fmt: skip
    sentences, questions = (
        [form.format(number=number + 1, words=key) for number, key in enumerate(keys)]
        for form in (PASSKEY_SENTENCE, PASSKEY_QUESTION)
    )
    ending = f"\n\n{ANSWERS}\n" + "".join(questions)
    room = settings["characters"] - len(ending) - sum(map(len, sentences))
    shares = 1 / np.arange(1, len(words) + 1)
    drawn = rng.choice(len(words), size=room // 5 + 1, p=shares / shares.sum())  # the shortest word and its space
    filler = " ".join(words[i] for i in drawn)[:room]
    places = np.sort(rng.integers(0, room + 1, size=len(sentences)))
    text, last = "", 0
    for place, sentence in zip(places, sentences, strict=True):
        text += filler[last:place] + sentence
        last = place
    return text + filler[last:] + ending


_MAKERS: dict[str, Callable[[dict[str, Any], Sequence[str], np.random.Generator], str]] = {
    "needle": _needle,
    "mqar": _mqar,
    "repeat": _repeat,
    "passkey": _passkey,
}
