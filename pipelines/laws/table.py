"""Fit laws to a table of anyone's points: CSV, TSV or Parquet in, one law per architecture out.

Columns are found by name (``ROLES``) or mapped by the caller. The target is a column, or ``log:column`` for its
logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gridlaw.pipelines.laws.fit import LawFit, fit_law
from gridlaw.pipelines.laws.profile import profile_law
from gridlaw.pipelines.laws.selectors import parse_selectors, select_rows, unknown_column
from gridlaw.pipelines.laws.verify import Verification
from gridlaw.pipelines.laws.verify import verify as hold_against
from gridlaw.platform.errors import BadInput

ROLES: dict[str, tuple[str, ...]] = {
    "N": ("N", "num_params", "num_params_non_embedding", "params", "n"),
    "D": ("D", "num_tokens", "tokens", "d"),
    "scale": ("scale", "size"),
    "architecture": ("architecture", "arch", "model"),
    "seed": ("seed",),
}
_REQUIRED = ("N", "D")
_READERS = {".csv": ",", ".tsv": "\t", ".txt": None, ".parquet": None, ".pq": None}


@dataclass(frozen=True, kw_only=True, eq=False)
class TableFit:
    """The law of one architecture, its verification (None without verified rows), profile intervals and what was left
    out.
    """

    architecture: str | None
    target: str
    law: LawFit
    verification: Verification | None
    profiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self, *, draws: bool = False) -> dict[str, Any]:
        """JSON-able; non-finite numbers become None. Parameters lie at the top level beside the fields of LawFit."""
        law = self.law.to_dict(draws=draws)
        law.pop("points")
        if not draws:
            law.pop("draws"), law.pop("draw_noise")
        held = self.verification
        flat = {
            "architecture": self.architecture,
            "target": self.target,
            "formula": self.law.formula,
            **law.pop("parameters"),
            **law,
            "r2_fit": self.law.r2,
            "r2_verify": held.scores.r2 if held else None,
            "rmse_verify": held.scores.rmse if held else None,
            "mae_verify": held.scores.mae if held else None,
            "verified": held.to_dict() if held else None,
            "profile_intervals": {name: list(pair) for name, pair in self.profiles.items()},
            "notes": list(self.notes),
        }
        flat.pop("r2")
        cleaned: dict[str, Any] = _finite(flat)
        return cleaned


def _finite(value: Any) -> Any:
    """The same structure with non-finite floats as None: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    return value


def read_table(path: Path | str) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet file; BadInput for a missing, empty or unreadable one."""
    path = Path(path)
    if not path.is_file():
        raise BadInput("table", seen=str(path), allowed="an existing CSV, TSV or Parquet file")
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise BadInput("table", seen=path.name, allowed=f"a file ending in {', '.join(_READERS)}")
    try:
        if suffix in (".parquet", ".pq"):
            frame = pd.read_parquet(path)
        else:
            frame = pd.read_csv(path, sep=_READERS[suffix], engine="python", skipinitialspace=True, comment="#")
    except (ValueError, OSError) as error:  # pandas' parser and pyarrow errors are ValueErrors
        raise BadInput("table", seen=str(path), allowed="a readable table", hint=str(error)) from error
    if frame.empty:
        raise BadInput("table", seen=str(path), allowed="a table with at least one row")
    frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def map_columns(frame: pd.DataFrame, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Role → column name. Given names must exist; others are found by their usual names; N and D are required."""
    given = dict(columns or {})
    for role, name in given.items():
        if role not in ROLES:
            raise BadInput("columns", seen=role, allowed=f"one of {', '.join(ROLES)}, as N=params")
        if name not in frame.columns:
            raise unknown_column(f"columns[{role}]", name, list(frame.columns))
    found: dict[str, str] = {}
    for role, usual in ROLES.items():
        known: str | None = given.get(role) or next((name for name in usual if name in frame.columns), None)
        if known is not None:
            found[role] = known
        elif role in _REQUIRED:
            raise BadInput(
                f"column {role}",
                seen=", ".join(frame.columns),
                allowed=f"one of {', '.join(usual)}",
                hint=f"Say which column holds it: --columns {role}=NAME",
            )
    return found


def target_values(frame: pd.DataFrame, target: str) -> pd.Series:
    """The target's values: a column, or the logarithm of one for ``log:column``. All must be positive after that."""
    name = target.removeprefix("log:")
    if name not in frame.columns:
        raise unknown_column("target", name, list(frame.columns))
    values = numbers(frame, name)
    if target != name:
        for row, value in values.items():
            if np.isfinite(value) and value <= 1:
                raise BadInput(
                    f"{name} in row {row}",
                    seen=float(value),
                    allowed="above 1 for a law of its logarithm",
                    hint="The law is fitted to positive values",
                )
        return pd.Series(np.log(values.to_numpy()), index=values.index)
    return values


