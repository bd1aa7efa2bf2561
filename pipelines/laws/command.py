"""``gridlaw fit``: laws from a table or from a grid in the ledger, as a table for people or JSON.

``make_fit_command`` takes a loader for grids, so that this module stays free of the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import pandas as pd

from gridlaw.platform.errors import BadInput

GridLoader = Callable[..., pd.DataFrame]
"""Of a grid's name, and of where its store and ledger are if the command takes that: ``PLACE``."""
PLACE = ("store", "tracking_uri")
INTERVAL_CHOICES = ("default", "noise", "noise-trunks", "points", "trunks", "none")


def make_fit_command(load_grid: GridLoader | None = None) -> click.Command:
    """The command; ``load_grid`` turns a grid's name into a frame with columns architecture, scale, seed, N, D and
    metrics.
    """

    @click.command("fit")
    @click.argument("source")
    @click.option("--target", default="loss", show_default=True, help="Column to fit, or log:COLUMN.")
    @click.option("--fit", "fit", multiple=True, help="Rows to fit, such as scale=S1,S2,S3. Default: all not verified.")
    @click.option("--verify", multiple=True, help="Rows to hold the law against, such as scale=S4.")
    @click.option("--exclude", multiple=True, help="Rows to leave out, such as 'scale=S1;D<2e9'.")
    @click.option("--columns", multiple=True, metavar="ROLE=COLUMN", help="N=, D=, scale=, architecture=, seed=.")
    @click.option("--form", default="nd", show_default=True, help="nd | nde (with E) | n | d | ne | de.")
    @click.option("--loss", default="huber", show_default=True, help="huber | least-squares, on log residuals.")
    @click.option("--delta", type=float, default=1e-3, show_default=True, help="Of the Huber loss.")
    @click.option("--bound", multiple=True, metavar="NAME=LOW:HIGH", help="Bound a parameter, such as alpha=0.2:0.3.")
    @click.option("--intervals", type=click.Choice(INTERVAL_CHOICES), default="default", show_default=True)
    @click.option("--resamples", type=int, default=1000, show_default=True)
    @click.option("--level", type=float, default=0.95, show_default=True, help="Of all intervals.")
    @click.option("--seed", type=int, default=0, show_default=True, help="Of the resampling.")
    @click.option("--at", multiple=True, metavar="N,D", help="Predict there, such as 476852480,4.77e11.")
    @click.option("--diagnostics", is_flag=True, help="Residuals, leave one scale out, influence, forms side by side.")
    @click.option("--figures", type=click.Path(path_type=Path), help="Folder for figures: HTML, SVG and PNG.")
    @click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
    def fit_command(
        source: str,
        as_json: bool,
        at: Sequence[str],
        columns: Sequence[str],
        diagnostics: bool,
        figures: Path | None,
        **options: Any,
    ) -> None:
        """Fit a scaling law to SOURCE: a CSV, TSV or Parquet table, or a grid in the ledger."""
        from gridlaw.pipelines.laws.table import fit_frame, read_table  # scipy and pandas load only when asked for

        places = [_place(text) for text in at]
        mapped = dict(_pair(text, "columns", "ROLE=COLUMN") for text in columns)
        bounds = dict(_bound(text) for text in options.pop("bound"))
        options["num_resamples"] = options.pop("resamples")
        place = {name: options.pop(name) for name in PLACE if name in options}
        frame = load_grid(source, **place) if load_grid is not None and _is_grid(source) else read_table(source)
        target = options.pop("target")
        results = fit_frame(frame, target, columns=mapped, bounds=bounds, **options)
        if as_json:
            click.echo(json.dumps(_as_json(results, places, diagnostics=diagnostics), indent=2))
        else:
            show(results, places)
            if diagnostics:
                _show_diagnostics(results)
        if figures is not None:
            _write_figures(results, figures)

    return fit_command


def _diagnostics(law: Any) -> dict[str, pd.DataFrame]:
    """By title: what a fit leaves unexplained and what it hangs on."""
    from gridlaw.pipelines.laws import diagnostics

    return {
        "residuals": diagnostics.residuals(law),
        "fitted without one scale, errors there": diagnostics.leave_one_scale_out(law),
        "influence of each point": diagnostics.influence(law),
        "forms by error on points left out in turn": diagnostics.compare_forms(law),
    }


def _show_diagnostics(results: Sequence[Any]) -> None:
    from gridlaw.pipelines.laws.diagnostics import residual_table

    for result in results:
        name = f"{result.architecture}: " if result.architecture else ""
        found = _diagnostics(result.law)
        residuals = found.pop("residuals")
        tables = {
            "log residuals by N and D/N": residual_table(result.law),
            "outliers (robust z)": residuals[residuals.outlier],
            **found,
        }
        for title, table in tables.items():
            click.echo(f"\n{name}{title}")
            click.echo(table.to_string(float_format=lambda value: f"{value:.4g}") if len(table) else "none")


