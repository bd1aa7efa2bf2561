"""What can be trained, free of torch: architectures and scales by name or from a grid file, and their exact counts.

An architecture is a name for a layer pattern of mixers plus overrides. A pattern repeats by layer index modulo its
length, whatever the depth. A hybrid is data here, never an `if` in a model.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gridlaw.modules.errors import BadSetting
from gridlaw.modules.mixers.base import MixerSpec
from gridlaw.modules.mixers.registry import (
    added_mixer_names,
    mixer_class,
    mixer_from_dict,
    mixer_from_name,
    mixer_names,
    unknown,
)
from gridlaw.modules.models.config import ModelConfig
from gridlaw.modules.models.rope_settings import default_rope_base
from gridlaw.modules.scale import SCALES, Scale

DEFAULT_SWITCH_WINDOW = 1024  # of swiattn, swa-only, sh-3to1, sh-6to1 and duo without a suffix (arXiv 2603.26380)
PAPER_VOCAB_SIZE = 73_448  # reproduces the totals of arXiv 2606.15378, Table 1
_VOCAB_SIZES = {"switch-1.5b": 32_000}  # ours: arXiv 2603.26380 does not say


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A layer pattern by name. overrides: what the entry sets besides, for training (never read here)."""

    name: str
    pattern: tuple[MixerSpec, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def layers(self, scale: Scale) -> tuple[MixerSpec, ...]:
        """The mixer of every layer at `scale`, checked against it, every default filled in."""
        specs = tuple(self.pattern[index % len(self.pattern)].resolved(scale) for index in range(scale.num_layers))
        for spec in dict.fromkeys(specs):
            spec.check(scale)
        return specs

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "name": self.name,
            "pattern": [spec.to_dict() for spec in self.pattern],
            "overrides": dict(self.overrides),
        }


def _alternate(efficient: str, num_efficient: int = 1, full: str = "full") -> list[str]:
    return [efficient] * num_efficient + [full]


# (shown name, regular expression with at most one group: the window, pattern as a function of that window)
_FAMILIES: tuple[tuple[str, str, Callable[[int], list[str]]], ...] = (
    ("full", r"full", lambda w: ["full"]),
    ("swa-W", r"swa-(\d+)", lambda w: _alternate(f"swa-{w}")),
    ("lightning", r"lightning", lambda w: _alternate("lightning")),
    ("mamba2", r"mamba2", lambda w: _alternate("mamba2")),
    ("gdn", r"gdn", lambda w: _alternate("gdn")),
    ("gdn-conv", r"gdn-conv", lambda w: _alternate("gdn-conv")),
    ("swa-W-1to3", r"swa-(\d+)-1to3", lambda w: _alternate(f"swa-{w}", 3)),
    ("swa-W-headwise", r"swa-(\d+)-headwise", lambda w: [f"headwise-{w}"]),
    ("swa-W-nope", r"swa-(\d+)-nope", lambda w: _alternate(f"swa-{w}", full="full-nope")),
    ("swiattn-W", r"swiattn(?:-(\d+))?", lambda w: [f"switch-{w}"]),
    ("swa-only-W", r"swa-only(?:-(\d+))?", lambda w: [f"swa-{w}"]),
    ("sh-3to1-W", r"sh-3to1(?:-(\d+))?", lambda w: _alternate(f"swa-{w}", 3)),
    ("sh-6to1-W", r"sh-6to1(?:-(\d+))?", lambda w: _alternate(f"swa-{w}", 6)),
    ("duo-W", r"duo(?:-(\d+))?", lambda w: [f"duo-{w}"]),
)
_SHIPPED = (
    "full", "swa-128", "swa-512", "swa-2048", "lightning", "mamba2", "gdn", "gdn-conv", "swa-128-1to3",
    "swa-128-headwise", "swa-128-nope", "swiattn", "sh-3to1", "sh-6to1", "swa-only", "duo",
)  # fmt: skip


def architecture_names() -> tuple[str, ...]:
    """Names of the architectures of the two papers, and of one per mixer that another package adds."""
    return (*_SHIPPED, *added_mixer_names())


def scale_names() -> tuple[str, ...]:
    """Names of the scales."""
    return tuple(SCALES)


def resolve_architecture(entry: str | Mapping[str, Any]) -> Architecture:
    """The architecture of a grid file's entry.

    A name; or {name, pattern: [words or mixer dicts], ...}; or {name, of: another entry, ...}. Besides, an entry may
    hold `training` (kept as an override) and any setting of its mixers (window, sink, rope, gamma_base, ...), which
    then holds for every layer whose mixer has that setting.
    """
    if isinstance(entry, str):
        return Architecture(name=entry, pattern=tuple(mixer_from_name(word) for word in _pattern_of(entry)))
    if not isinstance(entry, Mapping):
        raise BadSetting("architecture", seen=entry, allowed="a name, or a mapping with name and pattern or of")
    return _from_mapping(dict(entry))


