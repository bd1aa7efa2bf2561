"""Hold a fitted law against points it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gridlaw.pipelines.laws.fit import LawFit, Scores, score
from gridlaw.pipelines.laws.forms import Array
from gridlaw.pipelines.laws.points import check_points
from gridlaw.platform.errors import BadInput


@dataclass(frozen=True, kw_only=True, eq=False)
class Verification:
    """Held-out points beside the law: predicted values, relative errors, and whether each fell into its interval."""

    num_params: Array
    num_tokens: Array
    values: Array
    predicted: Array
    relative_error: Array  # predicted / value - 1
    low: Array
    high: Array
    scores: Scores
    level: float

    @property
    def inside(self) -> np.ndarray:
        """Whether each value lies in its interval (false without an interval)."""
        return (self.low <= self.values) & (self.values <= self.high)

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "num_params": self.num_params,
                "num_tokens": self.num_tokens,
                "value": self.values,
                "predicted": self.predicted,
                "relative_error": self.relative_error,
                "low": self.low,
                "high": self.high,
                "inside": self.inside,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.scores.to_dict(),
            "level": self.level,
            "num_inside": int(self.inside.sum()),
            "points": self.frame().to_dict(orient="records"),
        }


def verify(
    law: LawFit,
    num_params: ArrayLike,
    num_tokens: ArrayLike,
    values: ArrayLike,
    *,
    groups: Sequence[Any] | None = None,
    level: float | None = None,
) -> Verification:
    """Compare a law with held-out points; a point that the law was fitted to is refused (BadInput)."""
    points = check_points(num_params, num_tokens, values, groups)
    seen = set(
        zip(law.points.num_params.tolist(), law.points.num_tokens.tolist(), law.points.values.tolist(), strict=True)
    )
    for n, d, y in zip(points.num_params.tolist(), points.num_tokens.tolist(), points.values.tolist(), strict=True):
        if (n, d, y) in seen:
            raise BadInput(
                "verified point",
                seen=f"N={n:g}, D={d:g}",
                allowed="points that the law was not fitted to",
                hint="A verified point is never fitted: take it out of one of the two selections",
            )
    level = law.level if level is None else level
    predicted = np.asarray(law.predict(points.num_params, points.num_tokens))
    low, high = law.predict_interval(points.num_params, points.num_tokens, level=level)
    return Verification(
        num_params=points.num_params,
        num_tokens=points.num_tokens,
        values=points.values,
        predicted=predicted,
        relative_error=predicted / points.values - 1.0,
        low=np.asarray(low),
        high=np.asarray(high),
        scores=score(points.values, predicted),
        level=level,
    )
