"""Key tokens: where in a text a long context makes a token much easier to predict (LongPPL, Fang et al. 2024).

A token is key if its loss with the short context exceeds its loss with the full one by more than ``alpha``, and the
latter is below ``-beta``. They are kept as slices of the text, so any tokenizer can use them, in a file that people can
share: a first line says what made it, then one JSON line per text. Files are read as JSON and never evaluated.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gridlaw.platform.errors import BadInput

if TYPE_CHECKING:
    from gridlaw.pipelines.evaluations.evaluators import Evaluator, Ids, Losses, Offsets

FORMAT = "gridlaw-key-tokens-1"

Slices = list[list[int]]
"""[start, end) in characters, rising, neighbours joined."""


def short_windows(length: int, *, context: int, slide: int) -> list[tuple[int, int]]:
    """(start, tokens judged) of the short contexts over a text of ``length`` tokens.

    The window from ``start`` has ``context`` tokens that are only seen, then the judged ones (``slide``, fewer in the
    last): each judged token sees between ``context`` and ``context + slide - 1`` tokens.
    """
    return [(start, min(slide, length - context - start)) for start in range(0, length - context, slide)]


def find_key_tokens(
    evaluator: Evaluator, texts: Sequence[str], *, context: int, slide: int, alpha: float, beta: float
) -> list[Slices]:
    """Slices of the key tokens of each text. A text that the short context covers has none.

    All texts' windows go through the model together, so give several texts at a time.
    """
    encoded = [evaluator.encode(text) for text in texts]
    rows: list[Ids] = []
    places: list[tuple[int, int, int]] = []
    for number, (ids, _) in enumerate(encoded):
        ids = ids[: evaluator.max_length]
        windows = short_windows(len(ids), context=context, slide=slide)
        if windows:
            rows.append(ids)
            places.append((number, 0, 0))
        for start, judged in windows:
            rows.append(ids[start : start + context + judged])
            places.append((number, start, judged))
    keys = [np.zeros(len(ids), dtype=bool) for ids, _ in encoded]
    # No token before the end of the first short context is judged, in whole rows neither: their losses are left out.
    full: Losses = np.empty(0, np.float32)
    for (number, start, judged), losses in zip(places, evaluator.losses(rows, skip=context - 1), strict=True):
        if not judged:
            full = losses  # each text's whole row comes before its windows
            continue
        long = full[start : start + judged]
        gap = losses - long
        keys[number][start + context : start + context + judged] = (gap > alpha) & (long < -beta)
    return [merge_slices(offsets[key]) for (_, offsets), key in zip(encoded, keys, strict=True)]


def merge_slices(offsets: Offsets) -> Slices:
    """Offsets with touching or overlapping neighbours joined; empty ones (special tokens) left out."""
    merged: Slices = []
    for start, end in offsets.tolist():
        if start == end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return merged


def tokens_inside(offsets: Offsets, slices: Slices) -> list[int]:
    """Indices of the tokens that lie wholly inside one of the slices; empty tokens never do."""
    inside: list[int] = []
    at = 0
    for index, (start, end) in enumerate(offsets.tolist()):
        while at < len(slices) and slices[at][1] <= start:
            at += 1
        if at < len(slices) and start < end and slices[at][0] <= start and end <= slices[at][1]:
            inside.append(index)
    return inside


def text_hash(text: str) -> str:
    """How a file names a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


def _header(lines: Sequence[bytes]) -> dict[str, Any] | None:
    with suppress(ValueError, IndexError):
        found = json.loads(lines[0])
        return found if isinstance(found, dict) else None
    return None


class KeyTokenFile:
    """Key tokens of many texts by one evaluator and one set of thresholds; grows as texts are done.

    made_by: evaluator, revision, context, slide, alpha, beta.
    """

    def __init__(self, path: Path, made_by: dict[str, Any]) -> None:
        self.path, self.made_by = path, made_by
        self.known: dict[str, Slices] = {}
        if path.exists():
            self._read()

    @staticmethod
    def read_shared(path: Path, thresholds: dict[str, Any]) -> KeyTokenFile:
        """A file that somebody made, whoever the evaluator was; BadInput unless it has these thresholds."""
        header = _header(path.read_bytes().splitlines()) or {}
        made_by = {key: value for key, value in header.items() if key != "format"}
        if header.get("format") != FORMAT or any(made_by.get(key) != value for key, value in thresholds.items()):
            raise BadInput(
                "key token file",
                seen=f"{path}, made by {made_by or 'something else'}",
                allowed=f"a file of key tokens found with {thresholds}",
                hint="Set the same thresholds, or name the file that was made with these",
            )
        return KeyTokenFile(path, made_by)

    def lookup(self, texts: Sequence[str], field: str) -> list[Slices]:
        """Slices of texts that the file must have."""
        missing = sum(text_hash(text) not in self.known for text in texts)
        if missing:
            raise BadInput(
                field,
                seen=f"{self.path}, without {missing} of {len(texts)} texts",
                allowed="a file with the key tokens of every text",
                hint="Take the corpus, length, split and documents that it was made with",
            )
        return [self.known[text_hash(text)] for text in texts]

    def _read(self) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        header = _header(lines)
        if header != {"format": FORMAT, **self.made_by}:
            raise BadInput(
                "key token file",
                seen=str(self.path),
                allowed=f"a file made by {self.made_by}",
                hint="Another evaluator or other thresholds made it: name another file",
            )
        for line in lines[1:]:
            if not line.endswith(b"\n"):
                break  # a kill tore it; that text is done again
            record = json.loads(line)
            self.known[record["text"]] = [[int(start), int(end)] for start, end in record["slices"]]

    def complete(
        self,
        texts: Sequence[str],
        find: Callable[[list[str]], list[Slices]],
        *,
        report: Callable[[int, int], None],
        texts_per_call: int = 16,
    ) -> list[Slices]:
        """Slices of each text; ``find`` is asked for those that are not known, and what each call finds is kept.

        One writer at a time: who calls it holds the folder's lock.
        """
        self._rewrite()
        left = [text for text in dict.fromkeys(texts) if text_hash(text) not in self.known]
        with open(self.path, "a", encoding="utf-8") as file:
            for start in range(0, len(left), texts_per_call):
                asked = left[start : start + texts_per_call]
                for text, slices in zip(asked, find(asked), strict=True):
                    self.known[text_hash(text)] = slices
                    file.write(json.dumps({"text": text_hash(text), "slices": slices}) + "\n")
                file.flush()
                report(len(texts) - len(left) + start + len(asked), len(texts))
        return [self.known[text_hash(text)] for text in texts]

    def _rewrite(self) -> None:
        """Header and whole lines only, in one rename."""
        lines = [json.dumps({"format": FORMAT, **self.made_by})]
        lines += [json.dumps({"text": name, "slices": slices}) for name, slices in self.known.items()]
        aside = self.path.with_name(self.path.name + ".tmp")
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.replace(aside, self.path)
