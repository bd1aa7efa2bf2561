"""Cost of attention against the length, and a training step at S1 beside transformers' Llama, as Markdown.

`python tests/benchmarks/bench_attention.py [--lengths 1024 8192] [--step]`. CPU time of one thread, the best of a few
calls. The share of the peak divides the FLOPs of the visible keys (backward 2 × forward; masked scores that a kernel
computes besides do not count) by what one thread reaches on a 1024³ fp32 product, measured at the start.
"""

from __future__ import annotations

import argparse

import torch
from bench_recurrent import LENGTHS, peak_flops, seconds
from torch.nn import functional as F

from gridlaw.modules.catalog import flops_per_token, model_config, resolve_architecture
from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.mixers.base import visible_keys
from gridlaw.modules.models.decoder import DecoderLM
from gridlaw.modules.scale import SCALES
from gridlaw.modules.training.surroundings import keep_heap

HEADS, GROUPS, HEAD_DIM = 6, 2, 64  # S1
WINDOWS = (None, 128, 512, 2048)


def attention_row(length: int, window: int | None, peak: float, repeats: int) -> str:
    """One line: milliseconds forward, forward and backward, microseconds a token, share of the peak."""
    torch.manual_seed(0)
    q = torch.randn(1, length, HEADS, HEAD_DIM, requires_grad=True)
    k, v = (torch.randn(1, length, GROUPS, HEAD_DIM, requires_grad=True) for _ in range(2))
    sink = torch.zeros(HEADS, requires_grad=True)
    d_out = torch.randn(1, length, HEADS, HEAD_DIM)

    def forward() -> torch.Tensor:
        return attention(q, k, v, window=window, sink=sink)

    once = seconds(forward, repeats)
    both = seconds(lambda: torch.autograd.grad(forward(), (q, k, v, sink), d_out), repeats)
    flops = 3 * 4 * HEADS * HEAD_DIM * visible_keys(length, window)
    name = "full" if window is None else f"window of {window}"
    return (
        f"| {name} | {length} | {1e3 * once:.0f} | {1e3 * both:.0f} | {1e6 * both / length:.1f} "
        f"| {flops / both / peak:.0%} |"
    )


def step_rows(length: int, peak: float, repeats: int) -> list[str]:
    """A training step (forward and backward) of one window at S1, without the optimizer."""
    scale = SCALES["S1"]
    architecture = resolve_architecture({"name": "llama", "of": "full", "sink": False})
    rows = []
    for name, model, flops in (
        _ours("full", length), _ours("swa-128", length), _ours("gdn", length), _ours("lightning", length),
        _ours("mamba2", length), _llama(model_config(architecture, scale, vocab_size=4096, context=length)),
    ):  # fmt: skip
        tokens = torch.randint(0, 4096, (1, length + 1), generator=torch.Generator().manual_seed(0))

        def step(model: torch.nn.Module = model, tokens: torch.Tensor = tokens) -> None:
            out = model(tokens[:, :-1])
            logits = out if isinstance(out, torch.Tensor) else out.logits
            F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            model.zero_grad(set_to_none=True)

        spent = seconds(step, repeats)
        rows.append(f"| {name} | {length} | {1e3 * spent:.0f} | {length / spent:.0f} | {flops / spent / peak:.0%} |")
    return rows


def _ours(name: str, length: int) -> tuple[str, torch.nn.Module, float]:
    config = model_config(resolve_architecture(name), SCALES["S1"], vocab_size=4096, context=length)
    return name, DecoderLM(config).initialise(0), 3 * flops_per_token(config) * length


def _llama(config: object) -> tuple[str, torch.nn.Module, float]:
    from transformers import LlamaConfig, LlamaForCausalLM

    from gridlaw.modules.models.config import ModelConfig

    assert isinstance(config, ModelConfig)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.ffn_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            tie_word_embeddings=False,
        )
    )
    return "transformers' Llama", model, 3 * flops_per_token(config) * config.context


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step", action="store_true", help="the training step at S1, too")
    arguments = parser.parse_args()
    keep_heap()
    torch.set_num_threads(1)
    peak = peak_flops()
    print(f"One thread: {peak / 1e9:.0f} GFLOP/s on a 1024³ fp32 product\n")
    print("| attention at S1 | tokens | forward ms | with backward ms | µs a token | share of the peak |")
    print("|---|---|---|---|---|---|")
    for window in WINDOWS:
        for length in arguments.lengths:
            print(attention_row(length, window, peak, arguments.repeats), flush=True)
    if arguments.step:
        print("\n| training step at S1, vocabulary 4096 | tokens | ms | tokens a second | share of the peak |")
        print("|---|---|---|---|---|")
        print("\n".join(step_rows(2048, peak, arguments.repeats)))


if __name__ == "__main__":
    main()
