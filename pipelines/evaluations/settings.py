"""Settings of each evaluation: names, defaults and checks. Free of torch.

Everything in a settings class changes an evaluation's numbers and enters its fingerprint, together with ``version``,
which is raised when the code behind a metric changes its numbers.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gridlaw.platform.errors import BadInput


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else ""


def whole(field: str, value: Any, *, at_least: int = 1, optional: bool = False) -> None:
    """BadInput unless ``value`` is a whole number of ``at_least`` or more (or None where optional)."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        allowed = f"a whole number, {at_least} or more" + (", or nothing" if optional else "")
        raise BadInput(field, seen=value, allowed=allowed)


def number(field: str, value: Any, *, above: float | None = None) -> None:
    """BadInput unless ``value`` is a finite number (above ``above``)."""
    good = not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < float("inf")
    if not good or (above is not None and value <= above):
        raise BadInput(field, seen=value, allowed="a number" + ("" if above is None else f" above {above}"))


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Base: reading from a file's mapping and writing to the fingerprint's dict."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    summary: ClassVar[str]

    @classmethod
    def read(cls, values: Any) -> Self:
        """Settings from a grid file's mapping; BadInput names the field, the value and what is allowed."""
        known = [field.name for field in dataclasses.fields(cls)]
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise BadInput(f"evaluate.{cls.name}", seen=values, allowed=f"a mapping with keys of {', '.join(known)}")
        for key in values:
            if key not in known:
                raise BadInput(
                    f"evaluate.{cls.name}.{key}", allowed=f"the keys {', '.join(known)}", hint=nearest(str(key), known)
                )
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING and field.name not in values:
                raise BadInput(
                    f"evaluate.{cls.name}.{field.name}",
                    allowed="a value: it has no default",
                    hint=f"As in {{{cls.name}: {{{field.name}: …}}}}",
                )
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, every default filled in; ``read`` takes it back (without ``version``)."""
        return {
            field.name: list(value) if isinstance(value := getattr(self, field.name), tuple) else value
            for field in dataclasses.fields(self)
        }

    def field(self, name: str) -> str:
        """A setting as messages call it."""
        return f"evaluate.{self.name}.{name}"

    def check_context(self, context: int) -> None:
        """BadInput for what a model of ``context`` positions cannot be asked; a plan asks before anything starts."""

    def _at_most(self, name: str, value: int | None, context: int) -> None:
        if value is not None and value > context:
            raise BadInput(self.field(name), seen=value, allowed=f"at most {context}, the model's positions")


@dataclass(frozen=True, kw_only=True)
class LossSettings(EvaluationSettings):
    """documents: the first so many held-out documents; tokens: about so many predicted tokens, in pieces picked
    evenly over the documents; context: longest piece in tokens (the data's own when nothing is given).
    """

    name: ClassVar[str] = "loss"
    summary: ClassVar[str] = "mean negative log-likelihood per held-out token, bits per byte, loss by position"

    documents: int | None = None
    tokens: int | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        for name in ("documents", "tokens", "context"):
            whole(self.field(name), getattr(self, name), optional=True)

    def check_context(self, context: int) -> None:
        self._at_most("context", self.context, context)


@dataclass(frozen=True, kw_only=True)
class NiahSettings(EvaluationSettings):
    """depths: so many places of the needle, evenly from the start to the end of the haystack. lengths: so many
    lengths, evenly up to ``max_length``, or a list of tokens. samples: per cell of the grid. candidates: values that
    the right one is ranked among, itself included: chance is 1 / candidates.
    """

    name: ClassVar[str] = "niah"
    summary: ClassVar[str] = "needle in a haystack: accuracy over depth × length by ranking and by greedy generation"

    depths: int = 35
    lengths: int | tuple[int, ...] = 35
    max_length: int | None = None
    samples: int = 3
    candidates: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self.field("depths"), self.depths)
        if isinstance(self.lengths, tuple):
            if not self.lengths or len(set(self.lengths)) != len(self.lengths):
                raise BadInput(self.field("lengths"), seen=list(self.lengths), allowed="different lengths in tokens")
            for length in self.lengths:
                whole(self.field("lengths"), length)
            if self.max_length is not None:
                raise BadInput(
                    self.field("max_length"),
                    seen=self.max_length,
                    allowed="nothing beside a list of lengths",
                    hint="Remove one of the two",
                )
        else:
            whole(self.field("lengths"), self.lengths)
        whole(self.field("max_length"), self.max_length, optional=True)
        whole(self.field("samples"), self.samples)
        whole(self.field("candidates"), self.candidates, at_least=2)
        whole(self.field("seed"), self.seed, at_least=0)

    def check_context(self, context: int) -> None:
        if isinstance(self.lengths, tuple):
            self._at_most("lengths", max(self.lengths), context)
        self._at_most("max_length", self.max_length, context)


@dataclass(frozen=True, kw_only=True)
class LongpplSettings(EvaluationSettings):
    """evaluator: a point of the grid (``full/n3/20N``), a Hugging Face causal LM by name and revision, a folder (of one
    or ours: ``./llama``), or a file of key tokens that one of them has found (``./key-tokens.jsonl``). corpus: a source
    as in ``data.mixture``; nothing: the held-out documents. context: tokens of the short context; slide: tokens that
    share one; alpha and -beta: a key token's loss gap is above alpha and its full-context loss below -beta. max_length:
    texts are cut there, in tokens of the evaluated model; split: the rest of a long document makes further texts.
    documents: at most so many texts. min_key_tokens: texts with fewer are dropped and counted.
    """

    name: ClassVar[str] = "longppl"
    summary: ClassVar[str] = "perplexity of the tokens that a long context helps to predict"

    evaluator: str
    evaluator_revision: str | None = None
    corpus: str | None = None
    text_column: str | None = None
    context: int = 4096
    slide: int = 1024
    alpha: float = 2.0
    beta: float = -2.0
    max_length: int | None = None
    split: bool = False
    documents: int | None = None
    min_key_tokens: int = 10

    def __post_init__(self) -> None:
        if not isinstance(self.evaluator, str) or not self.evaluator.strip():
            raise BadInput(
                self.field("evaluator"), seen=self.evaluator, allowed="a point, a Hugging Face model or a folder"
            )
        for name in ("corpus", "text_column", "evaluator_revision"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise BadInput(self.field(name), seen=value, allowed="a text, or nothing")
        whole(self.field("context"), self.context)
        whole(self.field("slide"), self.slide)
        number(self.field("alpha"), self.alpha)
        number(self.field("beta"), self.beta)
        for name in ("alpha", "beta"):  # 2 and 2.0 are one setting and one fingerprint
            object.__setattr__(self, name, float(getattr(self, name)))
        whole(self.field("max_length"), self.max_length, at_least=2, optional=True)
        if not isinstance(self.split, bool):
            raise BadInput(self.field("split"), seen=self.split, allowed="true or false")
        whole(self.field("documents"), self.documents, optional=True)
        whole(self.field("min_key_tokens"), self.min_key_tokens)

    @property
    def evaluator_point(self) -> str | None:
        """The grid's point that finds the key tokens, if the evaluator is one: names of points have three parts."""
        return None if self.evaluator_path or self.evaluator.count("/") < 2 else self.evaluator

    @property
    def evaluator_path(self) -> str | None:
        """The folder of a model, or the file of key tokens, if the evaluator is one: paths start with . / or ~."""
        return self.evaluator if self.evaluator.startswith((".", "/", "~")) else None

    @property
    def thresholds(self) -> dict[str, Any]:
        """What makes a token key, beside the evaluator."""
        return {name: getattr(self, name) for name in ("context", "slide", "alpha", "beta")}

    def length(self, context: int) -> int:
        """Tokens at which texts are cut, for models of ``context`` positions."""
        return self.max_length or context

    def check_context(self, context: int) -> None:
        self._at_most("max_length", self.max_length, context)
        if self.context >= self.length(context):
            raise BadInput(
                self.field("context"),
                seen=self.context,
                allowed=f"below the length of the texts, {self.length(context)} tokens: a short context",
            )

    def check_evaluator_context(self, context: int) -> None:
        """BadInput for short contexts beyond the evaluator's ``context`` positions."""
        if self.context + self.slide > context:
            raise BadInput(
                self.field("context"),
                seen=f"{self.context} + {self.slide} (slide)",
                allowed=f"at most {context}, the evaluator's positions",
            )


@dataclass(frozen=True, kw_only=True)
class RecallSettings(EvaluationSettings):
    """pairs: keys with values spread evenly over a text; each is asked for at its end. length: tokens of a text with
    question and answer (the data's context when nothing is given). samples: texts.
    """

    name: ClassVar[str] = "recall"
    summary: ClassVar[str] = "multi-query associative recall: accuracy by distance"

    pairs: int = 8
    length: int | None = None
    samples: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self.field("pairs"), self.pairs, at_least=2)
        whole(self.field("length"), self.length, optional=True)
        whole(self.field("samples"), self.samples)
        whole(self.field("seed"), self.seed, at_least=0)

    def check_context(self, context: int) -> None:
        self._at_most("length", self.length, context)


