"""One fit as data: what is asked (FitJob) and what came of it (FitResult). JSON-able; imports no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training.checks import choice, mapping_of, number, whole_number

ACCELERATORS = ("auto", "cpu", "gpu")


@dataclass(frozen=True, kw_only=True)
class FitJob:
    """A trunk segment, or a decay, on one device.

    What changes the numbers
        model: ``ModelConfig.to_dict()``. training: ``TrainingSettings.to_dict()``. seed: of weights and sampling.
        data: folder of prepared data (its content counts, not its path). context: tokens of a window.
        document_mask: documents packed in one window do not see each other.
        start_checkpoint: the trunk's checkpoint that a decay goes on from; used while ``folder`` holds none of its own.
        start_weights: folder with model.safetensors that a stage begins with, by name; step 0, new optimizer state.
        start_fingerprint: which weights these are, wherever the folder lies; None: the folder's path stands for it.
        decay_start_step, decay_steps: None for a trunk.
    How far and where
        until_step: optimizer steps counted from the run's beginning. folder: checkpoints and results.
        checkpoint_every_steps: 0 for none but the last. keep_steps: never pruned (branch points). keep_last: the
        newest checkpoints that are kept besides.
        export: write ``model.safetensors`` and ``config.json`` at the end; None means: exactly if this is a decay.
    How it is executed
        accelerator: auto, cpu or gpu. num_threads: of torch; 0 leaves them. micro_batch: windows of one forward pass,
        None for the whole step. num_workers: loader processes. activation_checkpointing, compile: as torch's.
        peak_tflops: of the device in this precision, for model-FLOPs utilisation. log_every_steps: steps between
        logged rows. stop_file: its appearance stops the fit as SIGTERM does, from any process or thread.
    """

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    data: str
    context: int
    document_mask: bool = False
    start_checkpoint: str | None = None
    start_weights: str | None = None
    start_fingerprint: str | None = None
    decay_start_step: int | None = None
    decay_steps: int | None = None

    until_step: int
    folder: str
    checkpoint_every_steps: int = 200
    keep_steps: tuple[int, ...] = ()
    keep_last: int = 2
    export: bool | None = None

    accelerator: str = "auto"
    num_threads: int = 1
    micro_batch: int | None = None
    num_workers: int = 0
    activation_checkpointing: bool = False
    compile: bool = False
    peak_tflops: float | None = None
    log_every_steps: int = 1
    stop_file: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep_steps", tuple(self.keep_steps))
        choice("accelerator", self.accelerator, ACCELERATORS)
        whole_number("until_step", self.until_step, at_least=1)
        whole_number("context", self.context, at_least=1)
        whole_number("checkpoint_every_steps", self.checkpoint_every_steps, at_least=0)
        whole_number("keep_last", self.keep_last, at_least=1)
        whole_number("num_threads", self.num_threads, at_least=0)
        whole_number("num_workers", self.num_workers, at_least=0)
        whole_number("log_every_steps", self.log_every_steps, at_least=1)
        if self.micro_batch is not None:
            whole_number("micro_batch", self.micro_batch, at_least=1)
        if self.peak_tflops is not None:
            number("peak_tflops", self.peak_tflops, above=0.0)
        self._check_decay()

    def _check_decay(self) -> None:
        if self.decay_start_step is None:
            if self.decay_steps is not None:
                raise BadSetting("decay_start_step", allowed="a step together with decay_steps")
            return
        whole_number("decay_start_step", self.decay_start_step, at_least=0)
        whole_number("decay_steps", self.decay_steps, at_least=1)
        if self.until_step > self.decay_start_step + (self.decay_steps or 0):
            raise BadSetting(
                "until_step",
                seen=self.until_step,
                allowed=f"at most the end of the decay, {self.decay_start_step + (self.decay_steps or 0)}",
            )

    @property
    def exports(self) -> bool:
        """Whether the end of this job writes the model for outside use."""
        return self.decay_start_step is not None if self.export is None else self.export

    def recipe(self, data_fingerprint: str) -> dict[str, Any]:
        """What must be equal in a trunk and in all that goes on from it (the schedule is compared step by step)."""
        training = json.loads(json.dumps(self.training))
        training.pop("schedule", None)
        for added in ("gamma_controller", "distill"):  # unused they are as good as absent, as in earlier versions
            if training.get(added) is None:
                training.pop(added, None)
        return {
            "model": json.loads(json.dumps(self.model)),
            "training": training,
            "seed": self.seed,
            "data": data_fingerprint,
            "context": self.context,
            "document_mask": self.document_mask,
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; ``from_dict`` reads it back."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        copied: dict[str, Any] = json.loads(json.dumps(values))
        return copied

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FitJob:
        """From ``to_dict``; BadSetting names unknown fields."""
        return cls(**mapping_of("job", data, cls))


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What a fit came to. JSON-able.

    steps, tokens: of the run from its beginning (a branch counts its trunk). final_loss: of the last step.
    executed_steps: optimizer steps made in this folder by all attempts together, repeated ones included.
    executed_now: those of this call; 0 if there was nothing to do. resumed_from: the step this call began at.
    seconds, tokens_per_second: of this call's training loop. checkpoint: the trunk's checkpoint file, or the exported
    folder. diverged: the reason, or None. damaged: checkpoints that were found damaged and passed over.
    transferred_weights, new_weights, dropped_weights: names, if the run began with another model's weights.
    """

    steps: int
    tokens: int
    executed_steps: int
    executed_now: int
    resumed_from: int
    final_loss: float | None
    checkpoint: str | None
    seconds: float
    tokens_per_second: float
    micro_batch: int
    diverged: str | None = None
    damaged: tuple[str, ...] = ()
    transferred_weights: tuple[str, ...] = ()
    new_weights: tuple[str, ...] = ()
    dropped_weights: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; ``from_dict`` reads it back."""
        copied: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return copied

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FitResult:
        """From ``to_dict``."""
        given = dict(data)
        for name in ("damaged", "transferred_weights", "new_weights", "dropped_weights"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given)


def digest(value: Any) -> str:
    """A short content hash of a JSON-able value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