def numbers(frame: pd.DataFrame, column: str) -> pd.Series:
    """A column as positive floats; BadInput names the first row that is missing, no number, or not above 0."""
    for row, raw in frame[column].items():
        try:
            value = float(raw)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value) or value <= 0:
            seen = "missing" if pd.isna(raw) else raw
            raise BadInput(
                f"{column} in row {row}",
                seen=seen,
                allowed="a number above 0",
                hint="Mend the row, or leave it out by --exclude",
            )
    return frame[column].astype(float)


def fit_table(
    path: Path | str,
    target: str,
    fit: Sequence[str] | str | None = None,
    verify: Sequence[str] | str | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    exclude: Sequence[str] | str | None = None,
    profiles: bool = True,
    **settings: Any,
) -> list[TableFit]:
    """Read a table and fit one law per architecture; see ``fit_frame``."""
    return fit_frame(read_table(path), target, fit, verify, columns, exclude=exclude, profiles=profiles, **settings)


def fit_frame(
    frame: pd.DataFrame,
    target: str,
    fit: Sequence[str] | str | None = None,
    verify: Sequence[str] | str | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    exclude: Sequence[str] | str | None = None,
    profiles: bool = True,
    **settings: Any,
) -> list[TableFit]:
    """Fit one law per architecture of a table (one law where there is no such column).

    target: column, or ``log:column``; fit, verify, exclude: selectors (selectors.py); without ``fit`` all rows that
    are not verified are fitted; columns: role → column; profiles: add profile intervals of the exponents; settings:
    of ``fit_law``. A row selected for both is BadInput: a verified point is never fitted.
    """
    roles = map_columns(frame, columns)
    left_out = _selected(frame, exclude, "exclude", default=False)
    held = _selected(frame, verify, "verify", default=False) & ~left_out
    fitted = _selected(frame, fit, "fit", default=True) & ~left_out
    if fit and (held & fitted).any():
        row = frame.index[held & fitted][0]
        raise BadInput("verify", seen=f"row {row} is also fitted", allowed="rows that are not fitted")
    fitted &= ~held
    for option, chosen in (("fit", fitted), ("verify", held)):
        if not chosen.any() and (option == "fit" or verify):
            raise BadInput(
                option, seen="no row", allowed="selectors that leave rows", hint=f"{len(frame)} rows in the table"
            )
    used = frame[fitted | held]
    values = target_values(used, target)
    sizes = pd.DataFrame({role: numbers(used, roles[role]) for role in _REQUIRED})
    notes = [f"{int(left_out.sum())} rows excluded"] if left_out.any() else []
    names: list[str | None] = [None]
    if "architecture" in roles:
        names = list(dict.fromkeys(used[roles["architecture"]].astype(str)))
    results = []
    for name in names:
        mine = (
            np.ones(len(used), dtype=bool)
            if name is None
            else (used[roles["architecture"]].astype(str) == name).to_numpy()
        )
        parts = [mine & fitted[fitted | held], mine & held[fitted | held]]
        if not parts[0].any():
            notes.append(f"{name}: no row to fit")
            continue
        results.append(_fit_one(used, values, sizes, roles, parts, target, name, tuple(notes), profiles, settings))
    return results


def _fit_one(
    used: pd.DataFrame,
    values: pd.Series,
    sizes: pd.DataFrame,
    roles: Mapping[str, str],
    parts: Sequence[np.ndarray],
    target: str,
    name: str | None,
    notes: tuple[str, ...],
    profiles: bool,
    settings: Mapping[str, Any],
) -> TableFit:
    labels = [roles[role] for role in ("scale", "seed") if role in roles]
    groups = used[labels].astype(str).agg("/".join, axis=1) if "scale" in roles else _by_size(used, sizes, roles)
    chosen, held = parts
    law = fit_law(
        sizes["N"][chosen], sizes["D"][chosen], values[chosen], groups=list(groups[chosen]), **settings
    )  # fmt: skip
    verification = None
    if held.any():
        verification = hold_against(law, sizes["N"][held], sizes["D"][held], values[held], groups=list(groups[held]))
    found: dict[str, tuple[float, float]] = {}
    if profiles and law.num_points > len(law.parameters):
        for exponent in ("alpha", "beta"):
            if exponent in law.parameters:
                profile = profile_law(law, exponent)
                found[exponent] = (profile.low, profile.high)
    return TableFit(
        architecture=name,
        target=target,
        law=law,
        verification=verification,
        profiles=found,
        notes=notes + law.points.notes,
    )


def _by_size(used: pd.DataFrame, sizes: pd.DataFrame, roles: Mapping[str, str]) -> pd.Series:
    labels = sizes["N"].map("N={:.12g}".format)
    return labels + "/" + used[roles["seed"]].astype(str) if "seed" in roles else labels


def _selected(frame: pd.DataFrame, texts: Sequence[str] | str | None, option: str, *, default: bool) -> np.ndarray:
    selectors = parse_selectors(texts, option=option)
    return select_rows(frame, selectors, option=option) if selectors else np.full(len(frame), default)
