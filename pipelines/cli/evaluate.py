"""``gridlaw evaluate``: a checkpoint by hand, with the code that a grid uses."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gridlaw.pipelines.cli.options import place_options, place_words
from gridlaw.pipelines.evaluations.registry import Evaluation, evaluation_names, resolve_evaluation
from gridlaw.platform.errors import BadInput

if TYPE_CHECKING:
    from gridlaw.pipelines.evaluations.inputs import Inputs
    from gridlaw.pipelines.evaluations.sources import ExamplesPlan
    from gridlaw.pipelines.grid.tasks import EvaluatorFolders


@dataclass(frozen=True, kw_only=True)
class Target:
    """One model to evaluate. inputs: what an evaluation needs beside it. training: its curve of full attention."""

    name: str
    model: Path
    data: Path
    inputs: Callable[[Evaluation], Inputs]
    training: Callable[[], dict[str, Any]] = dict


@click.command()
@click.argument("source")
@click.argument("evaluations", nargs=-1, required=True)
@click.option("--data", "data_folder", default=None, type=click.Path(path_type=Path), help="Prepared data.")
@click.option("--set", "settings", multiple=True, metavar="NAME.KEY=VALUE", help="A setting, such as niah.depths=5.")
@click.option("--figures", default=None, type=click.Path(path_type=Path, file_okay=False), help="Folder for figures.")
@click.option("--work", default=None, type=click.Path(path_type=Path), help="Keep finished parts here, to go on from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@place_options
def evaluate(
    source: str,
    evaluations: tuple[str, ...],
    data_folder: Path | None,
    settings: tuple[str, ...],
    figures: Path | None,
    work: Path | None,
    as_json: bool,
    store: str | None,
    tracking_uri: str | None,
) -> None:
    """Evaluate SOURCE: a folder (model.safetensors, config.json), a grid, or GRID:POINT.

    EVALUATIONS are names such as loss and longppl; of a grid, settings are its file's unless --set says otherwise.
    Nothing is written to the ledger. Key tokens and other examples of a grid's evaluations are shared with the grid.
    """
    chosen = _settings(settings)
    unused = sorted(set(chosen) - set(evaluations))
    if unused:
        raise BadInput("--set", seen=unused[0], allowed=f"settings of {', '.join(evaluations)}")
    asked, targets = _resolve(source, evaluations, chosen, data_folder, store=store, tracking_uri=tracking_uri)
    found: dict[str, Any] = {}
    with _work_folder(work) as folder:  # one for all: examples that are in no store are made once in it
        for target in targets:
            for each in asked:
                result = _measure(target, each, folder)
                found.setdefault(target.name, {})[each.name] = result
                if figures is not None:
                    _draw(result, figures, target, each.name)
                if not as_json:
                    click.echo(f"{target.name} {each.name}: {_words(result)}")
    if as_json:
        click.echo(json.dumps(found))


def _draw(result: dict[str, Any], folder: Path, target: Target, evaluation: str) -> None:
    """Figures as HTML and PNG; their names go to standard error."""
    from gridlaw.pipelines.evaluations.figures import figures
    from gridlaw.pipelines.laws.figures import save

    folder.mkdir(parents=True, exist_ok=True)
    training = target.training() if evaluation == "routing" else None
    for name, figure in figures(result, title=target.name, training=training).items():
        stem = "-".join([evaluation, name, *Path(target.name).parts[-5:]]).replace("/", "")
        paths = [save(figure, folder / f"{stem}{ending}") for ending in (".html", ".png")]
        click.echo(f"figures: {', '.join(map(str, paths))}", err=True)


def _measure(target: Target, each: Evaluation, folder: Path) -> dict[str, Any]:
    from gridlaw.pipelines.evaluations.run import evaluate as run_evaluation
    from gridlaw.pipelines.terminal import progress_bar

    label = f"{target.name} {each.name}"
    with progress_bar(label) as progress:
        return run_evaluation(
            each.name,
            each.settings.to_dict(),
            model_folder=target.model,
            prepared_folder=target.data,
            work_folder=folder,
            progress=lambda done, total: progress(label, done, total),
            inputs=target.inputs(each),
        )


@contextmanager
def _work_folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="gridlaw-") as folder:
        yield Path(folder)


def _words(result: dict[str, Any]) -> str:
    values = ", ".join(f"{key} {value:.5g}" for key, value in result["metrics"].items())
    outcome = result["details"].get("outcome", "measured")
    return f"{'' if outcome == 'measured' else f'{outcome}; '}{values} ({result['num_samples']} samples)"


def _resolve(
    source: str,
    names: tuple[str, ...],
    chosen: dict[str, dict[str, Any]],
    data_folder: Path | None,
    *,
    store: str | None,
    tracking_uri: str | None,
) -> tuple[list[Evaluation], list[Target]]:
    """The evaluations with their sources, and the models that SOURCE names."""
    from gridlaw.pipelines.evaluations.inputs import Inputs
    from gridlaw.pipelines.evaluations.sources import with_sources

    if not Path(source).is_dir():
        name, _, point = source.partition(":")
        grid = _Grid(name, data_folder, store=store, tracking_uri=tracking_uri)
        evaluations = [grid.evaluation(each, chosen.get(each, {})) for each in names]
        grid.require(point, "source")
        return evaluations, [grid.target(each) for each in ([point] if point else grid.done)]
    asked = [
        with_sources(resolve_evaluation({name: chosen.get(name, {})}), base_folder=Path.cwd(), find_point=None)
        for name in names
    ]
    if data_folder is None:
        raise BadInput("--data", allowed="a folder made by gridlaw data prepare", hint="A model's folder has no text")
    return asked, [Target(name=source, model=Path(source), data=data_folder, inputs=Inputs.of)]


class _Grid:
    """Finished points of a grid, and what evaluations of them need."""

    def __init__(self, grid: str, data_folder: Path | None, *, store: str | None, tracking_uri: str | None) -> None:
        from gridlaw.pipelines.cli.grid import load_plan
        from gridlaw.pipelines.grid.state import read_state
        from gridlaw.pipelines.place import Place

        self.grid, self.plan, self._data_folder = (
            grid,
            load_plan(grid, store=store, tracking_uri=tracking_uri),
            data_folder,
        )
        place = Place.of(self.plan)
        self.store = place.store(create=False)
        self._ledger = place.ledger(self.plan, self.store)
        self._state = state = read_state(self.plan, self._ledger, self.store)
        self._run_ids = {
            name: each.run.run_id for name, each in state.points.items() if each.status == "done" and each.run
        }
        self.done = {point.name: point for point in self.plan.points if point.name in self._run_ids}

    def evaluation(self, name: str, chosen: dict[str, Any]) -> Evaluation:
        """As the file has it, with what was chosen over it."""
        from gridlaw.pipelines.evaluations.sources import with_sources

        own = next((entry.settings for entry in self.plan.spec.evaluate if entry.name == name), {})
        evaluation = resolve_evaluation({name: {**own, **chosen}})
        return with_sources(evaluation, base_folder=self.plan.spec.base_folder, find_point=self.plan.find_point)

    def target(self, name: str) -> Target:
        """A finished point."""
        from gridlaw.pipelines.grid.attempts import MODEL_FOLDER
        from gridlaw.pipelines.grid.curves import full_ratio_curve
        from gridlaw.platform.store.base import attempt_name, data_name
        from gridlaw.platform.store.cache import local_folder

        data = self._data_folder
        if data is None:
            data = local_folder(self.store, data_name(self.plan.trunk_of(self.done[name]).measured.folder))
        model = local_folder(self.store, f"{attempt_name(self._run_ids[name])}/{MODEL_FOLDER}")
        ledger = self._ledger
        assert ledger is not None, "finished points are in a ledger"
        return Target(
            name=name,
            model=model,
            data=data,
            inputs=lambda evaluation: self._inputs(name, evaluation),
            training=lambda: full_ratio_curve(ledger, self.plan, self._state, self.done[name], by_layer=True),
        )

    def _inputs(self, name: str, evaluation: Evaluation) -> Inputs:
        from gridlaw.pipelines.grid.tasks import EvaluatorFolders, evaluation_inputs

        finder = evaluation.evaluator.point if evaluation.evaluator is not None else None
        folders = None
        if finder is not None:
            self.require(finder, evaluation.settings.field("evaluator"))
            data = self.plan.trunk_of(self.done[finder]).data.folder
            folders = EvaluatorFolders(run_id=self._run_ids[finder], data=data)
        # Data of another folder are another text: its examples are not the grid's.
        shared = self._data_folder is None
        examples = self.plan.examples(self.plan.trunk_of(self.done[name]), evaluation) if shared else None
        if self.store.path("examples") is not None:
            return evaluation_inputs(self.store, evaluation, examples, folders)
        return self._fetched(evaluation, examples, folders)

    def _fetched(
        self, evaluation: Evaluation, examples: ExamplesPlan | None, folders: EvaluatorFolders | None
    ) -> Inputs:
        """Inputs of a store without plain files; examples that no run has made yet are this command's own."""
        from gridlaw.pipelines.evaluations.inputs import EXAMPLES_FILE, Inputs
        from gridlaw.pipelines.grid.tasks import evaluation_inputs
        from gridlaw.pipelines.stages.remote import Places
        from gridlaw.platform.store.base import examples_name
        from gridlaw.platform.store.cache import Cache

        made = examples is not None and self.store.exists(f"{examples_name(examples.fingerprint)}/{EXAMPLES_FILE}")
        inputs = evaluation_inputs(self.store, evaluation, examples if made else None, folders)
        return Inputs(**Places(self.store, Cache(self.store)).here(inputs.to_dict()))

    def require(self, name: str, field: str) -> None:
        """BadInput unless there are finished points and, if a name is given, it is one of theirs."""
        if self.done and (not name or name in self.done):
            return
        is_known = not self.done or name in {point.name for point in self.plan.points}
        raise BadInput(
            field,
            seen=name or self.grid,
            allowed=f"finished points: {', '.join(self.done)[:300]}" if self.done else "a grid with finished points",
            hint=f"Run it first: gridlaw run {self.grid}{place_words()}"
            if is_known
            else "Write GRID:POINT with a full name",
        )


def _settings(texts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """``niah.depths=5`` → {niah: {depths: 5}}; values are read as those of a grid file."""
    from gridlaw.platform.spec.yaml_reader import read_yaml

    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        name, dot, key = place.partition(".")
        if not equals or not dot or name not in evaluation_names():
            raise BadInput(
                "--set", seen=text, allowed=f"NAME.KEY=VALUE with NAME one of {', '.join(evaluation_names())}"
            )
        document, problems = read_yaml(value)
        if problems:
            said = ", ".join(str(each) for each in (problems[0].seen, problems[0].hint) if each)
            raise BadInput("--set", seen=text, allowed="a VALUE that is YAML, as in a grid file", hint=said)
        found.setdefault(name, {})[key] = document.value
    return found
