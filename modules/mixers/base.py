"""What a mixer says about itself without torch: settings, parameters, FLOPs, state. The algebra is in its module.py.

A mixer is a folder `modules/mixers/NAME/`: `spec.py` with a subclass of MixerSpec, `module.py` with a subclass of
`gridlaw.modules.mixers.module_base.Mixer`. Counts follow one definition (docs/architectures.md): a FLOP count is
2 × every matrix weight that multiplies plus the attention or recurrence itself; decays, norms, activations count 0.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.scale import Scale

if TYPE_CHECKING:
    from gridlaw.modules.mixers.module_base import Mixer

STATE_BYTES_PER_ELEMENT = 4  # recurrent states stay in float32 whatever the precision of the rest


@dataclass(frozen=True, kw_only=True)
class MixerSpec(ABC):
    """The settings of one layer's mixer; a subclass's fields are its settings, and all of them are identity.

    name: the mixer's name in patterns.
    words: what a suffix in a pattern means, e.g. {"nope": {"rope": False}} makes `full-nope`; a whole number in
        a suffix sets the field `window`.
    """

    name: ClassVar[str]
    words: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @property
    def uses_rope(self) -> bool:
        """Whether queries and keys are rotated by position."""
        return False

    def check(self, scale: Scale) -> None:  # noqa: B027  (most mixers fit every scale)
        """Raise BadSetting where these settings do not fit `scale`; by default they always do."""

    def resolved(self, scale: Scale) -> Self:
        """The same settings with every default that depends on the scale filled in."""
        return self

    @abstractmethod
    def num_params(self, scale: Scale) -> int:
        """Parameters of one mixer that N counts; the layer's FFN and norms are not part of it."""

    def fixed_full_ratio(self, scale: Scale) -> float | None:
        """Share of full attention in this layer where the settings fix it; None where the weights or tokens decide."""
        return 0.0

    def num_params_uncounted(self, scale: Scale) -> int:
        """Parameters of one mixer that the total counts and N does not: sink logits."""
        return 0

    def weight_shapes(self, scale: Scale) -> dict[str, tuple[int, ...]] | None:
        """Shape of every parameter of the module by its name there; None where only the module knows.

        With it a plan says what a stage takes over from another architecture's weights, and refuses what cannot fit.
        """
        return None

    def ffn_dim(self, scale: Scale) -> int:
        """Hidden width of the SwiGLU beside this mixer: features."""
        return scale.ffn_dim

    @abstractmethod
    def flops_per_sequence(
        self, scale: Scale, length: int, *, training: bool = True, full_ratio: float = 1.0
    ) -> int | float:
        """Forward FLOPs of one mixer over one sequence of `length` tokens, exact.

        training: the parallel form (where a mixer computes more than in decoding, it counts all of it).
        full_ratio: share of full attention at inference; only mixers that choose (switch, duo) read it.
        """

    def flops_per_token(self, scale: Scale, context: int, *, training: bool = True, full_ratio: float = 1.0) -> float:
        """Forward FLOPs of one mixer per token: the mean over a sequence of `context` tokens."""
        return self.flops_per_sequence(scale, context, training=training, full_ratio=full_ratio) / context

    @abstractmethod
    def state_bytes(self, scale: Scale, context: int, *, bytes_per_element: int = 2) -> int:
        """Bytes that decoding keeps for one layer and one sequence of `context` tokens.

        bytes_per_element: of cached keys, values and convolution inputs; recurrent states are float32 always.
        """

    @abstractmethod
    def build(self, scale: Scale, *, layer_index: int, num_layers: int, norm_eps: float = 1e-5) -> Mixer:
        """The torch module of one layer; torch is imported here and not before."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: {"mixer": name, **settings}."""
        return {"mixer": self.name, **dataclasses.asdict(self)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Build from the settings alone; unknown ones raise BadSetting with those that exist."""
        known = cls.setting_names()
        for key in settings:
            if key not in known:
                raise BadSetting(
                    f"mixer {cls.name}: setting {key!r}", allowed=", ".join(known) or "none, this mixer has no settings"
                )
        return cls(**settings)

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Names of the settings, in the order of their definition."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def from_suffixes(cls, suffixes: list[str]) -> Self:
        """Settings from the words after the name in a pattern: `swa-128`, `full-nope`, `gdn-conv`."""
        settings: dict[str, Any] = {}
        for word in suffixes:
            if word.isdigit() and "window" in cls.setting_names() and "window" not in settings:
                settings["window"] = int(word)
            elif word in cls.words:
                settings.update(cls.words[word])
            else:
                allowed = [*(["a window in tokens"] if "window" in cls.setting_names() else []), *cls.words]
                raise BadSetting(
                    f"mixer {cls.name}: suffix {word!r}",
                    allowed=", ".join(allowed) or "none, this mixer takes no suffix",
                )
        return cls.from_settings(settings)


def matmul_flops(num_weights: int, length: int) -> int:
    """FLOPs of multiplying `length` tokens with `num_weights` matrix weights: a multiply and an add each."""
    return 2 * num_weights * length


def visible_keys(length: int, window: int | None = None) -> int:
    """Keys visible to all queries of one sequence together: the sum over t = 1..length of min(t, window)."""
    if window is None or window >= length:
        return length * (length + 1) // 2
    return window * (window + 1) // 2 + (length - window) * window


def check_flag(mixer: str, field: str, value: Any) -> None:
    """Raise BadSetting unless `value` is true or false."""
    if not isinstance(value, bool):
        raise BadSetting(f"mixer {mixer}: {field}", seen=value, allowed="true or false")


def check_whole(mixer: str, field: str, value: Any, *, minimum: int = 1, hint: str = "") -> None:
    """Raise BadSetting unless `value` is a whole number of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise BadSetting(
            f"mixer {mixer}: {field}", seen=value, allowed=f"a whole number of at least {minimum}", hint=hint
        )
