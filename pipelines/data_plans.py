"""The data that a grid file names, declared once for all trunks that share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gridlaw.modules.data.declaration import declare, locate, prepared_name
from gridlaw.modules.data.epochs import TrainTokens, check_epochs, count_train_tokens, epochs_of
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.grid import GridSpec


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """Prepared data that some trunks share. folder: its name in the store. location: files here, by content.

    train_tokens: of one epoch, as far as that is known without tokenising.
    """

    declaration: dict[str, Any]
    location: dict[str, Any]
    folder: str
    max_epochs: float | None
    train_tokens: TrainTokens | None

    def epochs(self, tokens: int) -> float | None:
        """How often a budget goes through the training text; ``BadSetting`` beyond the limit, if that is certain."""
        if self.train_tokens is None:
            return None
        if self.train_tokens.exact:
            return check_epochs(tokens, self.train_tokens.tokens, self.max_epochs)
        return epochs_of(tokens, self.train_tokens.tokens)


class DataPlans:
    """Data of each stage, declared once."""

    def __init__(self, spec: GridSpec) -> None:
        self._spec = spec
        self._by_stage: dict[str | None, DataPlan] = {}

    def of(self, stage: str | None) -> DataPlan:
        if stage not in self._by_stage:
            given = self._spec.data_for(stage)
            base = self._spec.base_folder
            declaration = declare(given, base_folder=base, context=given["context"])
            location = locate(given, base_folder=base)
            self._by_stage[stage] = DataPlan(
                declaration=declaration,
                location=location,
                train_tokens=count_train_tokens(declaration, location),
                folder=prepared_name(declaration),
                max_epochs=given.get("max_epochs"),
            )
        return self._by_stage[stage]

    def measured(self, stage: str | None) -> DataPlan:
        """The data whose held-out text a stage's points are evaluated on. BadInput where that has other tokens."""
        section = self._spec.stage(stage)
        named = section.evaluated_on if section is not None else None
        own, other = self.of(stage), self.of(named or stage)
        for key in ("tokenizer", "context"):
            if own.declaration[key] != other.declaration[key]:
                field, allowed = f"stages.{stage}.evaluated_on", f"a stage with the same data.{key}"
                raise BadInput(
                    field, seen=named, allowed=allowed, hint="Leave it out: its own held-out text is taken then"
                )
        return other