def _pattern_of(name: str) -> list[str]:
    for _, expression, pattern in _FAMILIES:
        if match := re.fullmatch(expression, name):
            window = match.group(1) if match.re.groups else None
            return pattern(DEFAULT_SWITCH_WINDOW if window is None else int(window))
    if name in added_mixer_names():
        return _alternate(name)
    nearest = unknown("", name, dict.fromkeys([*architecture_names(), *(family[0] for family in _FAMILIES)])).hint
    window = "Any window may stand in place of 128; a new pattern is written {name: …, pattern: […]}"
    raise BadSetting(
        "architecture", seen=name, allowed=", ".join(architecture_names()), hint=f"{nearest} {window}".strip()
    )


def _from_mapping(entry: dict[str, Any]) -> Architecture:
    name = entry.pop("name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise BadSetting("architecture: name", seen=name, allowed="letters, digits, dot, dash, plus and underscore")
    if ("pattern" in entry) == ("of" in entry):
        raise BadSetting(
            f"architecture {name}",
            allowed="either pattern: [mixers] or of: ARCHITECTURE",
            hint="A pattern names mixers layer by layer, as in pattern: [swa-128, swa-128, gdn, full]",
        )
    if "of" in entry:
        base = resolve_architecture(entry.pop("of"))
        pattern, overrides = base.pattern, dict(base.overrides)
    else:
        pattern, overrides = _parse_pattern(name, entry.pop("pattern")), {}
    if "training" in entry:
        training = entry.pop("training")
        if not isinstance(training, Mapping):
            raise BadSetting(f"architecture {name}: training", seen=training, allowed="a mapping, as under training:")
        overrides["training"] = _merged(overrides.get("training", {}), training)
    return Architecture(name=name, pattern=_with_settings(name, pattern, entry), overrides=overrides)


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _parse_pattern(name: str, pattern: Any) -> tuple[MixerSpec, ...]:
    if not isinstance(pattern, list | tuple) or not pattern:
        raise BadSetting(
            f"architecture {name}: pattern",
            seen=pattern,
            allowed="a list of at least one mixer",
            hint=f"Mixers: {', '.join(mixer_names())}",
        )
    specs = []
    for layer in pattern:
        if isinstance(layer, str):
            specs.append(mixer_from_name(layer))
        elif isinstance(layer, Mapping):
            specs.append(mixer_from_dict(layer))
        else:
            raise BadSetting(
                f"architecture {name}: pattern",
                seen=layer,
                allowed="words such as swa-128, or mappings such as {mixer: swa, window: 128}",
            )
    return tuple(specs)


def _with_settings(name: str, pattern: tuple[MixerSpec, ...], settings: dict[str, Any]) -> tuple[MixerSpec, ...]:
    known = dict.fromkeys(key for spec in pattern for key in spec.setting_names())
    for key in settings:
        if key not in known:
            raise BadSetting(
                f"architecture {name}: {key}",
                seen=settings[key],
                allowed=", ".join(["name", "of", "pattern", "training", *known]),
                hint="Beside training, an entry takes the settings of its pattern's mixers",
            )
    return tuple(
        dataclasses.replace(spec, **{key: value for key, value in settings.items() if key in spec.setting_names()})
        for spec in pattern
    )


_SCALE_FIELDS = {
    "layers": "num_layers", "d_model": "d_model", "ffn_dim": "ffn_dim", "heads": "num_heads",
    "kv_heads": "num_kv_heads", "head_dim": "head_dim", "attention_sink": "attention_sink",
}  # fmt: skip


def resolve_scale(entry: str | Mapping[str, Any]) -> Scale:
    """The scale of a grid file's entry: a name, or {name, layers, d_model, heads, kv_heads, head_dim, ffn_dim}.

    Left out: kv_heads is heads, head_dim is d_model / heads, ffn_dim is 2.5 · d_model (the papers' ratio) rounded down.
    """
    if isinstance(entry, str):
        if entry not in SCALES:
            raise unknown("scale", entry, scale_names())
        return SCALES[entry]
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise BadSetting("scale", seen=entry, allowed="a name, or a mapping with name, layers, d_model and heads")
    name = entry["name"]
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key == "name":
            continue
        if key not in _SCALE_FIELDS and key not in _SCALE_FIELDS.values():
            raise BadSetting(f"scale {name}: {key}", seen=value, allowed=", ".join(["name", *_SCALE_FIELDS]))
        values[_SCALE_FIELDS.get(key, key)] = value
    for key in ("layers", "d_model", "heads"):
        if _SCALE_FIELDS[key] not in values:
            raise BadSetting(f"scale {name}", allowed=f"a mapping with {key}", hint=f"Add {key}: a whole number")
    return Scale(name=name, **_with_defaults(name, values))


def _with_defaults(name: str, values: dict[str, Any]) -> dict[str, Any]:
    d_model, heads = values["d_model"], values["num_heads"]
    whole = all(isinstance(number, int) and not isinstance(number, bool) and number > 0 for number in (d_model, heads))
    if whole and "head_dim" not in values and d_model % heads:
        raise BadSetting(
            f"scale {name}: heads", seen=heads, allowed=f"a divisor of d_model = {d_model}, or head_dim given besides"
        )
    defaults = {
        "num_kv_heads": heads,
        "head_dim": d_model // heads if whole else 1,
        "ffn_dim": 5 * d_model // 2 if whole else 1,
    }
    return {**defaults, **values}


def model_config(
    architecture: Architecture,
    scale: Scale,
    *,
    vocab_size: int,
    context: int,
    rope_base: float | None = None,
    rope_scaling: Mapping[str, Any] | None = None,
) -> ModelConfig:
    """The resolved model; settings that do not fit the scale or each other raise BadSetting."""
    return ModelConfig(
        layers=tuple(spec.to_dict() for spec in architecture.layers(scale)),
        d_model=scale.d_model,
        ffn_dim=scale.ffn_dim,
        num_heads=scale.num_heads,
        num_kv_heads=scale.num_kv_heads,
        head_dim=scale.head_dim,
        vocab_size=vocab_size,
        context=context,
        rope_base=default_rope_base(context) if rope_base is None else float(rope_base),
        rope_scaling=None if rope_scaling is None else dict(rope_scaling),
    )


def paper_vocab_size(scale: Scale) -> int:
    """Words of the tokenizer that goes with a scale where none is given."""
    return _VOCAB_SIZES.get(scale.name, PAPER_VOCAB_SIZE)


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """One layer: its mixer as a dict, and the parameters of mixer and FFN (the block's two norms left out)."""

    mixer: dict[str, Any]
    num_params: int


@dataclass(frozen=True, kw_only=True)
class Description:
    """Exact counts of one architecture at one scale.

    num_params_non_embedding: N's definition: layers and norms, without embedding, head and sink logits.
    flops_per_token: forward, at `context`, mean over the sequence; training costs three times this.
    state_bytes: what decoding keeps for one sequence of `context` tokens, all layers.
    """

    architecture: str
    scale: str
    vocab_size: int
    context: int
    layers: tuple[LayerCount, ...]
    num_params_non_embedding: int
    num_params_total: int
    num_params_full: int
    flops_per_token: float
    state_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**dataclasses.asdict(self), "layers": [dataclasses.asdict(layer) for layer in self.layers]}