@dataclass(frozen=True, kw_only=True)
class RoutingNeedles(NiahSettings):
    """``needles`` of ``routing``: needle samples as in ``niah``, on a smaller grid by default."""

    name: ClassVar[str] = "routing.needles"

    depths: int = 5
    lengths: int | tuple[int, ...] = 4
    samples: int = 4


@dataclass(frozen=True, kw_only=True)
class RoutingSettings(EvaluationSettings):
    """documents, tokens, context: the held-out text whose tokens are counted, as in ``loss``. needles: settings of
    needle samples (those of ``niah``) that are answered, with the share of full attention by depth and length counted
    meanwhile; nothing: none are. In ``to_dict`` their defaults are filled in.
    """

    name: ClassVar[str] = "routing"
    summary: ClassVar[str] = "share of full attention by layer, position, token loss and needle"

    documents: int | None = None
    tokens: int | None = None
    context: int | None = None
    needles: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("documents", "tokens", "context"):
            whole(self.field(name), getattr(self, name), optional=True)
        if self.needles is not None:
            object.__setattr__(self, "needles", RoutingNeedles.read(self.needles).to_dict())

    def check_context(self, context: int) -> None:
        self._at_most("context", self.context, context)
        if self.needles is not None:
            RoutingNeedles.read(self.needles).check_context(context)


@dataclass(frozen=True, kw_only=True)
class EfficiencySettings(EvaluationSettings):
    """length: tokens before decoding starts (the data's context when nothing is given); new_tokens: decoded and timed
    after it; repeats: timings, of which the median is told.
    """

    name: ClassVar[str] = "efficiency"
    summary: ClassVar[str] = "FLOPs and state by position from formulas, cache bytes and tokens per second measured"

    length: int | None = None
    new_tokens: int = 16
    repeats: int = 3

    def __post_init__(self) -> None:
        whole(self.field("length"), self.length, optional=True)
        whole(self.field("new_tokens"), self.new_tokens)
        whole(self.field("repeats"), self.repeats)

    def check_context(self, context: int) -> None:
        self._at_most("length", self.length, context)
