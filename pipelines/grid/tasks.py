"""From plan to stage calls: the JSON task of each node, with full addresses of what it reads and writes in the store.

Where the store is a folder an address is a path; elsewhere the worker turns it into one (``stages/remote``). Folders
are keyed by run id (``attempts/<run_id>``), prepared data by content (``data/<fingerprint>``), so nothing here depends
on an experiment's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gridlaw.modules.training import checkpoint_files
from gridlaw.modules.training.job import FitJob
from gridlaw.pipelines.data_plans import DataPlan
from gridlaw.pipelines.evaluations.inputs import Inputs
from gridlaw.pipelines.evaluations.registry import Evaluation
from gridlaw.pipelines.evaluations.sources import ExamplesPlan
from gridlaw.pipelines.grid.attempts import attempt_address, model_address
from gridlaw.pipelines.plan import PointPlan, TrunkPlan
from gridlaw.platform.spec.sections import RunSection
from gridlaw.platform.store.base import Store, data_name, examples_name

DEFAULT_CHECKPOINT_EVERY_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class EvaluatorFolders:
    """The grid's point that finds key tokens: run of the point, and its prepared data by name."""

    run_id: str
    data: str


@dataclass(frozen=True, kw_only=True)
class TaskBuilder:
    """What all tasks of a submission share. stop: the object that asks every training task to save and leave."""

    store: Store
    run: RunSection
    accelerator: str
    stop: str

    def prepare(self, data: DataPlan) -> dict[str, Any]:
        return {"declaration": data.declaration, "location": data.location, "folder": self.data_folder(data)}

    def segment(
        self, trunk: TrunkPlan, *, until_step: int, run_id: str, weights: str | None, micro_batch: int | None
    ) -> dict[str, Any]:
        """A trunk's segment. weights: the folder of its base's model, which its very start takes over."""
        job = self._job(
            trunk, run_id=run_id, until_step=until_step, micro_batch=micro_batch, start_weights=weights,
            keep_steps=self._kept_steps(trunk, until_step),
        )  # fmt: skip
        return self._training(job, run_id)

    def decay(
        self,
        trunk: TrunkPlan,
        point: PointPlan,
        *,
        run_id: str,
        trunk_run_id: str | None,
        weights: str | None,
        micro_batch: int | None,
    ) -> dict[str, Any]:
        """A point's branch; from its very start (and its base's weights, if it has one) where it shares no trunk."""
        start = None
        if point.trunk_steps > 0:
            assert trunk_run_id is not None, f"{point.name} branches off a trunk that has no run"
            start = attempt_address(self.store, trunk_run_id, checkpoint_files.checkpoint_name(point.trunk_steps))
        job = self._job(
            trunk, run_id=run_id, until_step=point.total_steps, micro_batch=micro_batch, start_checkpoint=start,
            start_weights=weights if start is None else None,
            decay_start_step=point.decay_start_step, decay_steps=point.decay_steps,
        )  # fmt: skip
        return self._training(job, run_id)

    def adopt(self, trunk: TrunkPlan, *, run_id: str, weights: str) -> dict[str, Any]:
        """A point of budget 0: its base's weights under its architecture."""
        return {
            "model": trunk.model,
            "seed": trunk.seed,
            "start_weights": weights,
            "folder": attempt_address(self.store, run_id),
        }

    def examples(self, examples: ExamplesPlan, *, run_id: str, evaluator: EvaluatorFolders | None) -> dict[str, Any]:
        """What all models are asked by an evaluation; evaluator: of the grid's point that finds key tokens."""
        return {
            **self._evaluation(examples.evaluation, run_id),
            "data": data_address(self.store, examples.data),
            "context": examples.context,
            "inputs": evaluation_inputs(self.store, examples.evaluation, examples, evaluator).to_dict(),
        }

    def evaluate(
        self, evaluation: Evaluation, trunk: TrunkPlan, *, run_id: str, point_run_id: str, examples: ExamplesPlan | None
    ) -> dict[str, Any]:
        return {
            **self._evaluation(evaluation, run_id),
            "model": self.model_folder(point_run_id),
            "data": self.data_folder(trunk.measured),
            "inputs": evaluation_inputs(self.store, evaluation, examples, None).to_dict(),
        }

    def _evaluation(self, evaluation: Evaluation, run_id: str) -> dict[str, Any]:
        return {
            "name": evaluation.name,
            "settings": evaluation.settings.to_dict(),
            "work": attempt_address(self.store, run_id),
            "accelerator": self.accelerator,
        }

    def data_folder(self, data: DataPlan) -> str:
        return data_address(self.store, data.folder)

    def model_folder(self, point_run_id: str) -> str:
        return model_address(self.store, point_run_id)

    def _job(self, trunk: TrunkPlan, *, run_id: str, **more: Any) -> FitJob:
        return FitJob(
            model=trunk.model,
            training=trunk.training,
            seed=trunk.seed,
            data=self.data_folder(trunk.data),
            context=trunk.context,
            document_mask=bool(trunk.data.declaration["document_mask"]),
            folder=attempt_address(self.store, run_id),
            start_fingerprint=trunk.base.fingerprint if trunk.base is not None and more.get("start_weights") else None,
            checkpoint_every_steps=self.run.checkpoint_every_steps or DEFAULT_CHECKPOINT_EVERY_STEPS,
            accelerator=self.accelerator,
            activation_checkpointing=self.run.activation_checkpointing,
            compile=self.run.compile,
            num_workers=self.run.data_workers or 0,
            log_every_steps=self.run.log_every_steps or 1,
            peak_tflops=self.run.hardware.peak_tflops,
            stop_file=self.store.url(self.stop),
            **more,
        )

    def _training(self, job: FitJob, run_id: str) -> dict[str, Any]:
        return {"job": job.to_dict(), "run_id": run_id}

    def _kept_steps(self, trunk: TrunkPlan, until_step: int) -> tuple[int, ...]:
        """Branch points, and what ``run.keep`` asks for besides."""
        kept = set(trunk.branch_steps) | {until_step}
        every = self.run.keep.every_tokens
        if every:
            stride = max(1, every // trunk.batch_tokens)
            kept |= set(range(stride, until_step + 1, stride))
        return tuple(sorted(kept))


def evaluation_inputs(
    store: Store, evaluation: Evaluation, examples: ExamplesPlan | None, evaluator: EvaluatorFolders | None
) -> Inputs:
    """Folders and identities of what an evaluation reads beside model and data.

    evaluator: of the grid's point that finds key tokens, where they may have to be found.
    """
    point = None
    if evaluator is not None:
        point = {"folder": model_address(store, evaluator.run_id), "data": data_address(store, evaluator.data)}
    kept = None if examples is None else store.url(examples_name(examples.fingerprint))
    return Inputs.of(evaluation, examples=kept, point=point)


def data_address(store: Store, name: str) -> str:
    """Where prepared data are."""
    return store.url(data_name(name))
