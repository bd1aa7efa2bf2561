"""What a model costs: FLOPs and keys read by position from the mixers' formulas, cache bytes and speed as measured.

FLOPs are PAPERS.md A.4b's, at inference (``training=False``). Keys read: cached tokens that a decoding step at a
position looks at, per layer; 0 for recurrent mixers. Formulas assume the full ratio 1 for mixers that choose; what
such a model really reads while decoding is counted from the shapes that reach its attention kernels, as a mean over the
decoded tokens. Speed depends on the machine and on what else runs there: compare within one report only.
"""

from __future__ import annotations

import platform
import statistics
import time
from typing import Any

from gridlaw.modules.mixers.softmax_spec import SoftmaxSpec, attention_flops
from gridlaw.modules.mixers.switch.spec import SwitchSpec
from gridlaw.modules.models.config import ModelConfig
from gridlaw.pipelines.evaluations.run import EvaluationRun


def step_flops(config: ModelConfig, position: int) -> float:
    """FLOPs of the forward pass of the one token at ``position`` (1 is the first), head included."""
    scale = config.scale
    total = 2.0 * config.d_model * config.vocab_size
    for spec in config.mixers():
        total += mixer_step_flops(config, spec, position)
        total += 2 * 3 * config.d_model * spec.ffn_dim(scale)
    return total


def mixer_step_flops(config: ModelConfig, spec: Any, position: int) -> float:
    """The mixer's share: what a sequence costs more than one that is a token shorter."""
    shorter = spec.flops_per_sequence(config.scale, position - 1, training=False) if position > 1 else 0
    return float(spec.flops_per_sequence(config.scale, position, training=False) - shorter)


def keys_read(config: ModelConfig, spec: Any, position: int) -> float:
    """Keys that a query at ``position`` attends to, averaged over the layer's heads; 0 for recurrent mixers."""
    if not isinstance(spec, SoftmaxSpec):
        return 0.0
    scale = config.scale
    weights = 2 * spec.num_projection_weights(scale)
    per_key = attention_flops(scale.num_heads, scale.head_dim, 1)
    return (mixer_step_flops(config, spec, position) - weights) / per_key


def positions_up_to(length: int) -> list[int]:
    """1, 2, 4, … and ``length``."""
    positions = [1]
    while positions[-1] * 2 < length:
        positions.append(positions[-1] * 2)
    return [*positions, length] if length > 1 else positions


def compute(run: EvaluationRun) -> dict[str, Any]:
    """Formulas at positions up to the length, and a measured prefill and decoding of one sequence."""
    settings = run.settings
    settings.check_context(run.model_context)
    config = ModelConfig.from_dict(run.model_config)
    length = settings.length or run.context
    measured = run.parts.get("measured", lambda: _measure(run, length))
    specs = config.mixers()
    positions = positions_up_to(length)
    chooses = any(isinstance(spec, SwitchSpec) for spec in specs)
    counted = run.parts.get("keys-read", lambda: _count_keys_read(run, length)) if chooses else None
    by_layer = [keys_read(config, spec, length) for spec in specs] if counted is None else counted
    metrics = {
        "prefill_flops": sum(step_flops(config, position) for position in range(1, length + 1)),
        "decode_flops": step_flops(config, length),
        "decode_keys_read": float(sum(by_layer)),
        "state_bytes": float(sum(spec.state_bytes(config.scale, length, bytes_per_element=4) for spec in specs)),
        **{name: float(value) for name, value in measured.items() if name != "machine"},
    }
    details = {
        "length": length,
        "positions": positions,
        "flops_by_position": [step_flops(config, position) for position in positions],
        "decode_keys_read_by_layer": by_layer,
        "decode_keys_read_from": "formulas" if counted is None else "shapes at the kernel",
        "keys_read_by_layer": [[keys_read(config, spec, position) for position in positions] for spec in specs],
        "state_bytes_by_layer": [spec.state_bytes(config.scale, length, bytes_per_element=4) for spec in specs],
        "machine": measured["machine"],
    }
    run.report(1, 1)
    return {"metrics": metrics, "details": details, "num_samples": settings.repeats}


def _prompt(run: EvaluationRun, length: int) -> Any:
    """The first training window, repeated to ``length`` tokens: int64 [1, length]."""
    import torch

    tokens = torch.from_numpy(run.prepared.train_windows(_first())[0].astype("int64"))
    return tokens.repeat(-(-length // len(tokens)))[:length][None]


def _count_keys_read(run: EvaluationRun, length: int) -> list[float]:
    """Keys read per decoded token, by layer, averaged over the layer's heads; as the kernels were called."""
    import torch

    from gridlaw.modules.kernels.reads import record_reads
    from gridlaw.pipelines.evaluations.scoring import device_of

    model, new_tokens = run.load(), run.settings.new_tokens
    num_heads = model.config.scale.num_heads
    found = [0] * len(model.blocks())
    with torch.inference_mode():
        cache = model.init_cache(1, length + new_tokens)
        hidden = model.extend_hidden(_prompt(run, length).to(device_of(model)), cache)
        for _ in range(new_tokens):
            token = model.head(hidden[:, -1:]).argmax(dim=-1)
            ctx = model.context_for(token, position=cache.length)
            x_BTD = model.embedding(token)
            for index, (layer, state) in enumerate(zip(model.blocks(), cache.states, strict=True)):
                with record_reads() as reads:
                    x_BTD = layer.extend(x_BTD, state, ctx)
                found[index] += sum(each.head_keys for each in reads)
            cache.length += 1
            hidden = model.final_norm(x_BTD)
    return [count / num_heads / new_tokens for count in found]


def _measure(run: EvaluationRun, length: int) -> dict[str, Any]:
    import torch

    from gridlaw.pipelines.evaluations.scoring import device_of

    model, settings = run.load(), run.settings
    device = device_of(model)
    prompt = _prompt(run, length).to(device)
    prefill_seconds, decode_seconds, cache_bytes = [], [], 0
    with torch.inference_mode():
        for _ in range(settings.repeats):
            cache = model.init_cache(1, length + settings.new_tokens)
            started = _now(device)
            hidden = model.extend_hidden(prompt, cache)
            prefill_seconds.append(_now(device) - started)
            started = _now(device)
            for _ in range(settings.new_tokens):
                token = model.head(hidden[:, -1:]).argmax(dim=-1)
                hidden = model.extend_hidden(token, cache)
            decode_seconds.append(_now(device) - started)
            cache_bytes = cache.num_bytes()
    return {
        "prefill_tokens_per_second": length / statistics.median(prefill_seconds),
        "decode_tokens_per_second": settings.new_tokens / statistics.median(decode_seconds),
        "cache_bytes": cache_bytes,
        "machine": f"{platform.machine()}, {device.type}, {torch.get_num_threads()} thread(s)",
    }


def _first() -> Any:
    import numpy as np

    return np.array([0])


def _now(device: Any) -> float:
    """Seconds, after the device has done what it was given."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()
