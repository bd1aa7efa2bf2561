"""Full without sinks is transformers' Llama: same weights, same logits, same gradients."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny
from gridlaw.modules.catalog import model_config, resolve_architecture
from gridlaw.modules.models.config import YARN_DEFAULTS
from gridlaw.modules.models.decoder import DecoderLM

NAMES = {  # ours: theirs
    "embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head",
    "mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn": "mlp", "mixer": "self_attn",
}  # fmt: skip


def llama_name(ours: str) -> str:
    parts = ours.split(".")
    if parts[0] == "layers":
        return ".".join(["model", *parts[:2], NAMES[parts[2]], *parts[3:]])
    return ".".join([NAMES[parts[0]], *parts[1:]])


def pair(rope_scaling: dict[str, object] | None) -> tuple[DecoderLM, LlamaForCausalLM]:
    architecture = resolve_architecture({"name": "llama", "of": "full", "sink": False})
    config = model_config(
        architecture, tiny.tiny_scale(3), vocab_size=tiny.VOCAB_SIZE, context=64, rope_scaling=rope_scaling
    )
    ours = tiny.lively(DecoderLM(config).initialise(0))
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": config.rope_base}
    if rope_scaling is not None:
        rope = {
            "rope_type": "yarn",
            "rope_theta": config.rope_base,
            "factor": rope_scaling["factor"],
            "original_max_position_embeddings": rope_scaling["original_context"],
            **{key: value for key, value in rope_scaling.items() if key in YARN_DEFAULTS},
        }
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.ffn_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.norm_eps,
            max_position_embeddings=config.context,
            rope_parameters=rope,
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    )
    theirs.load_state_dict({llama_name(name): tensor for name, tensor in ours.state_dict().items()}, strict=True)
    return ours, theirs.eval()


YARN = {"type": "yarn", "factor": 4.0, "original_context": 16}


@pytest.mark.parametrize(
    "scaling",
    [None, YARN, YARN | {"beta_fast": 3.0, "beta_slow": 0.5}, YARN | {"attention_factor": 1.3}],
    ids=["rope", "yarn", "yarn, other turns", "yarn, attention factor"],
)
def test_full_is_llama(scaling: dict[str, object] | None) -> None:
    ours, theirs = pair(scaling)
    tokens = tiny.random_tokens(2, 50)
    mine, llama = ours(tokens), theirs(tokens).logits
    assert torch.allclose(mine, llama, atol=1e-4)
    mine.square().mean().backward()
    llama.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradients[llama_name(name)], rtol=1e-3, atol=1e-5), name


@torch.no_grad()
def test_decoding_is_llama() -> None:
    ours, theirs = pair(None)
    tokens = tiny.random_tokens(1, 20)
    expected = tokens
    for _ in range(10):
        expected = torch.cat([expected, theirs(expected).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(ours.generate_greedy(tokens, 10), expected[:, 20:])
