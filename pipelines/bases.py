"""Where a stage's weights come from: a point of this grid, a point of another experiment, or a folder; and what fits.

Torch-free. A point of another experiment is looked up in the ledger when the plan is made; of weights in a file only
the header is read, and their content is hashed. Weights that cannot fit are refused here as far as mixers tell their
shapes (``MixerSpec.weight_shapes``), else in the worker that loads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gridlaw.modules.data.hashing import file_sha256
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.weights import (
    CONFIG,
    WEIGHTS,
    Shape,
    Transfer,
    load_config,
    model_shapes,
    saved_shapes,
    transfer_by_name,
)
from gridlaw.pipelines.place import Place
from gridlaw.platform.errors import BadInput
from gridlaw.platform.spec.blocks import PointId
from gridlaw.platform.spec.grid import GridSpec
from gridlaw.platform.spec.problems import listed, nearest
from gridlaw.platform.spec.stages import PointReference, Source

if TYPE_CHECKING:
    from gridlaw.pipelines.plan import TrunkPlan
    from gridlaw.platform.ledger.elsewhere import OtherExperiment
    from gridlaw.platform.ledger.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class Base:
    """The weights that a trunk starts from.

    label: as people call it. fingerprint: of the point, or of the file's content; the child's identity holds it. point:
    a point of this grid. folder: weights from outside this grid, a folder here or its address in S3. config: the model
    that they are of. shapes: theirs, by name, None where only the worker can tell. transfer: what goes over, once
    ``fitted`` knows the model; else None.
    """

    label: str
    fingerprint: str
    config: ModelConfig
    shapes: Mapping[str, Shape] | None = field(repr=False)
    point: PointId | None = None
    folder: str | None = None
    transfer: Transfer | None = None

    def fitted(self, point: PointId, model: ModelConfig) -> Base:
        """With what ``model``, that of ``point``, takes over; ``BadSetting`` if something has another shape."""
        own = model_shapes(model)
        if own is None or self.shapes is None:
            return self
        where = f"{_field(point)} {self.label} for {point.name}"
        return replace(self, transfer=transfer_by_name(own, self.shapes, where=where))


class Bases:
    """The bases of one grid's points; each other experiment is opened once."""

    def __init__(self, spec: GridSpec) -> None:
        self._spec = spec
        self._experiments: dict[str, OtherExperiment] = {}

    def of(self, point: PointId, earlier: Mapping[str, TrunkPlan]) -> Base | None:
        """What ``point`` starts from, or None for a fresh start. earlier: the trunks of earlier stages, by name."""
        source = self._spec.source_of(point.stage)
        if source is None:
            return None
        if source.folder is not None:
            return self._folder(point, source.folder)
        if source.experiment is not None:
            return self._other_experiment(point, source)
        parent = self._spec.parent_of(point)
        assert parent is not None, "a source without folder and experiment is a point of this grid"
        trunk = earlier[parent.trunk_name]
        found = next(each for each in trunk.points if each.id == parent)
        config = ModelConfig.from_dict(trunk.model)
        return Base(
            label=parent.name,
            fingerprint=found.fingerprint,
            config=config,
            shapes=model_shapes(config),
            point=parent,
        )

    def _folder(self, point: PointId, text: str) -> Base:
        allowed = f"a folder with {WEIGHTS} and {CONFIG}, as gridlaw exports it, on this machine or in S3"
        if text.startswith("s3://"):
            folder, address = self._fetched(point, text, allowed)
        elif "://" in text:
            raise BadInput(_field(point), seen=text, allowed=allowed, hint="Copy the weights to a folder first")
        else:
            folder = (self._spec.base_folder / Path(text).expanduser()).resolve()
            address = str(folder)
        try:
            config, shapes = load_config(folder), saved_shapes(folder)
        except BadSetting as error:
            raise BadInput(_field(point), seen=text, allowed=allowed, hint=str(error)) from None
        return Base(
            label=text,
            fingerprint=file_sha256(folder / WEIGHTS),
            config=config,
            shapes=shapes,
            folder=address,
        )

    def _fetched(self, point: PointId, text: str, allowed: str) -> tuple[Path, str]:
        """(copy on this machine, full address) of weights in S3."""
        from gridlaw.platform.store.cache import local_folder
        from gridlaw.platform.store.open import open_store

        parent, _, name = text.rstrip("/").rpartition("/")
        if parent == "s3:/" or not name:
            raise BadInput(_field(point), seen=text, allowed=allowed, hint="Write s3://BUCKET/FOLDER")
        try:
            store = open_store(parent, create=False)
            return local_folder(store, name), store.url(name)
        except FileNotFoundError:
            raise BadInput(_field(point), seen=text, allowed=allowed, hint="There is nothing") from None
        except BadInput as error:
            raise BadInput(_field(point), seen=text, allowed=allowed, hint=error.hint) from None

    def _other_experiment(self, point: PointId, source: Source) -> Base:
        from gridlaw.pipelines.grid.attempts import MODEL_FOLDER  # they know plans
        from gridlaw.platform.store.base import attempt_name
        from gridlaw.platform.store.cache import local_folder
        from gridlaw.platform.store.open import open_store

        assert source.experiment is not None and source.point is not None, "a point of another experiment"
        other = self._experiment(point, source.experiment)
        names = _names(source.point, point)
        runs = [run for name in names for run in other.ledger.find_runs("point", name=name)]
        finished = [run for run in runs if run.finished]
        if not finished:
            done = [run.name for run in other.ledger.find_runs("point") if run.finished]
            raise _unfinished(point, source.experiment, names[-1], runs[:1], done)
        label = f"{source.experiment}:{finished[0].name}"
        folder, address = None, ""
        if other.store_address is not None:
            with suppress(FileNotFoundError):
                store, name = open_store(other.store_address, create=False), attempt_name(finished[0].run_id)
                folder, address = local_folder(store, f"{name}/{MODEL_FOLDER}"), store.url(f"{name}/{MODEL_FOLDER}")
        if folder is None or not (folder / WEIGHTS).is_file():
            raise BadInput(
                _field(point),
                seen=label,
                allowed="a point whose model is in its store",
                hint=f"{folder or 'The store of ' + source.experiment} is missing: bring the store back, or train "
                "the point again (delete its run in MLflow, then run its grid)",
            )
        return Base(
            label=label,
            fingerprint=finished[0].fingerprint,
            config=load_config(folder),
            shapes=saved_shapes(folder),
            folder=address,
        )

    def _experiment(self, point: PointId, name: str) -> OtherExperiment:
        from gridlaw.platform.ledger.elsewhere import find_experiment

        if name not in self._experiments:
            uri = Place.of_run(self._spec.run).tracking_uri
            found = find_experiment(uri, name)
            if found is None:
                raise BadInput(
                    _field(point),
                    seen=name,
                    allowed=f"an experiment that is in this grid's ledger ({uri})",
                    hint="Run its grid first, with the same run.tracking_uri or store",
                )
            self._experiments[name] = found
        return self._experiments[name]