def _write_figures(results: Sequence[Any], folder: Path) -> None:
    from gridlaw.pipelines.laws.figures import all_figures

    laws = {result.architecture or "law": result.law for result in results}
    held = {result.architecture or "law": result.verification for result in results if result.verification is not None}
    _save_figures(all_figures(laws, target=results[0].target, held_out=held), folder)


def _save_figures(figures: dict[str, Any], folder: Path) -> None:
    from gridlaw.pipelines.laws.figures import save

    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        for ending in (".html", ".svg", ".png"):
            save(figure, folder / f"{name.replace('/', '-')}{ending}")  # an architecture's name may hold a slash
    click.echo(f"figures: {folder}", err=True)


def make_compare_command(load_grid: GridLoader | None = None) -> click.Command:
    """``gridlaw compare``: laws of several architectures against each other."""

    @click.command("compare")
    @click.argument("source")
    @click.option("--target", default="loss", show_default=True, help="Column to fit, or log:COLUMN.")
    @click.option("--at", required=True, metavar="N,D", help="Where they are compared, such as 476852480,4.77e11.")
    @click.option("--margin", type=float, default=0.01, show_default=True, help="How near counts as met.")
    @click.option("--form", default="nd", show_default=True, help="nd | nde | n | d | ne | de.")
    @click.option("--exclude", multiple=True, help="Rows to leave out, such as 'scale=S1;D<2e9'.")
    @click.option("--columns", multiple=True, metavar="ROLE=COLUMN", help="N=, D=, scale=, architecture=, seed=.")
    @click.option("--figures", type=click.Path(path_type=Path), help="Folder for figures: HTML, SVG and PNG.")
    @click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
    def compare_command(
        source: str,
        target: str,
        at: str,
        margin: float,
        columns: Sequence[str],
        figures: Path | None,
        as_json: bool,
        **options: Any,
    ) -> None:
        """Rank architectures at one N and D, with gaps, and the budgets from which on they are within a margin."""
        from gridlaw.pipelines.laws import compare
        from gridlaw.pipelines.laws.table import fit_frame, read_table

        n, d = _place(at)
        place = {name: options.pop(name) for name in PLACE if name in options}
        frame = load_grid(source, **place) if load_grid is not None and _is_grid(source) else read_table(source)
        mapped = dict(_pair(text, "columns", "ROLE=COLUMN") for text in columns)
        laws = {str(each.architecture): each.law for each in fit_frame(frame, target, columns=mapped, **options)}
        ranking = compare.ranking(laws, n, d)
        if figures is not None:
            from gridlaw.pipelines.laws.figures import comparison_figures

            _save_figures(comparison_figures(laws, target=target, num_params=n), figures)
        best = str(ranking.frame.architecture.iloc[0])
        rows = []
        for name in list(ranking.frame.architecture)[1:]:
            gap = compare.gap(laws[name], laws[best], n, d)
            meeting = compare.meeting_budget(laws[name], laws[best], n, margin=margin)
            rows.append(
                {
                    "architecture": name,
                    "gap": float(gap.gap),
                    "low": float(gap.low),
                    "high": float(gap.high),
                    "within_margin_from_tokens": _finite(meeting.num_tokens),
                    "within_margin_low": _finite(meeting.low),
                    "within_margin_high": _finite(meeting.high),
                    "never": float(meeting.never),
                }
            )
        found = {
            "num_params": n,
            "num_tokens": d,
            "margin": margin,
            "ranking": ranking.frame.to_dict("records"),
            "same_order": ranking.same_order,
            "gaps_to_first": rows,
        }
        if as_json:
            click.echo(json.dumps(found, indent=2))
            return
        click.echo(f"predicted {target} at N={n:g}, D={d:g}, lowest first; shares are of bootstrap resamples")
        click.echo(ranking.frame.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
        click.echo(f"the whole order is the same in {ranking.same_order:.0%} of resamples")
        for row in rows:
            met = row["within_margin_from_tokens"]
            click.echo(
                f"{row['architecture']} − {best}: {row['gap']:.4g} ({row['low']:.4g} to {row['high']:.4g}); within "
                f"{margin:g} " + (f"from D={met:.3g}" if met is not None else "nowhere in the range searched")
            )

    return compare_command


def _finite(value: float) -> float | None:
    return float(value) if value == value and abs(value) != float("inf") else None


def _is_grid(source: str) -> bool:
    """A grid file, or a word that is no file: the name of a shipped grid."""
    path = Path(source)
    return path.suffix in (".yaml", ".yml") or (not path.suffix and not path.exists())


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left and equals and right):
        raise BadInput(option, seen=text, allowed=form)
    return left.strip(), right.strip()


