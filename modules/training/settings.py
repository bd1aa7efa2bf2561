"""How a model is trained: what of it changes the numbers, resolved and JSON-able. Imports no torch.

What does not change the numbers (device, threads, folders, checkpoint interval) belongs to a job, see ``job.py``.

The learning-rate rule
----------------------
Without ``optimizer.lr`` the peak rate of the hidden matrices is ``LR_AT_REFERENCE[name] · REFERENCE_D_MODEL / d_model``
and that of the rest is ``REST_PER_LR[name]`` times as much. Muon runs with torch's ``match_rms_adamw``, so that its
rate is in AdamW's units, of which it moves a matrix by 0.2 per step; AdamW alone moves one by up to 1, and so wants a
smaller rate there than for the embedding. Held-out loss, nats per byte, on the embedded corpus (full attention, context
256, 4,096 tokens a step, 116 to 119 steps of which 20 warm up, fp32, one seed), lr / rest_lr:

    n1 muon    0.004 2.477    0.01 2.367    0.025 2.167    0.06 2.115    0.12 2.252
               0.06/0.02 2.189    0.03/0.06 2.115    0.036/0.072 2.098 (the rule)
    n3 muon    0.025 2.107    0.06 2.180    0.027/0.054 1.988
    n1 adamw   0.004 2.445    0.01 2.589    0.005/0.025 2.326    0.012/0.06 2.274
               0.02/0.1 2.279    0.016/0.08 2.318 (the rule)
    n3 adamw   0.005/0.025 2.184    0.008/0.04 2.110    0.012/0.06 2.087

The fall with 1 / d_model follows what is usual for both at larger widths (about 1e-3 at S1 for AdamW); from n1 to n3 it
is hardly seen, and beyond n3 it is an extrapolation and a place to start from, not a measurement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.training.checks import choice, mapping_of, number, whole_number
from gridlaw.modules.training.schedule import ScheduleSettings, steps_for_tokens

OPTIMIZERS = ("muon", "adamw")
PRECISIONS: Mapping[str, str] = {
    "fp32": "32-true",
    "bf16": "bf16-mixed",
    "bf16-true": "bf16-true",
}
"""The file's word → Lightning's precision plugin; ``bf16`` keeps weights and optimizer state in fp32."""
DISTILLED_TOKENS = ("answers", "all")

REFERENCE_D_MODEL = 64
LR_AT_REFERENCE: Mapping[str, float] = {"muon": 1.8e-2, "adamw": 8e-3}
REST_PER_LR: Mapping[str, float] = {"muon": 2.0, "adamw": 5.0}


class HasWidth(Protocol):
    """What the learning-rate rule needs of a scale."""

    @property
    def d_model(self) -> int: ...


def learning_rate(optimizer: str, d_model: int) -> float:
    """The rule of the module's docstring, rounded to three significant digits so that it reads well in a ledger."""
    return float(f"{LR_AT_REFERENCE[optimizer] * REFERENCE_D_MODEL / d_model:.3g}")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """One optimizer object: Muon for hidden matrices with AdamW for the rest, or AdamW alone.

    lr: peak rate of the hidden matrices (attention and feed-forward projections), in AdamW's units. rest_lr: peak rate
    of all else (embedding, head, routers, decays, vectors); None beside a given ``lr`` means ``lr``.
    weight_decay: on matrices only, decoupled, times the rate. momentum, nesterov, ns_steps: Muon's.
    beta1, beta2, eps: AdamW's.
    """

    name: str = "muon"
    lr: float
    rest_lr: float | None = None
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_steps: int = 5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        where = "training.optimizer"
        choice(f"{where}.name", self.name, OPTIMIZERS)
        number(f"{where}.lr", self.lr, above=0.0)
        if self.rest_lr is not None:
            number(f"{where}.rest_lr", self.rest_lr, above=0.0)
        number(f"{where}.weight_decay", self.weight_decay, at_least=0.0)
        number(f"{where}.momentum", self.momentum, at_least=0.0, below=1.0)
        number(f"{where}.beta1", self.beta1, at_least=0.0, below=1.0)
        number(f"{where}.beta2", self.beta2, at_least=0.0, below=1.0)
        number(f"{where}.eps", self.eps, above=0.0)
        whole_number(f"{where}.ns_steps", self.ns_steps, at_least=1)
        if not isinstance(self.nesterov, bool):
            raise BadSetting(f"{where}.nesterov", seen=self.nesterov, allowed="true or false")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, scale: HasWidth | None = None) -> OptimizerSettings:
        """From the grid file's ``training.optimizer``; a missing ``lr`` comes from the rule by ``scale``."""
        given = mapping_of("training.optimizer", data, cls)
        name = given.get("name", "muon")
        choice("training.optimizer.name", name, OPTIMIZERS)
        if given.get("lr") is None:
            if scale is None:
                raise BadSetting("training.optimizer.lr", allowed="a number above 0, or a scale for the rule")
            given["lr"] = learning_rate(name, scale.d_model)
            if given.get("rest_lr") is None:
                given["rest_lr"] = float(f"{REST_PER_LR[name] * given['lr']:.3g}")
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class GammaControllerSettings:
    """Steers Switch layers' gamma_base towards a share of full attention (``gamma_controller``).

    target: the share wanted, mean over layers and tokens. gain: change of log gamma_base per optimizer step and unit of
    error. smoothing: of the measured share, exponential. max_factor: gamma_base stays within this factor of its
    setting, either way.
    """

    target: float
    gain: float = 0.2
    smoothing: float = 0.9
    max_factor: float = 1000.0

    def __post_init__(self) -> None:
        where = "training.gamma_controller"
        number(f"{where}.target", self.target, at_least=0.0, at_most=1.0)
        number(f"{where}.gain", self.gain, above=0.0)
        number(f"{where}.smoothing", self.smoothing, at_least=0.0, below=1.0)
        number(f"{where}.max_factor", self.max_factor, above=1.0)