def _names(reference: PointReference, point: PointId) -> list[str]:
    """Names that a reference may mean, for ``point``: of two parts before the budget, the first may be a stage."""
    scale = reference.scale or point.scale
    meant = [(reference.stage, reference.architecture, scale)]
    if reference.stage is None and reference.scale is not None:
        meant.append((reference.architecture, reference.scale, point.scale))
    seed = point.seed if reference.seed is None else reference.seed
    return [
        PointId(stage=stage, architecture=architecture, scale=scale, budget=reference.budget, seed=seed).name
        for stage, architecture, scale in meant
    ]


def _unfinished(point: PointId, experiment: str, name: str, runs: Sequence[RunRecord], done: Sequence[str]) -> BadInput:
    """The error for a point of another experiment that is not done. runs: its newest, if any. done: points that are."""
    near = nearest(name, done)
    if runs:
        hint = f"Its run is {runs[0].status}{f', {runs[0].reason}' if runs[0].reason else ''}: finish it first"
    else:
        hint = f"Did you mean {near}?" if near else "Run that experiment's grid first, or name another point"
    listing = listed(dict.fromkeys(done), 8) if done else "it has none yet"
    label = f"{experiment}:{name}"
    return BadInput(_field(point), seen=label, allowed=f"a finished point of {experiment}: {listing}", hint=hint)


def _field(point: PointId) -> str:
    return f"stages: {point.stage}: from"
