"""Peak memory and time of the chunked cross-entropy against torch's, forward and backward, each in its own process.

    python tests/benchmarks/bench_cross_entropy.py [--tokens 16384] [--vocabulary 73448] [--width 384]

The plain loss keeps logits and their gradient in fp32: 2 · 4 bytes · tokens · vocabulary beside its inputs, and more
while they are made. The chunked one keeps a chunk of them, and the gradients of its inputs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

from gridlaw.modules.training.cross_entropy import PLAIN_UP_TO_LOGITS, chunked_cross_entropy


def measure(kind: str, tokens: int, vocabulary: int, width: int) -> None:
    """Print, as JSON, seconds and the growth of this process's peak memory in bytes."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, tokens, width, generator=generator, requires_grad=True)
    head = (torch.randn(vocabulary, width, generator=generator) * 0.02).requires_grad_()
    targets = torch.randint(vocabulary, (1, tokens), generator=generator)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if kind == "chunked":
        loss = chunked_cross_entropy(hidden, head, targets, chunk_tokens=max(1, PLAIN_UP_TO_LOGITS // vocabulary))[0]
    else:
        loss = F.cross_entropy(F.linear(hidden, head).flatten(0, 1), targets.flatten())
    loss.backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": time.process_time() - started, "bytes": peak * 1024, "loss": loss.item()}))


def main() -> None:
    """Run both kinds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--vocabulary", type=int, default=73_448)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--kind", choices=("plain", "chunked"))
    given = parser.parse_args()
    if given.kind:
        measure(given.kind, given.tokens, given.vocabulary, given.width)
        return
    for kind in ("chunked", "plain"):
        command = [sys.executable, __file__, "--kind", kind, "--tokens", str(given.tokens)]
        command += ["--vocabulary", str(given.vocabulary), "--width", str(given.width)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{kind}: ended with {done.returncode}, {done.stderr.strip().splitlines()[-1:]}")
            continue
        seen = json.loads(done.stdout)
        print(f"{kind}: {seen['bytes'] / 2**30:.2f} GiB more, {seen['seconds']:.1f} CPU s, loss {seen['loss']:.6f}")


if __name__ == "__main__":
    main()
