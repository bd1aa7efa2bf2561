"""``gridlaw describe``: exact counts of an architecture at a scale, from formulas, without torch."""

from __future__ import annotations

import itertools
import json
from typing import Any

import click

from gridlaw.modules import catalog
from gridlaw.platform.errors import BadInput


@click.command()
@click.argument("architecture")
@click.option("--scale", required=True, help=f"One of {', '.join(catalog.scale_names())}.")
@click.option(
    "--context", default=16_384, show_default=True, type=click.IntRange(min=1), help="Tokens of one sequence."
)
@click.option("--vocab-size", default=None, type=click.IntRange(min=1), help="Words; the papers' by default.")
@click.option("--kernels", is_flag=True, help="Also say which kernels this machine would use (loads torch).")
@click.option("--device", default=None, help="With --kernels: cpu or cuda; what is there when left out.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(
    architecture: str,
    scale: str,
    context: int,
    vocab_size: int | None,
    kernels: bool,
    device: str | None,
    as_json: bool,
) -> None:
    """Show layers, parameters, FLOPs per token and decoding state of ARCHITECTURE at a scale."""
    description = catalog.describe(
        catalog.resolve_architecture(architecture), catalog.resolve_scale(scale), vocab_size=vocab_size, context=context
    )
    chosen = _kernels(device) if kernels else []
    if as_json:
        click.echo(json.dumps(description.to_dict() | ({"kernels": chosen} if kernels else {})))
        return
    _print(description)
    for row in chosen:
        over = "; ".join(f"{name}: {reason}" for name, reason in row["passed_over"].items())
        click.echo(
            f"kernel of {row['operation']} on {row['device']}: {row['kernel']}{f' (not {over})' if over else ''}"
        )


def _kernels(device: str | None) -> list[dict[str, Any]]:
    """What each operation runs on, and why the kernels before it were passed over."""
    import torch

    from gridlaw.modules.kernels.dispatch import choices

    if device not in (None, "cpu", "cuda"):
        raise BadInput("--device", seen=device, allowed="cpu or cuda")
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return [
        {
            "operation": choice.operation,
            "device": name,
            "kernel": choice.kernel,
            "passed_over": dict(choice.passed_over),
        }
        for choice in choices(name)
    ]


def _print(description: catalog.Description) -> None:
    from rich.table import Table

    from gridlaw.pipelines.terminal import results_console

    table = Table(title=f"{description.architecture} at {description.scale}", title_justify="left")
    table.add_column("layers")
    table.add_column("mixer")
    table.add_column("parameters per layer", justify="right")
    for numbers, layer in _runs(description.layers):
        settings = {key: value for key, value in layer.mixer.items() if key != "mixer" and value is not None}
        mixer = layer.mixer["mixer"] + "".join(f" {key}={value}" for key, value in settings.items())
        table.add_row(numbers, mixer, f"{layer.num_params:,}")
    console = results_console()
    console.print(table)
    forward = description.flops_per_token
    rows = [
        ("N, non-embedding parameters", f"{description.num_params_non_embedding:,}"),
        ("N of Full at this scale (laws and budgets)", f"{description.num_params_full:,}"),
        (f"parameters in total, {description.vocab_size:,} words", f"{description.num_params_total:,}"),
        (f"FLOPs per token forward, context {description.context:,}", f"{forward:,.0f}"),
        ("FLOPs per token training (3 × forward)", f"{3 * forward:,.0f}"),
        (f"decoding state at {description.context:,} tokens", f"{description.state_bytes:,} bytes"),
    ]
    for name, value in rows:
        console.print(f"{name:<50}{value:>22}")


def _runs(layers: tuple[catalog.LayerCount, ...]) -> list[tuple[str, catalog.LayerCount]]:
    """Layers that are alike in one row: "0, 2, 4, 6" and so on, in the order of their first layer."""
    groups: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        groups.setdefault(json.dumps(layer.mixer, sort_keys=True), []).append(index)
    return [(_numbers(indices), layers[indices[0]]) for indices in groups.values()]


def _numbers(indices: list[int]) -> str:
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    if len(indices) > 2 and all(b - a == step for a, b in itertools.pairwise(indices)):
        return f"{indices[0]}–{indices[-1]}" + (f" by {step}" if step > 1 else "")
    return ", ".join(map(str, indices))