def layer_num_params(spec: MixerSpec, scale: Scale) -> int:
    """Parameters of one layer's mixer and FFN, as the paper's tables count them (norms and sinks left out)."""
    return spec.num_params(scale) + 3 * scale.d_model * spec.ffn_dim(scale)


def num_params_non_embedding(specs: tuple[MixerSpec, ...], scale: Scale) -> int:
    """Layers, two norms each, and the final norm; no embedding, no head, no sink logits."""
    norms = (2 * scale.num_layers + 1) * scale.d_model
    return sum(layer_num_params(spec, scale) for spec in specs) + norms


def full_num_params(scale: Scale) -> int:
    """N: the non-embedding parameters of Full at this scale, which budgets and laws use for all architectures."""
    return num_params_non_embedding(resolve_architecture("full").layers(scale), scale)


def flops_per_token(
    config: ModelConfig, context: int | None = None, *, training: bool = True, full_ratio: float = 1.0
) -> float:
    """Forward FLOPs per token of a model at a context, head included; training is three times this."""
    return _flops_per_token(
        tuple(config.mixers()), config.scale, config.vocab_size, context or config.context, training, full_ratio
    )


def _flops_per_token(
    specs: tuple[MixerSpec, ...], scale: Scale, vocab_size: int, context: int, training: bool, full_ratio: float
) -> float:
    per_token = sum(2 * 3 * scale.d_model * spec.ffn_dim(scale) for spec in specs) + 2 * scale.d_model * vocab_size
    mixers = sum(spec.flops_per_sequence(scale, context, training=training, full_ratio=full_ratio) for spec in specs)
    return (per_token * context + mixers) / context


def describe(
    architecture: Architecture,
    scale: Scale,
    *,
    vocab_size: int | None = None,
    context: int,
    training: bool = True,
    full_ratio: float = 1.0,
    bytes_per_element: int = 2,
) -> Description:
    """Exact counts. vocab_size: the papers' by default. bytes_per_element: of cached keys and values."""
    vocab_size = paper_vocab_size(scale) if vocab_size is None else vocab_size
    specs = architecture.layers(scale)
    non_embedding = num_params_non_embedding(specs, scale)
    uncounted = sum(spec.num_params_uncounted(scale) for spec in specs)
    return Description(
        architecture=architecture.name,
        scale=scale.name,
        vocab_size=vocab_size,
        context=context,
        layers=tuple(LayerCount(mixer=spec.to_dict(), num_params=layer_num_params(spec, scale)) for spec in specs),
        num_params_non_embedding=non_embedding,
        num_params_total=non_embedding + uncounted + 2 * vocab_size * scale.d_model,
        num_params_full=full_num_params(scale),
        flops_per_token=_flops_per_token(specs, scale, vocab_size, context, training, full_ratio),
        state_bytes=sum(spec.state_bytes(scale, context, bytes_per_element=bytes_per_element) for spec in specs),
    )


__all__ = [
    "Architecture", "Description", "LayerCount", "architecture_names", "describe",
    "flops_per_token", "full_num_params", "mixer_class", "model_config", "resolve_architecture", "resolve_scale",
    "scale_names",
]  # fmt: skip
