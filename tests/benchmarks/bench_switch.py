"""Switch beside Full: decoding from a cache, and a training step of one layer, as Markdown.

`python tests/benchmarks/bench_switch.py [--lengths 8192 16384 32768] [--batch 1] [--model FOLDER --data FOLDER]`.

Decoding is timed at the paper's head shape (16 query and 8 KV heads of 128, window 1024, fp32), attention alone (append
to the cache, choose, attend) and as a whole mixer with its projections and router. Several layers with caches of their
own take turns, so that a window is not read from the processor's cache. Gates are forced: which tokens, layers and rows
take full attention is drawn at each ratio; --model adds the ratio that a checkpoint has on held-out text of --data.
KV tokens read are counted from the shapes that reach the kernel and must equal the sum of s·t + (1 − s)·min(t, w).

Full and every ratio take turns token by token, so that whatever else the machine does falls on all of them; a repeat is
all steps, "faster" divides Full's time in a repeat by Switch's in the same one, and the median of the repeats is told,
by the clock and by CPU time of all threads. The last column compares the clock with the reads. Training takes turns in
the same way, a forward and backward pass of a whole layer at a time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from gridlaw.modules.kernels.attention import attention
from gridlaw.modules.mixers.full.spec import FullSpec
from gridlaw.modules.mixers.module_base import ForwardContext
from gridlaw.modules.mixers.softmax_module import FullCache
from gridlaw.modules.mixers.switch.module import FORCED_GATE
from gridlaw.modules.mixers.switch.spec import SwitchSpec
from gridlaw.modules.scale import SCALES, Scale
from work import AttentionReads

WINDOW = 1024
RATIOS = (1.0, 0.5, 0.2, 0.13, 0.05)
SCALE = SCALES["switch-1.5b"]
FULL = "full"


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


class Decoding:
    """One token at a time through layers with filled caches: Full, and Switch at forced ratios.

    times: by variant, (clock, CPU) seconds of each repeat. reads: KV tokens read in one repeat, rows in sum.
    """

    def __init__(self, length: int, ratios: list[float], *, batch: int, layers: int, steps: int, whole: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.length, self.layers, self.steps, self.batch, self.whole = length, layers, steps, batch, whole
        self.states = caches(layers, batch, length, steps)
        self.gates = {f"{ratio:g}": gates(ratio, steps, layers, batch) for ratio in ratios}
        self.full = FullSpec(rope=False, sink=False).build(SCALE, layer_index=0, num_layers=layers)
        self.switch = SwitchSpec(window=WINDOW, rope=False, sink=False).build(SCALE, layer_index=0, num_layers=layers)
        self.q = torch.randn(batch, 1, SCALE.num_heads, SCALE.head_dim, generator=generator)
        self.k = torch.randn(batch, 1, SCALE.num_kv_heads, SCALE.head_dim, generator=generator)
        self.x = torch.randn(batch, 1, SCALE.d_model, generator=generator)
        self.times: dict[str, list[tuple[float, float]]] = {name: [] for name in (FULL, *self.gates)}
        self.reads: dict[str, int] = {}

    def token(self, name: str, step: int) -> None:
        """One token through every layer."""
        for layer, state in enumerate(self.states):
            state.length = self.length + step
            chosen_B = None if name == FULL else self.gates[name][step, layer]
            if self.whole:
                options = {} if chosen_B is None else {FORCED_GATE: chosen_B[:, None]}
                mixer = self.full if chosen_B is None else self.switch
                mixer.extend(self.x, state, ForwardContext(position=state.length, options=options))
                continue
            keys, values = state.append(self.k, self.k)
            if chosen_B is None:
                attention(self.q, keys, values)
            else:
                self.switch._decode(self.q, keys, values, chosen_B)

    def repeat(self) -> None:
        """All steps of all variants, in turns token by token; the order of the turns rotates."""
        names = list(self.times)
        spent = dict.fromkeys(names, (0.0, 0.0))
        for step in range(self.steps):
            first = step % len(names)
            for name in names[first:] + names[:first]:
                clock, cpu = time.perf_counter(), time.process_time()
                self.token(name, step)
                old = spent[name]
                spent[name] = old[0] + time.perf_counter() - clock, old[1] + time.process_time() - cpu
        for name in names:
            self.times[name].append(spent[name])

    def count(self) -> None:
        """KV tokens that reach the kernel, held against the formula."""
        seen = torch.arange(self.length + 1, self.length + 1 + self.steps)[:, None, None]
        for name in self.times:
            with AttentionReads(num_heads=SCALE.num_heads) as reads:
                for step in range(self.steps):
                    self.token(name, step)
            everything = torch.ones(self.steps, self.layers, self.batch, dtype=torch.bool)
            wanted = int(torch.where(self.gates.get(name, everything), seen, seen.clamp(max=WINDOW)).sum())
            assert reads.pairs() == wanted, f"{reads.pairs()} KV tokens read, {wanted} expected"
            self.reads[name] = wanted

    def rows(self) -> list[str]:
        """Markdown, one line a variant."""
        found, per = [], self.steps * self.layers * self.batch
        for name, times in self.times.items():
            fewer = self.reads[FULL] / self.reads[name]
            clock, cpu = (
                statistics.median(full[kind] / own[kind] for full, own in zip(self.times[FULL], times, strict=True))
                for kind in (0, 1)
            )
            milliseconds = 1e3 * statistics.median(own[0] for own in times) / (self.steps * self.layers)
            found.append(
                f"| {name if name == FULL else f'ratio {name}'} | {self.length:,} | {milliseconds:.2f} "
                f"| {self.reads[name] / per:,.0f} | {fewer:.2f} | {clock:.2f} | {cpu:.2f} | {clock / fewer:.0%} |"
            )
        return found


def decode_tables(
    lengths: list[int], ratios: list[float], *, batch: int, layers: int, steps: int, repeats: int, wholes: list[bool]
) -> None:
    """One table for attention alone, one for whole mixers."""
    for whole in wholes:
        what = "whole mixer with its projections" if whole else "attention alone"
        print(f"\n| decoding, {what}, batch {batch} | tokens | ms a token and layer | KV tokens a token and layer "
              "| fewer reads | faster | faster by CPU time | share of the reads' gain |\n"
              "|---|---|---|---|---|---|---|---|")  # fmt: skip
        for length in lengths:
            decoding = Decoding(length, ratios, batch=batch, layers=layers, steps=steps, whole=whole)
            with torch.inference_mode():
                decoding.count()  # warms up, too
                for _ in range(repeats):
                    decoding.repeat()
            print("\n".join(decoding.rows()), flush=True)


def trained_ratio(model: Path, data: Path, tokens: int) -> float:
    """Mean share of full attention of a checkpoint on held-out text, by the evaluation ``routing``."""
    from gridlaw.pipelines.evaluations.run import evaluate

    with tempfile.TemporaryDirectory() as work:
        found = evaluate(
            "routing", {"tokens": tokens}, model_folder=model, prepared_folder=data, work_folder=Path(work)
        )
    shares = ", ".join(f"{share:.3f}" for share in found["details"]["by_layer"])
    print(f"{model}: share of full attention {found['metrics']['full_ratio']:.4f}, by layer {shares}")
    return float(found["metrics"]["full_ratio"])


def training_table(scale: Scale, length: int, window: int, repeats: int) -> None:
    """A whole layer (mixer and feed-forward) of one window of tokens, Switch beside Full."""
    from gridlaw.modules.models.decoder import Block

    blocks = {}
    for name, spec in ((FULL, FullSpec(rope=False)), ("switch", SwitchSpec(window=window, rope=False))):
        torch.manual_seed(0)
        blocks[name] = Block(spec.resolved(scale), scale, layer_index=0, norm_eps=1e-5)
    x = torch.randn(1, length, scale.d_model, requires_grad=True)
    nll = torch.rand(1, length)

    def step(name: str) -> list[tuple[float, float]]:
        """(clock, CPU) seconds of the forward and of the backward pass."""
        block, ctx, marks = blocks[name], ForwardContext(), [(time.perf_counter(), time.process_time())]
        out = block(x, ctx)
        extra = block.mixer.auxiliary_loss(ctx.outputs[0], nll) if ctx.outputs else None
        marks.append((time.perf_counter(), time.process_time()))
        (out.square().mean() + (0 if extra is None else extra.mean())).backward()
        marks.append((time.perf_counter(), time.process_time()))
        return [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(marks)]

    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in blocks}
    for repeat in range(repeats + 1):
        for name in blocks if repeat % 2 else reversed(blocks):
            spent = step(name)
            if repeat:  # the first one warms up
                found[name].append(spent)
    print(f"\n| training, one layer of {scale.name}, {length:,} tokens, window {window:,}, {repeats} repeats "
          "| forward ms | backward ms | forward CPU ms | backward CPU ms |\n|---|---|---|---|---|")  # fmt: skip
    places = [(half, kind) for kind in (0, 1) for half in (0, 1)]
    for name, all_spent in found.items():
        middle = [1e3 * statistics.median(spent[half][kind] for spent in all_spent) for half, kind in places]
        print(f"| {name} | " + " | ".join(f"{value:,.0f}" for value in middle) + " |")
    overhead = [
        statistics.median(
            own[half][kind] / full[half][kind] - 1 for full, own in zip(found[FULL], found["switch"], strict=True)
        )
        for half, kind in places
    ]
    print("| overhead | " + " | ".join(f"{value:+.1%}" for value in overhead) + " |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[8192, 16384, 32768], help="none: no decoding")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ratio", type=float, nargs="*", default=[], help="further ratios")
    parser.add_argument("--only", choices=("attention", "mixer"), help="one of the two decoding tables")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint whose ratio is measured and timed, too")
    parser.add_argument("--data", type=Path, help="prepared data for --model")
    parser.add_argument("--tokens", type=int, default=16384, help="held-out tokens for --model")
    parser.add_argument("--train-scale", default="S2")
    parser.add_argument("--train-lengths", type=int, nargs="*", default=[4096], help="none: no training")
    arguments = parser.parse_args()
    if (arguments.model is None) != (arguments.data is None):
        parser.error("--model and --data go together")
    torch.set_num_threads(arguments.threads)
    more = [*arguments.ratio]
    if arguments.model is not None:
        more.append(round(trained_ratio(arguments.model, arguments.data, arguments.tokens), 4))
    wholes = {None: [False, True], "attention": [False], "mixer": [True]}[arguments.only]
    decode_tables(
        arguments.lengths, list(dict.fromkeys([*RATIOS, *more])), batch=arguments.batch, layers=arguments.layers,
        steps=arguments.steps, repeats=arguments.repeats, wholes=wholes,
    )  # fmt: skip
    for length in arguments.train_lengths:  # the paper's window is a 32nd of its 32K context
        training_table(SCALES[arguments.train_scale], length, max(1, length // 32), arguments.repeats)


if __name__ == "__main__":
    main()
