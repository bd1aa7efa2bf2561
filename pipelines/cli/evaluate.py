"""``gridlaw evaluate``: a checkpoint by hand, with the code that a grid uses."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from gridlaw.pipelines.evaluations.registry import evaluation_names, resolve_evaluation
from gridlaw.platform.errors import BadInput


@click.command()
@click.argument("source")
@click.argument("evaluations", nargs=-1, required=True)
@click.option("--data", "data_folder", default=None, type=click.Path(path_type=Path), help="Prepared data.")
@click.option("--set", "settings", multiple=True, metavar="NAME.KEY=VALUE", help="A setting, such as niah.depths=5.")
@click.option("--figures", default=None, type=click.Path(path_type=Path, file_okay=False), help="Folder for heat maps.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    source: str,
    evaluations: tuple[str, ...],
    data_folder: Path | None,
    settings: tuple[str, ...],
    figures: Path | None,
    as_json: bool,
) -> None:
    """Evaluate SOURCE: a folder (model.safetensors, config.json), a grid, or GRID:POINT.

    EVALUATIONS are names such as loss and niah. Nothing is written to the ledger.
    """
    chosen = _settings(settings)
    asked = [resolve_evaluation({name: chosen.get(name, {})}) for name in evaluations]
    unused = sorted(set(chosen) - set(evaluations))
    if unused:
        raise BadInput("--set", seen=unused[0], allowed=f"settings of {', '.join(evaluations)}")
    from gridlaw.pipelines.evaluations.run import evaluate as run_evaluation

    found: dict[str, Any] = {}
    for name, model, data in _models(source, data_folder):
        for each in asked:
            with tempfile.TemporaryDirectory(prefix="gridlaw-") as work:
                result = run_evaluation(
                    each.name,
                    chosen.get(each.name, {}),
                    model_folder=model,
                    prepared_folder=data,
                    work_folder=Path(work),
                )
            found.setdefault(name, {})[each.name] = result
            if figures is not None:
                _draw(result, figures, name, each.name)
            if not as_json:
                values = ", ".join(f"{key} {value:.5g}" for key, value in result["metrics"].items())
                click.echo(f"{name} {each.name}: {values} ({result['num_samples']} samples)")
    if as_json:
        click.echo(json.dumps(found))


def _draw(result: dict[str, Any], folder: Path, point: str, evaluation: str) -> None:
    """Heat maps as HTML and PNG; their names go to standard error."""
    from gridlaw.pipelines.evaluations.figures import heat_maps
    from gridlaw.pipelines.laws.figures import save

    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in heat_maps(result, title=point).items():
        stem = "-".join([evaluation, name, *Path(point).parts[-5:]]).replace("/", "")
        paths = [save(figure, folder / f"{stem}{ending}") for ending in (".html", ".png")]
        click.echo(f"figures: {', '.join(map(str, paths))}", err=True)


def _models(source: str, data_folder: Path | None) -> list[tuple[str, Path, Path]]:
    """(name, folder of the model, prepared data) of what SOURCE names."""
    if Path(source).is_dir():
        if data_folder is None:
            raise BadInput(
                "--data", allowed="a folder made by gridlaw data prepare", hint="A model's folder has no text"
            )
        return [(source, Path(source), data_folder)]
    from gridlaw.pipelines.cli.grid import load_plan
    from gridlaw.pipelines.grid.state import MODEL_FOLDER, attempt_folder, read_state
    from gridlaw.pipelines.grid.submission import Place
    from gridlaw.platform.store.base import data_name

    grid, _, wanted = source.partition(":")
    plan = load_plan(grid)
    place = Place.of(plan)
    store = place.store(create=False)
    state = read_state(plan, place.ledger(plan, store), store)
    done = {point.name: point for point in plan.points if state.points[point.name].status == "done"}
    if not done or (wanted and wanted not in done):
        raise BadInput(
            "source",
            seen=source,
            allowed=f"finished points: {', '.join(done)[:300]}" if done else "a grid with finished points",
            hint=f"Run it first: gridlaw run {grid}" if not done else "Write GRID:POINT with a full name",
        )
    models = []
    for name in [wanted] if wanted else list(done):
        run = state.points[name].run
        assert run is not None, f"{name} is done without a run"
        data = data_folder or Path(store.address) / data_name(plan.trunk_of(done[name]).data.folder)
        models.append((name, attempt_folder(store, run.run_id) / MODEL_FOLDER, data))
    return models


def _settings(texts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """``niah.depths=5`` → {niah: {depths: 5}}; values are read as YAML."""
    import yaml

    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not equals or not dot or name not in evaluation_names():
            raise BadInput(
                "--set", seen=text, allowed=f"NAME.KEY=VALUE with NAME one of {', '.join(evaluation_names())}"
            )
        found.setdefault(name, {})[key] = yaml.safe_load(value)
    return found
