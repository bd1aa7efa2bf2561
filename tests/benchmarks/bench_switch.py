"""Switch beside Full: decoding from a cache, prefill, and a training step, as Markdown.

`python tests/benchmarks/bench_switch.py [--lengths 4096 32768] [--batch 1] [--threads 2] [--train-length 2048]`.

Decoding is timed at the paper's head shape (16 query and 8 KV heads of 128, window 1024, fp32), attention alone
(append to the cache, choose, attend) and as a whole mixer with its projections and router. Several layers with caches
of their own take turns, so that a window is not read from the processor's cache. Gates are forced: which tokens, layers
and rows take full attention is drawn at each ratio. KV tokens read are counted from the shapes that reach the kernel
and must equal the sum of s·t + (1 − s)·min(t, w). CPU time of all threads, the mean over steps, so that other processes
disturb little; "faster" divides Full's time by Switch's, and the last column compares that with the reads.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from gridlaw.modules.mixers.full.spec import FullSpec
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.mixers.softmax_module import FullCache
from gridlaw.modules.mixers.switch.module import FORCED_GATE, SwitchAttention
from gridlaw.modules.mixers.switch.spec import SwitchSpec
from gridlaw.modules.scale import SCALES, Scale
from work import AttentionReads

WINDOW = 1024
RATIOS = (1.0, 0.5, 0.2, 0.13, 0.05)
SCALE = SCALES["switch-1.5b"]


def caches(layers: int, batch: int, length: int, steps: int) -> list[FullCache]:
    """Filled caches of `length` tokens with room for the steps."""
    made = []
    for _ in range(layers):
        cache = FullCache(batch, length + steps, SCALE.num_kv_heads, SCALE.head_dim, device="cpu", dtype=torch.float32)
        cache.k.normal_()
        cache.v.normal_()
        cache.length = length
        made.append(cache)
    return made


def gates(ratio: float, steps: int, layers: int, batch: int) -> Tensor:
    """Forced choices, [steps, layers, B], as many full ones as the ratio says."""
    count = steps * layers * batch
    chosen = torch.zeros(count, dtype=torch.bool)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    chosen[order[: round(ratio * count)]] = True
    return chosen.view(steps, layers, batch)


def attention_step(mixer: SwitchAttention, cache: FullCache, q: Tensor, k: Tensor, chosen_B: Tensor) -> None:
    """What one layer's attention does for one token: write, choose, read."""
    keys, values = cache.append(k, k)
    mixer._decode(q, keys, values, chosen_B)


def decode(length: int, ratio: float, *, batch: int, layers: int, steps: int, whole: bool) -> tuple[float, int, int]:
    """(CPU seconds per token and layer, KV tokens read, KV tokens that should be read), row by row in sum."""
    mixer = SwitchSpec(window=WINDOW, rope=False, sink=False).build(SCALE, layer_index=0, num_layers=layers)
    states, chosen = caches(layers, batch, length, steps), gates(ratio, steps, layers, batch)
    q = torch.randn(batch, 1, SCALE.num_heads, SCALE.head_dim)
    k = torch.randn(batch, 1, SCALE.num_kv_heads, SCALE.head_dim)
    x = torch.randn(batch, 1, SCALE.d_model)

    def run(step: int) -> None:
        for layer, state in enumerate(states):
            if whole:
                options = {FORCED_GATE: chosen[step, layer][:, None]}
                mixer.extend(x, state, ForwardContext(position=length + step, options=options))
            else:
                attention_step(mixer, state, q, k, chosen[step, layer])

    with torch.inference_mode():
        run(0)
        for state in states:
            state.length = length
        started = time.process_time()
        for step in range(steps):
            run(step)
        seconds = (time.process_time() - started) / (steps * layers)
        for state in states:
            state.length = length
        with AttentionReads(num_heads=SCALE.num_heads) as reads:
            for step in range(steps):
                run(step)
    seen = torch.arange(length + 1, length + 1 + steps)[:, None, None]
    wanted = int(torch.where(chosen, seen, seen.clamp(max=WINDOW)).sum())
    return seconds, reads.pairs(), wanted


def decode_tables(lengths: list[int], *, batch: int, layers: int, steps: int, extra: list[float]) -> None:
    """One table for attention alone, one for whole mixers."""
    for whole in (False, True):
        what = "whole mixer with its projections" if whole else "attention alone"
        print(f"\n| decoding, {what}, batch {batch} | tokens | ms a token and layer | KV tokens a token and layer "
              "| fewer reads | faster | share of the reads' gain |\n|---|---|---|---|---|---|---|")  # fmt: skip
        for length in lengths:
            full: tuple[float, int] | None = None
            for ratio in dict.fromkeys([*RATIOS, *extra]):
                seconds, read, wanted = decode(length, ratio, batch=batch, layers=layers, steps=steps, whole=whole)
                assert read == wanted, f"{read} KV tokens read, {wanted} expected"
                full = full or (seconds, read)
                fewer, faster = full[1] / read, full[0] / seconds
                print(f"| ratio {ratio:g} | {length} | {1e3 * seconds:.2f} | {read / (steps * layers * batch):,.0f} "
                      f"| {fewer:.2f} | {faster:.2f} | {faster / fewer:.0%} |", flush=True)  # fmt: skip


def training_table(scale: Scale, length: int, window: int, repeats: int) -> None:
    """A whole layer (mixer and feed-forward) of one window of tokens, Switch beside Full."""
    from gridlaw.modules.models.decoder import Block

    print(f"\n| training, one layer of {scale.name}, {length} tokens, window {window} | forward ms | backward ms |")
    print("|---|---|---|")
    rows = {}
    for name, spec in (("full", FullSpec(rope=False)), ("switch", SwitchSpec(window=window, rope=False))):
        torch.manual_seed(0)
        block = Block(spec.resolved(scale), scale, layer_index=0, norm_eps=1e-5)
        x = torch.randn(1, length, scale.d_model, requires_grad=True)
        nll = torch.rand(1, length)
        best = [1e9, 1e9]
        for _ in range(repeats):
            ctx = ForwardContext()
            started = time.process_time()
            out = block(x, ctx)
            extra = block.mixer.auxiliary_loss(ctx.outputs[0], nll) if ctx.outputs else None
            middle = time.process_time()
            (out.square().mean() + (0 if extra is None else extra.mean())).backward()
            best = [min(best[0], middle - started), min(best[1], time.process_time() - middle)]
        rows[name] = best
        print(f"| {name} | {1e3 * best[0]:.0f} | {1e3 * best[1]:.0f} |", flush=True)
    overhead = [rows["switch"][i] / rows["full"][i] - 1 for i in (0, 1)]
    print(f"| overhead | {overhead[0]:+.1%} | {overhead[1]:+.1%} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ratio", type=float, nargs="*", default=[], help="further ratios, such as a trained one")
    parser.add_argument("--train-scale", default="S2")
    parser.add_argument("--train-length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-training", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    decode_tables(
        arguments.lengths, batch=arguments.batch, layers=arguments.layers, steps=arguments.steps, extra=arguments.ratio
    )
    if not arguments.no_training:
        # The paper's window is a 32nd of its 32K context.
        length = arguments.train_length
        training_table(SCALES[arguments.train_scale], length, max(1, length // 32), arguments.repeats)


if __name__ == "__main__":
    main()
