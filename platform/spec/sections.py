"""The sections of a grid file that stand for themselves: data, training, evaluations, laws, run.

Keys that other parts of gridlaw fill with defaults are optional here and stay out of ``given()`` when the file leaves
them out: their one default lives with the part that uses it (``gridlaw.modules.training``, ``gridlaw.modules.data``).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gridlaw.platform.spec.forms import (
    Bytes,
    Items,
    Name,
    Section,
    Settings,
    SomeItems,
    Tokens,
    no_bool,
    wrong,
)

Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class OptimizerSection(Section):
    """``training.optimizer``. Trunk identity."""

    name: Literal["muon", "adamw"] = Field(
        default="muon", description="muon (AdamW for what is no hidden matrix) or adamw"
    )
    lr: Positive | None = Field(default=None, description="peak learning rate; left out: the documented rule by scale")
    rest_lr: Positive | None = Field(
        default=None,
        description="peak rate of all but the hidden matrices; left out: lr, or by the rule with lr",
    )
    weight_decay: float | None = Field(default=None, ge=0, description="decoupled, on matrices only; 0.1")
    momentum: float | None = Field(default=None, ge=0, lt=1, description="Muon's momentum; 0.95")
    nesterov: bool | None = Field(default=None, description="Muon's Nesterov momentum; true")
    ns_steps: Count | None = Field(default=None, description="Muon's Newton–Schulz iterations; 5")
    beta1: float | None = Field(default=None, ge=0, lt=1, description="AdamW's beta 1; 0.9")
    beta2: float | None = Field(default=None, ge=0, lt=1, description="AdamW's beta 2; 0.95")
    eps: Positive | None = Field(default=None, description="AdamW's epsilon; 1e-8")


class ScheduleSection(Section):
    """``training.schedule``. Under wsd the decay keys are point identity, the rest trunk identity."""

    name: Literal["wsd", "cosine"] = Field(
        default="wsd", description="wsd (trunks serve all budgets) or cosine (nothing is shared)"
    )
    warmup_steps: int | None = Field(default=None, ge=0, description="optimizer steps until the full rate; 100")
    decay_fraction: float | None = Field(
        default=None, gt=0, le=1, description="share of a budget's steps that decay; 0.1"
    )
    decay_shape: Literal["1-sqrt", "linear", "cosine"] | None = Field(
        default=None, description="shape of the decay (wsd); 1-sqrt"
    )
    final_fraction: float | None = Field(
        default=None, ge=0, le=1, description="what the decay tends to, as a share of lr; 0"
    )


class GammaControllerSection(Section):
    """``training.gamma_controller``. Trunk identity."""

    target: Annotated[float, Field(ge=0, le=1)] = Field(description="share of full attention that is wanted")
    gain: Positive | None = Field(default=None, description="change of log gamma_base per step and unit of error; 0.2")
    smoothing: float | None = Field(default=None, ge=0, lt=1, description="of the measured share; 0.9")
    max_factor: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="gamma_base stays within this factor of its setting; 1000"
    )


class DistillSection(Section):
    """``training.distill``. Trunk identity."""

    l1: float | None = Field(default=None, ge=0, description="weight of the mean gate in the loss; 0.05")
    tokens: Literal["answers", "all"] | None = Field(
        default=None, description="where hidden states are compared: the answers of generate:passkey, or all; answers"
    )
    threshold: float | None = Field(default=None, ge=0, le=1, description="gates above it become full heads; 0.5")
    full_heads: float | None = Field(
        default=None, ge=0, le=1, description="instead of threshold: share of all KV heads that become full"
    )

    @model_validator(mode="after")
    def _one_way(self) -> DistillSection:
        if self.threshold is not None and self.full_heads is not None:
            raise wrong("either threshold or full_heads", "Remove one of the two")
        return self


class YarnSection(Section):
    """``rope.yarn``. Trunk identity."""

    factor: float | None = Field(
        default=None, ge=1, description="how far positions are stretched; the context over original_context"
    )
    original_context: Count | None = Field(
        default=None, description="tokens that the weights were trained at; those of the base's positions"
    )
    beta_fast: Positive | None = Field(
        default=None, description="turns in original_context beyond which features are not stretched; 32"
    )
    beta_slow: Positive | None = Field(
        default=None, description="turns in original_context below which features are stretched by the factor; 1"
    )
    attention_factor: Positive | None = Field(
        default=None, description="factor on cosines and sines; 0.1 · ln(factor) + 1"
    )


class RopeSection(Section):
    """``rope:``. Rotary positions; all of it trunk identity."""

    base: float | None = Field(
        default=None, gt=1, description="base of the angles; the base model's, or 10000 up to 4096 tokens, else 500000"
    )
    yarn: YarnSection | None = Field(default=None, description="YaRN, for a longer context than the weights know")


class TrainingSection(Section):
    """``training:``. How a model is trained; all of it identity."""

    batch_tokens: Count | None = Field(
        default=None, description="tokens of one step, a multiple of the context; 524288"
    )
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection, description="the optimizer")
    schedule: ScheduleSection = Field(default_factory=ScheduleSection, description="the learning-rate schedule")
    precision: Literal["fp32", "bf16", "bf16-true"] | None = Field(
        default=None, description="arithmetic of training; bf16"
    )
    clip: float | None = Field(default=None, ge=0, description="largest gradient norm, 0 for no clipping; 1.0")
    gamma_controller: GammaControllerSection | None = Field(
        default=None, description="steers Switch's gamma_base to a share of full attention; off"
    )
    distill: DistillSection | None = Field(
        default=None, description="learns DuoAttention's gates by distillation instead of the language-model loss; off"
    )


class _SourceKeys(Section):
    """What a source needs besides its name; which kind of source takes which key is known to the data part."""

    revision: Text | None = Field(default=None, description="commit of a Hugging Face dataset, required for one")
    split: Text | None = Field(default=None, description="split of a Hugging Face dataset; train")
    text_column: Text | None = Field(default=None, description="column that holds the text; text")
    settings: Settings | None = Field(default=None, description="settings of a generator")


class SourceSection(_SourceKeys):
    """One entry of ``data.mixture``. Trunk identity, by content."""

    source: Text = Field(description="a path or glob, embedded:python, generate:NAME, or hf:NAME:SUBSET")
    weight: Positive | None = Field(default=None, description="share of the tokens, relative to other sources; 1")
    min_tokens: int | None = Field(default=None, ge=0, description="shorter documents are left out; 0")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value


class HeldoutSection(_SourceKeys):
    """``data.heldout``. Text that is never trained on."""

    source: Text | None = Field(default=None, description="a source of its own; else a share of the mixture")
    documents: Count | None = Field(default=None, description="at most so many documents")
    fraction: float | None = Field(default=None, gt=0, lt=1, description="share of the mixture's documents; 0.05")

    @model_validator(mode="after")
    def _one_way(self) -> HeldoutSection:
        if self.source is not None and self.fraction is not None:
            raise wrong("either source or fraction", "Remove one of the two")
        return self


class DataSection(Section):
    """``data:``. What a model reads; trunk identity by content, but for ``max_epochs``."""

    tokenizer: Text | None = Field(
        default=None, description="bytes, a tokenizers JSON file, or a Hugging Face folder; bytes"
    )
    context: Count = Field(description="tokens of a training window, such as context: 512")
    mixture: SomeItems[SourceSection] | None = Field(default=None, description="the sources; embedded:python")
    heldout: HeldoutSection | None = Field(
        default=None, description="text that is never trained on; a share of the mixture"
    )
    document_mask: bool | None = Field(default=None, description="keep documents of a packed window apart; false")
    max_epochs: Positive | None = Field(default=None, description="refuse more epochs than this; never identity")


class EvaluationSection(Section):
    """One entry of ``evaluate:``: a name, or ``{name: {settings}}``. Evaluation identity; pipelines know the names."""

    name: Name = Field(description="the evaluation's name")
    settings: Settings = Field(default_factory=dict, description="its settings")

    @model_validator(mode="before")
    @classmethod
    def _from_entry(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value, "settings": {}}
        if isinstance(value, dict) and set(value) == {"name", "settings"}:
            return value
        if isinstance(value, dict) and len(value) == 1:
            ((name, settings),) = value.items()
            return {"name": name, "settings": {} if settings is None else settings}
        raise wrong("a name, or one name with its settings: {niah: {lengths: [256]}}")


class SelectionSection(Section):
    """Which points a law fits or verifies: those that every given key names."""

    scales: SomeItems[Text] | None = Field(default=None, description="scales")
    budgets: SomeItems[Any] | None = Field(default=None, description="budgets")
    seeds: SomeItems[Any] | None = Field(default=None, description="seeds")
    architectures: SomeItems[Text] | None = Field(default=None, description="architectures")
    stages: SomeItems[Text] | None = Field(default=None, description="stages")
    points: SomeItems[Text] | None = Field(default=None, description="points by parts of their names, such as n3/20N")

    @model_validator(mode="after")
    def _not_empty(self) -> SelectionSection:
        if not self.model_fields_set:
            raise wrong("a selection with at least one key", "Remove the key to take every point")
        return self


def _forms(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class LawSection(Section):
    """One entry of ``laws:``. Law identity, but for ``name``."""

    target: Text = Field(description="a metric of the evaluations, such as loss, or log:METRIC")
    name: Name | None = Field(default=None, description="the law's name in the ledger; the target's")
    form: Annotated[SomeItems[Literal["nd", "nde", "n", "d", "ne", "de"]], BeforeValidator(_forms)] = Field(
        default=("nd",), description="one form or several: nd (N and D), n, d, each with e for a constant: nde, ne, de"
    )
    fit: SelectionSection | None = Field(default=None, description="points that are fitted; all that are not verified")
    verify: SelectionSection | None = Field(default=None, description="points that are predicted and never fitted")
    exclude: Items[Text] = Field(default=(), description="points left out, by parts of their names, such as S1/100N")

    @property
    def label(self) -> str:
        """The law's name: the given one, or the target's with what a name cannot have replaced."""
        return self.name or re.sub(r"[^A-Za-z0-9._-]+", "-", self.target).strip("-.") or "law"


class KeepSection(Section):
    """``run.keep``. Which checkpoints stay; never identity."""

    every_tokens: Tokens | None = Field(
        default=None, description="trunk checkpoints beyond those of branches, such as 1B"
    )


class ResourcesSection(Section):
    """One entry of ``run.evaluations``: what a task of that evaluation asks for; never identity."""

    devices: Annotated[float, Field(ge=0)] | None = Field(default=None, description="devices, in parts too; 1")
    memory: Bytes | None = Field(default=None, description="memory, such as 16GiB")


class HardwareSection(Section):
    """``run.hardware``. What ``plan`` computes time and cost from until throughput was measured; never identity."""

    peak_tflops: Positive | None = Field(default=None, description="peak of one device, in TFLOP/s")
    mfu: float | None = Field(default=None, gt=0, le=1, description="share of the peak that training reaches")
    price_per_device_hour: float | None = Field(default=None, ge=0, description="price; left out: no cost line")


def _devices(value: Any) -> Any:
    no_bool(value)
    return {"": value} if isinstance(value, (int, float)) else value


class RunSection(Section):
    """``run:``. Where and how; never identity."""

    accelerator: Literal["auto", "cpu", "gpu"] = Field(
        default="auto", description="a device is a GPU under gpu, a core under cpu"
    )
    devices: Annotated[dict[str, Positive], BeforeValidator(_devices)] = Field(
        default_factory=dict, description="devices of one trial: a number, or numbers by scale; 1"
    )
    strategy: Text | None = Field(default=None, description="strategy of trials on several devices")
    max_parallel: Count | None = Field(default=None, description="trials at a time; as many as fit")
    checkpoint_every_steps: Count | None = Field(
        default=None, description="optimizer steps between checkpoints for resuming"
    )
    activation_checkpointing: bool = Field(
        default=False, description="layers keep their inputs alone and compute the rest again: less memory, more time"
    )
    compile: bool = Field(default=False, description="torch.compile; equal within rounding only")
    data_workers: int | None = Field(default=None, ge=0, description="processes that load data beside each trial; 0")
    log_every_steps: Count | None = Field(default=None, description="optimizer steps between logged rows; 1")
    keep: KeepSection = Field(default_factory=KeepSection, description="which checkpoints stay")
    evaluations: dict[str, ResourcesSection] = Field(default_factory=dict, description="resources by evaluation")
    hardware: HardwareSection = Field(default_factory=HardwareSection, description="figures for plan")
    tracking_uri: Text | None = Field(default=None, description="MLflow's tracking server; sqlite beside the store")
    store: Text | None = Field(
        default=None, description="folder or s3:// address of checkpoints and data; ./gridlaw-runs"
    )
    storage: Text | None = Field(
        default=None, description="of a study: sqlite:///, postgresql://…, journal:///FILE; sqlite beside the store"
    )
    parallel: Count | None = Field(default=None, description="trials of a study at a time; as many as fit")
    max_hours: Positive | None = Field(default=None, description="no trial begins later in one tune run; no limit")
    max_flops: Positive | None = Field(
        default=None, description="no trial begins that would take a study beyond these training FLOPs; no limit"
    )

    def devices_for(self, scale: str) -> float:
        """Devices of one trial at ``scale``: its own number, or the one for all scales, or 1."""
        return self.devices.get(scale, self.devices.get("", 1.0))

    def evaluation_devices(self, name: str) -> float:
        """Devices of one task of an evaluation; 1 where the file says nothing."""
        asked = self.evaluations.get(name)
        return asked.devices if asked is not None and asked.devices is not None else 1.0

    def evaluation_memory(self, name: str) -> int:
        """Bytes that one task of an evaluation asks for; 0 for no claim."""
        asked = self.evaluations.get(name)
        return asked.memory or 0 if asked is not None else 0
