"""fit(job): train one trunk segment, or one decay, on one device, and go on wherever an earlier attempt ended.

Files in ``job.folder``
    step-000000240.ckpt, .ckpt.json   Lightning checkpoints with checksums (``checkpoint_files``)
    result-000000240.json             what ``fit`` returned for ``until_step`` 240; written last
    executed.count                    optimizer steps made by all attempts
    micro_batch.json                  the micro-batch that fitted into memory
    transfer.json                     what was taken over, if the run began with another model's weights
    model/                            model.safetensors and config.json, at the end of a decay

The batch, learning rate and everything else of step s are functions of the job and of s. So an interrupted fit, a trunk
continued in segments, and a trunk with its decay end in the same bits as one run from scratch on the same kind of
machine, as long as the micro-batch is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import LightningEnvironment

from gridlaw.modules.data.batches import train_loader
from gridlaw.modules.data.prepare import PreparedData, open_prepared
from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training import build, checkpoint_files
from gridlaw.modules.training.callbacks import Checkpointer, StopOnRequest
from gridlaw.modules.training.checkpoint_files import MICRO_BATCH_FILE
from gridlaw.modules.training.checkpoint_io import WholeFileIO
from gridlaw.modules.training.errors import Diverged, Stopped
from gridlaw.modules.training.job import FitJob, FitResult, digest
from gridlaw.modules.training.module import LanguageModelModule
from gridlaw.modules.training.schedule import Plan, plan_for
from gridlaw.modules.training.settings import PRECISIONS, TrainingSettings
from gridlaw.modules.training.surroundings import keep_heap, surroundings
from gridlaw.modules.training.telemetry import Progress, StepCounter, Telemetry, TimedLoader

__all__ = ["Diverged", "FitJob", "FitResult", "Stopped", "fit"]

log = logging.getLogger(__name__)


def fit(
    job: FitJob,
    *,
    logger: Logger | None = None,
    callbacks: Sequence[pl.Callback] = (),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FitResult:
    """Train ``job`` to its ``until_step``; at once, with the stored result, if that was done before.

    logger: receives rows of metrics by step (``telemetry``); on resume, steps that it had already may come again.
    callbacks: more of Lightning's. progress: see ``telemetry.Progress``. should_stop: asked a few times a second.
    Raises Diverged before a non-finite update, Stopped (a SystemExit) after saving on request, BadSetting for a job
    that cannot be.
    """
    run = _Run.of(job)
    keep_heap()
    stored = run.stored_result()
    if stored is not None:
        return dataclasses.replace(stored, executed_now=0, resumed_from=job.until_step)
    start, damaged = run.start()
    for sentence in damaged:
        log.warning("damaged checkpoint passed over: %s", sentence)
    run.folder.mkdir(parents=True, exist_ok=True)
    micro_batch = run.micro_batch()
    while True:
        with contextlib.closing(StepCounter(run.folder / "executed.count")) as counter:
            try:
                return run.train(start, damaged, micro_batch, counter, logger, callbacks, progress, should_stop)
            except torch.OutOfMemoryError:
                if counter.now or micro_batch == 1 or job.micro_batch is not None:
                    raise
                micro_batch = max(size for size in range(1, micro_batch) if run.batch_size % size == 0)
                log.warning("out of device memory: trying a micro-batch of %d windows", micro_batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """A job with what was read and resolved for it."""

    job: FitJob
    settings: TrainingSettings
    prepared: PreparedData
    plan: Plan
    recipe: dict[str, Any]

    @classmethod
    def of(cls, job: FitJob) -> _Run:
        settings = TrainingSettings.from_dict(job.training)
        settings.check_context(job.context)
        prepared = open_prepared(Path(job.data))
        if prepared.context != job.context:
            raise BadSetting("context", seen=job.context, allowed=f"that of the prepared data, {prepared.context}")
        if prepared.vocab_size > job.model["vocab_size"]:
            raise BadSetting(
                "vocab_size",
                seen=job.model["vocab_size"],
                allowed=f"at least the tokenizer's {prepared.vocab_size} words",
                hint="A token id beyond the model's vocabulary has no embedding",
            )
        plan = plan_for(settings.schedule, job.decay_start_step, job.decay_steps)
        recipe = job.recipe(prepared.fingerprint)
        return cls(job=job, settings=settings, prepared=prepared, plan=plan, recipe=recipe)

    @property
    def folder(self) -> Path:
        return Path(self.job.folder)

    @property
    def batch_size(self) -> int:
        """Windows of one optimizer step."""
        return self.settings.sequences_per_step(self.job.context)

    @property
    def result_path(self) -> Path:
        return self.folder / f"result-{self.job.until_step:09d}.json"

    @property
    def identity(self) -> str:
        """Of what the stored result depends on."""
        weights = self.job.start_fingerprint or self.job.start_weights
        return digest({"recipe": self.recipe, "plan": vars(self.plan), "weights": weights})

    def stored_result(self) -> FitResult | None:
        """The result of this same job, if what it points to is whole."""
        try:
            stored = json.loads(self.result_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if stored["identity"] != self.identity:
            raise BadSetting(
                "folder",
                seen=str(self.folder),
                allowed="an empty folder, or one of the same job",
                hint=f"{self.result_path.name} belongs to other settings",
            )
        for name, num_bytes in stored["files"].items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != num_bytes:
                return None
            if path.suffix == checkpoint_files.SUFFIX and checkpoint_files.fault(path) is not None:
                return None  # it is named by ``start``, which looks for the one before it
        result = FitResult.from_dict(stored["result"])
        # Relative in the file: a store may be moved.
        return dataclasses.replace(result, checkpoint=str(self.folder / str(result.checkpoint)))

    def start(self) -> tuple[Path | None, list[str]]:
        """The checkpoint to go on from, and what was found damaged on the way.

        The folder's own newest whole one; else the trunk's ``start_checkpoint``, or the one before it if that is
        damaged (more steps, the same result); else None: from the beginning.
        """
        own, damaged = checkpoint_files.newest_valid(self.folder, until_step=self.job.until_step)
        if own is not None or self.job.start_checkpoint is None:
            return own, damaged
        wanted = Path(self.job.start_checkpoint)
        reason = checkpoint_files.fault(wanted)
        if reason is None:
            return wanted, damaged
        damaged.append(f"{wanted}: {reason}")
        earlier, more = checkpoint_files.newest_valid(wanted.parent, until_step=checkpoint_files.step_of(wanted))
        if earlier is None:
            raise BadSetting(
                "start_checkpoint",
                seen=str(wanted),
                allowed="a whole checkpoint of the trunk",
                hint=f"{reason[0].upper()}{reason[1:]}, and no earlier one is whole: train the trunk again",
            )
        return earlier, damaged + [sentence for sentence in more if sentence not in damaged]

    def micro_batch(self) -> int:
        """Windows of one forward pass: the job's, else what fitted before (here, then in the trunk), else all."""
        folders = [self.folder] + ([Path(self.job.start_checkpoint).parent] if self.job.start_checkpoint else [])
        size = self.job.micro_batch
        for folder in folders:
            if size is None and (folder / MICRO_BATCH_FILE).is_file():
                size = int(json.loads((folder / MICRO_BATCH_FILE).read_text(encoding="utf-8"))["micro_batch"])
        size = self.batch_size if size is None else size
        if self.batch_size % size:
            raise BadSetting("micro_batch", seen=size, allowed=f"a divisor of the {self.batch_size} windows of a step")
        return size

    def train(
        self,
        start: Path | None,
        damaged: list[str],
        micro_batch: int,
        counter: StepCounter,
        logger: Logger | None,
        callbacks: Sequence[pl.Callback],
        progress: Progress | None,
        should_stop: Callable[[], bool] | None,
    ) -> FitResult:
        """Run Lightning's Trainer from ``start`` and write down what came of it."""
        job = self.job
        with surroundings(job.num_threads):
            start_step = 0 if start is None else checkpoint_files.step_of(start) or 0
            # Before the first step: an attempt after a kill must not try others.
            checkpoint_files.write_json(self.folder / MICRO_BATCH_FILE, {"micro_batch": micro_batch})
            model, transfer = build.model(job, begins=start is None)
            module = LanguageModelModule(
                model,
                settings=self.settings,
                plan=self.plan,
                recipe=self.recipe,
                end_token_id=self.prepared.end_token_id if job.document_mask else None,
                compile_model=job.compile,
                distillation=build.distillation(model, self.settings, self.prepared),
            )
            loader = TimedLoader(self._loader(start_step, micro_batch))
            telemetry = Telemetry(
                batch_tokens=self.settings.batch_tokens,
                until_step=job.until_step,
                counter=counter,
                loader=loader,
                logger=logger,
                progress=progress,
                log_every_steps=job.log_every_steps,
                flops_per_token=build.training_flops_per_token(job) if job.peak_tflops else None,
                peak_tflops=job.peak_tflops,
            )
            checkpointer = Checkpointer(
                self.folder,
                every_steps=job.checkpoint_every_steps,
                keep_steps=job.keep_steps,
                keep_last=job.keep_last,
                until_step=job.until_step,
                save_last=not job.exports,
                telemetry=telemetry,
            )
            stop = StopOnRequest(
                checkpointer, stop_file=Path(job.stop_file) if job.stop_file else None, should_stop=should_stop
            )
            trainer = self._trainer([*callbacks, telemetry, checkpointer, stop], micro_batch)
            trainer.fit(module, train_dataloaders=loader, ckpt_path=start, weights_only=True if start else None)
            assert trainer.global_step == job.until_step, f"ended at {trainer.global_step}, not at {job.until_step}"
            result = FitResult(
                steps=job.until_step,
                tokens=job.until_step * self.settings.batch_tokens,
                executed_steps=counter.total,
                executed_now=counter.now,
                resumed_from=start_step,
                final_loss=None if math.isnan(module.last_loss) else module.last_loss,
                checkpoint=str(self._end(trainer, module, checkpointer)),
                seconds=telemetry.seconds,
                tokens_per_second=counter.now * self.settings.batch_tokens / max(telemetry.seconds, 1e-9),
                micro_batch=micro_batch,
                damaged=tuple(damaged),
                transferred_weights=transfer.transferred,
                new_weights=transfer.new,
                dropped_weights=transfer.unused,
            )
        self._store(result)
        return result

    def _loader(self, start_step: int, micro_batch: int) -> Any:
        return train_loader(
            self.prepared,
            seed=self.job.seed,
            batch_size=self.batch_size,
            micro_batch=micro_batch,
            start_step=start_step,
            num_workers=self.job.num_workers,
        )

    def _trainer(self, callbacks: list[pl.Callback], micro_batch: int) -> pl.Trainer:
        gpu = self.job.accelerator == "gpu" or (self.job.accelerator == "auto" and torch.cuda.is_available())
        return pl.Trainer(
            accelerator="gpu" if gpu else "cpu",
            devices=1,
            precision=PRECISIONS[self.settings.precision],  # type: ignore[arg-type]
            max_steps=self.job.until_step,
            max_epochs=-1,
            accumulate_grad_batches=self.batch_size // micro_batch,
            # On CUDA some operations have no deterministic form: warned about there, an error here.
            deterministic="warn" if gpu else True,
            benchmark=False,
            logger=False,
            callbacks=callbacks,
            plugins=[WholeFileIO(), LightningEnvironment()],
            default_root_dir=str(self.folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
        )

    def _end(self, trainer: pl.Trainer, module: LanguageModelModule, checkpointer: Checkpointer) -> Path:
        """Write what this job leaves behind: the exported model, or the checkpoint that others go on from."""
        if not self.job.exports:
            path = self.folder / checkpoint_files.checkpoint_name(self.job.until_step)
            assert path.is_file(), f"{path} was not saved"
            return path
        return build.export(module.model, self.folder / build.MODEL_FOLDER, settings=self.settings)

    def _store(self, result: FitResult) -> None:
        """The result file, then what is not needed any more: checkpoints of a finished decay."""
        assert result.checkpoint is not None
        end = Path(result.checkpoint)
        files = sorted(end.iterdir()) if end.is_dir() else [end]
        sizes = {str(file.relative_to(self.folder)): file.stat().st_size for file in files}
        checkpoint_files.write_json(
            self.result_path,
            {
                "identity": self.identity,
                "files": sizes,
                "result": {**result.to_dict(), "checkpoint": str(end.relative_to(self.folder))},
            },
        )
        if self.job.exports and self.job.decay_start_step is not None:
            for step, path in checkpoint_files.checkpoints(self.folder):
                if step not in self.job.keep_steps:
                    checkpoint_files.remove(path)
