"""What an evaluation is given beside model and prepared data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridlaw.pipelines.evaluations.registry import Evaluation

EXAMPLES_FILE = "examples.arrow"

Progress = Callable[[int, int], None]
"""Called with (examples done, examples in all)."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What an evaluation needs beside model and prepared data; JSON-able by ``to_dict``.

    examples: folder where its examples are, or are to be made. evaluator: {identity, and of the rest what there is:
    folder (of its model), data (its prepared data, for its tokenizer), file (of key tokens)}. corpus: {identity,
    location} of a source of its own.
    """

    examples: str | None = None
    evaluator: dict[str, Any] = field(default_factory=dict)
    corpus: dict[str, Any] | None = None

    @classmethod
    def of(
        cls, evaluation: Evaluation, *, examples: str | None = None, point: Mapping[str, str] | None = None
    ) -> Inputs:
        """What an evaluation with its sources needs. point: folder and data of the one that finds key tokens."""
        source, corpus = evaluation.evaluator, evaluation.corpus
        given: dict[str, Any] = {}
        if source is not None:
            given = {"identity": source.identity, "folder": source.folder, "file": source.file, **(point or {})}
        return cls(
            examples=examples,
            evaluator=given,
            corpus=None if corpus is None else {"identity": corpus.identity, "location": corpus.location},
        )

    def to_dict(self) -> dict[str, Any]:
        """For a task."""
        return asdict(self)

    def identity(self) -> dict[str, Any]:
        """What of it decides numbers: no folder does."""
        return {
            "evaluator": self.evaluator.get("identity"),
            "corpus": None if self.corpus is None else self.corpus["identity"],
        }