def _bound(text: str) -> tuple[str, tuple[float | None, float | None]]:
    form = "NAME=LOW:HIGH, either side may be empty"
    name, span = _pair(text, "bound", form)
    low, colon, high = span.partition(":")
    try:
        if not colon:
            raise ValueError(span)
        return name, (float(low) if low.strip() else None, float(high) if high.strip() else None)
    except ValueError as error:
        raise BadInput("bound", seen=text, allowed=form, hint="For example alpha=0.2:0.3") from error


def _place(text: str) -> tuple[float, float]:
    try:
        n, d = (float(part) for part in text.split(","))
    except ValueError as error:
        raise BadInput("at", seen=text, allowed="N,D", hint="For example 476852480,4.77e11") from error
    if not (n > 0 and d > 0):
        raise BadInput("at", seen=text, allowed="N and D above 0")
    return n, d


def _predictions(law: Any, places: Sequence[tuple[float, float]]) -> list[dict[str, float]]:
    rows = []
    for n, d in places:
        low, high = law.predict_interval(n, d)
        rows.append({"num_params": n, "num_tokens": d, "predicted": law.predict(n, d), "low": low, "high": high})
    return rows


def _as_json(results: Sequence[Any], places: Sequence[tuple[float, float]], *, diagnostics: bool) -> Any:
    """One object for one law; {"laws": [...]} for several architectures."""
    laws = [{**result.to_dict(), "predictions": _predictions(result.law, places)} for result in results]
    if diagnostics:
        for law, result in zip(laws, results, strict=True):
            tables = _diagnostics(result.law)
            law["diagnostics"] = {title: json.loads(rows.to_json(orient="records")) for title, rows in tables.items()}
    return laws[0] if len(laws) == 1 else {"laws": laws}


def show(results: Sequence[Any], places: Sequence[tuple[float, float]] = ()) -> None:
    """Tables for people on standard output: the laws, then held-out points and predictions, then verdicts."""
    from rich.table import Table

    from gridlaw.pipelines.terminal import results_console

    console = results_console()
    first = results[0].law
    title = f"{results[0].target} = {first.formula}, {first.level:.0%} intervals ({first.interval_method})"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(result.architecture or "value")
    for name in first.parameters:
        table.add_row(name, *(_with_span(r.law.parameters[name], r.law.intervals.get(name)) for r in results))
    table.add_row("objective", *(f"{r.law.objective:.5g}" for r in results))
    table.add_row("R² fitted", *(f"{r.law.r2:.4f}" for r in results))
    table.add_row("R² held out", *(f"{r.verification.scores.r2:.4f}" if r.verification else "–" for r in results))
    table.add_row("points", *(str(r.law.num_points) for r in results))
    table.add_row("starts agreeing", *(f"{r.law.agreeing_starts} of {r.law.num_starts}" for r in results))
    console.print(table)
    for result in results:
        name = f"{result.architecture}: " if result.architecture else ""
        if result.verification is not None:
            console.print(_held_out_table(result, name))
        for row in _predictions(result.law, places):
            console.print(
                f"{name}at N={row['num_params']:g}, D={row['num_tokens']:g}: {row['predicted']:.4g} "
                f"({row['low']:.4g} to {row['high']:.4g})"
            )
        console.print(f"{name}{result.law.verdict}", soft_wrap=True)
        for exponent, (low, high) in result.profiles.items():
            console.print(f"{name}{exponent} by profile likelihood: {low:.3g} to {high:.3g}")
        if result.law.trunk_correlation is not None:
            console.print(
                f"{name}correlation of residuals within a trunk: {result.law.trunk_correlation:.2f}, "
                f"from {result.law.trunk_dof:.1f} degrees of freedom"
            )
        for note in result.notes:
            console.print(f"{name}{note}")


def _held_out_table(result: Any, name: str) -> Any:
    from rich.table import Table

    table = Table(title=f"{name}held-out points")
    for heading in ("N", "D", "measured", "predicted", "relative error", "interval", "inside"):
        table.add_column(heading, justify="right")
    for row in result.verification.frame().itertuples():
        table.add_row(
            f"{row.num_params:.4g}", f"{row.num_tokens:.4g}", f"{row.value:.4g}", f"{row.predicted:.4g}",
            f"{row.relative_error:+.2%}", f"{row.low:.4g} to {row.high:.4g}", "yes" if row.inside else "no",
        )  # fmt: skip
    return table


def _with_span(value: float, span: tuple[float, float] | None) -> str:
    return f"{value:.4g}" if span is None else f"{value:.4g} ({span[0]:.3g} to {span[1]:.3g})"


fit_command = make_fit_command()
