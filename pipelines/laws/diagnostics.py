"""What a fit leaves unexplained and what it hangs on: residuals, outliers, influence, left-out scales, other forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from gridlaw.pipelines.laws.fit import LawFit, evaluate, fit_law, law_problem, score
from gridlaw.pipelines.laws.forms import FORMS, Array, get_form
from gridlaw.pipelines.laws.intervals import refit, usable_weights
from gridlaw.platform.errors import BadInput

OUTLIER_Z = 3.5  # on the scale of the median absolute deviation (Iglewicz and Hoaglin 1993)


def residuals(law: LawFit) -> pd.DataFrame:
    """One row per fitted point: value, predicted, log residual, its robust z and whether it is an outlier.

    z is the residual over 1.4826 · median |residual|; a fit close to L1 passes through as many points as it has
    parameters, and those are left out of the median.
    """
    points = law.points
    predicted = np.asarray(law.predict(points.num_params, points.num_tokens))
    log_residual = np.log(points.values) - np.log(predicted)
    largest = np.sort(np.abs(log_residual))[min(len(law.parameters), len(log_residual) - 1) :]
    scale = 1.4826 * float(np.median(largest))
    z = log_residual / scale if scale > 0 else np.zeros_like(log_residual)
    return pd.DataFrame(
        {
            "num_params": points.num_params,
            "num_tokens": points.num_tokens,
            "tokens_per_param": points.num_tokens / points.num_params,
            "group": points.groups,
            "value": points.values,
            "predicted": predicted,
            "log_residual": log_residual,
            "z": z,
            "outlier": np.abs(z) > OUTLIER_Z,
        }
    )


def residual_table(law: LawFit) -> pd.DataFrame:
    """Log residuals, one row per scale (N) and one column per budget (D/N rounded to two digits); seeds averaged."""
    frame = residuals(law)
    digits = 10.0 ** (np.floor(np.log10(frame.tokens_per_param)) - 1)
    frame["budget"] = (frame.tokens_per_param / digits).round() * digits
    return frame.pivot_table(index="num_params", columns="budget", values="log_residual", aggfunc="mean")


def leave_one_scale_out(law: LawFit) -> pd.DataFrame:
    """Refit without each scale and predict it: parameters, relative errors there. A scale that cannot be spared has
    NaN.
    """
    points = law.points
    rows = []
    for scale in np.unique(points.num_params):
        out = points.num_params == scale
        row: dict[str, Any] = {"left_out": float(scale), "num_points": int(out.sum())}
        theta = _refit_rows(law, (~out).astype(float)[None])[0]
        row |= dict(zip(law.parameters, theta, strict=True))
        predicted = evaluate(get_form(law.form), theta[None], points.num_params[out], points.num_tokens[out])[0]
        error = predicted / points.values[out] - 1.0
        row |= {
            "mean_relative_error": float(np.mean(error)),
            "worst_relative_error": float(error[np.abs(error).argmax()]),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def influence(law: LawFit, *, at: tuple[float, float] | None = None) -> pd.DataFrame:
    """Refit without each point: the change of every exponent, and of the prediction at ``at`` (N, D; default the
    largest point's), as a share of it.
    """
    points, form = law.points, get_form(law.form)
    num = len(points)
    if at is None:
        at = (float(points.num_params.max()), float(points.num_tokens.max()))
    natural = _refit_rows(law, 1.0 - np.eye(num))
    frame = pd.DataFrame({"num_params": points.num_params, "num_tokens": points.num_tokens, "group": points.groups})
    for name in form.exponents:
        frame[f"change_of_{name}"] = natural[:, form.index(name)] - law.parameters[name]
    frame["change_of_prediction"] = evaluate(form, natural, *at) / law.predict(*at) - 1.0
    return frame


def _refit_rows(law: LawFit, weight_BP: Array) -> Array:
    """Natural parameters refitted under each row of weights; NaN where what is left determines no law."""
    problem, theta_K = law_problem(law)
    usable = usable_weights(problem, weight_BP)
    natural = np.full((len(weight_BP), len(theta_K)), np.nan)
    if usable.any():
        log_y_BP = np.tile(problem.log_y_P, (int(usable.sum()), 1))
        natural[usable] = problem.design.to_natural(refit(problem, log_y_BP, weight_BP[usable], theta_K).theta_BK)
    return natural


def compare_forms(
    law: LawFit,
    *,
    forms: Sequence[str] = ("nd", "nde", "d", "n"),
    held_out: tuple[Array, Array, Array] | None = None,
) -> pd.DataFrame:
    """Forms side by side on the law's points: objective, R², and errors on points that were held out.

    loo_rmse: root mean square of log errors when each point is left out in turn; largest_error: relative error at the
    point of largest N and D when it is left out; held_out_rmse and held_out_r2 for (N, D, values) given. A form that
    the points do not allow keeps its row, with the reason under ``note``. Sorted by the error on held-out points,
    else by loo_rmse.
    """
    points = law.points
    rows: list[dict[str, Any]] = []
    for name in forms:
        row: dict[str, Any] = {"form": name, "formula": FORMS.get(name, ""), "note": ""}
        try:
            other = fit_law(
                points.num_params, points.num_tokens, points.values, form=name, groups=points.groups,
                loss=law.loss, delta=law.delta, intervals="none",
            )  # fmt: skip
        except BadInput as refusal:
            rows.append(row | {"note": str(refusal)})
            continue
        row |= {"objective": other.objective, "r2": other.r2, "num_parameters": len(other.parameters)}
        row |= _held_out_errors(other)
        if held_out is not None:
            held = score(np.asarray(held_out[2], dtype=float), np.asarray(other.predict(held_out[0], held_out[1])))
            row |= {"held_out_rmse": held.rmse, "held_out_r2": held.r2}
        rows.append(row)
    frame = pd.DataFrame(rows)
    key = next((column for column in ("held_out_rmse", "loo_rmse") if column in frame), None)
    return frame.sort_values(key, ignore_index=True) if key else frame


def _held_out_errors(law: LawFit) -> dict[str, float]:
    points, form = law.points, get_form(law.form)
    natural = _refit_rows(law, 1.0 - np.eye(len(points)))
    predicted = np.array(
        [evaluate(form, natural[i : i + 1], points.num_params[i], points.num_tokens[i])[0] for i in range(len(points))]
    )
    errors = np.log(predicted) - points.log_values
    largest = int(np.lexsort((points.num_tokens, points.num_params))[-1])
    return {
        "loo_rmse": float(np.sqrt(np.mean(errors[np.isfinite(errors)] ** 2)))
        if np.isfinite(errors).any()
        else float("nan"),
        "largest_error": float(np.expm1(errors[largest])),
    }