@dataclass(frozen=True, kw_only=True)
class DistillSettings:
    """DuoAttention's way to learn its gates, instead of the language-model loss (``distillation``).

    l1: weight of the mean gate in the loss. tokens: answers (those of ``generate:passkey``, as in the original) or all.
    threshold: gates above it become full heads at the end; full_heads: instead, so large a share of all KV heads, those
    with the largest gates.
    """

    l1: float = 0.05
    tokens: str = "answers"
    threshold: float = 0.5
    full_heads: float | None = None

    def __post_init__(self) -> None:
        where = "training.distill"
        number(f"{where}.l1", self.l1, at_least=0.0)
        choice(f"{where}.tokens", self.tokens, DISTILLED_TOKENS)
        number(f"{where}.threshold", self.threshold, at_least=0.0, at_most=1.0)
        if self.full_heads is not None:
            number(f"{where}.full_heads", self.full_heads, at_least=0.0, at_most=1.0)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The resolved ``training:`` of a grid file.

    batch_tokens: tokens of one optimizer step, a multiple of the context.
    precision: a key of ``PRECISIONS``. clip: the largest gradient norm; 0 for no clipping.
    gamma_controller, distill: None for none.
    """

    batch_tokens: int = 524_288
    optimizer: OptimizerSettings
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    precision: str = "bf16"
    clip: float = 1.0
    gamma_controller: GammaControllerSettings | None = None
    distill: DistillSettings | None = None

    def __post_init__(self) -> None:
        whole_number("training.batch_tokens", self.batch_tokens, at_least=1)
        choice("training.precision", self.precision, tuple(PRECISIONS))
        number("training.clip", self.clip, at_least=0.0)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form with every value resolved; ``from_dict`` reads it back without a scale."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None, *, scale: HasWidth | None = None) -> TrainingSettings:
        """From the grid file's ``training:`` (or ``to_dict``). ``scale`` feeds the learning-rate rule.

        BadSetting for unknown fields (the nearest known one is named) and for values that cannot be.
        """
        given = mapping_of("training", data if data is not None else {}, cls)
        given["optimizer"] = OptimizerSettings.from_dict(given.get("optimizer") or {}, scale=scale)
        given["schedule"] = ScheduleSettings.from_dict(given.get("schedule") or {})
        if (controller := given.get("gamma_controller")) is not None:
            values = mapping_of("training.gamma_controller", controller, GammaControllerSettings)
            if "target" not in values:
                raise BadSetting(
                    "training.gamma_controller.target", allowed="the share of full attention wanted, from 0 to 1"
                )
            given["gamma_controller"] = GammaControllerSettings(**values)
        if (distill := given.get("distill")) is not None:
            given["distill"] = DistillSettings(**mapping_of("training.distill", distill, DistillSettings))
        return cls(**given)

    def check_context(self, context: int) -> None:
        """BadSetting unless the token batch is a multiple of ``context`` tokens."""
        if self.batch_tokens % context:
            below = self.batch_tokens // context * context
            raise BadSetting(
                "training.batch_tokens",
                seen=self.batch_tokens,
                allowed=f"a multiple of the context, {context} tokens",
                hint=f"Take {below + context}" + (f" or {below}" if below else ""),
            )

    def sequences_per_step(self, context: int) -> int:
        """Windows of ``context`` tokens in one optimizer step."""
        self.check_context(context)
        return self.batch_tokens // context

    def steps_for_tokens(self, tokens: int | float) -> int:
        """Optimizer steps that see at least ``tokens`` tokens."""
        return steps_for_tokens(tokens, self.batch_tokens)
