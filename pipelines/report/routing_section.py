"""The report's section about models that choose their attention: where they take the full one."""

from __future__ import annotations

from gridlaw.pipelines.figures import routing
from gridlaw.pipelines.report.data import ReportData
from gridlaw.pipelines.report.markup import Figures, Html, joined, legend, panels_box, tag

MOST_POINTS = 8
"""Points that are drawn: lines of more could not be told apart."""
TITLE = "Where attention is full"
ABOUT = (
    "Share of tokens (of KV heads where heads are chosen) with full attention, on held-out text; the others see their "
    "window. Over training it is that of the training batches."
)
ABOUT_NEEDLES = (
    "While a needle is answered, mean over layers. Below the line the needle is inside the answering token's window."
)


def routing_section(data: ReportData, figures: Figures) -> Html:
    """Shares of full attention; left out where no layer of a finished point chooses (or nothing was asked)."""
    kept = {point.name: point.routing for point in data.points if point.status == "done" and point.routing}
    if not kept:
        return Html("")
    last = dict(list(kept.items())[-MOST_POINTS:])
    names = short_names(list(last))
    models = routing.Routed.of({names[name]: details for name, details in last.items()})
    panels = [
        panel
        for panel in (
            routing.layer_panel(models),
            routing.training_panel(models),
            routing.loss_panel(models),
            routing.position_panel(models),
        )
        if panel is not None
    ]
    parts: list[object] = [
        tag("h2", TITLE, id="routing"),
        tag("p", ABOUT),
        legend("Point", "routing", [(model.key, model.colour, model.symbol) for model in models]),
        panels_box([figures.figure(panel, "routing") for panel in panels]),
    ]  # fmt: skip
    if len(kept) > len(last):
        parts.append(
            tag("p", f"The last {len(last)} of {len(kept)} points; the others are in the ledger.", class_="note")
        )
    maps = routing.needle_panels(models)
    if maps:
        parts += [tag("h3", "By depth and length of a needle"), tag("p", ABOUT_NEEDLES)]
        parts.append(panels_box([figures.figure(panel, "routing-needles") for panel in maps]))
    return joined(parts, "\n")


def short_names(names: list[str]) -> dict[str, str]:
    """Names without the parts that are the same in all of them; the architecture always stays."""
    split = {name: name.split("/") for name in names}
    lengths = {len(parts) for parts in split.values()}
    if len(names) == 1 or len(lengths) != 1:
        return {name: name for name in names}
    size = lengths.pop()
    architecture = size - 4  # [STAGE/]ARCHITECTURE/SCALE/BUDGET/SEED
    differ = [at for at in range(size) if at == architecture or len({parts[at] for parts in split.values()}) > 1]
    return {name: "/".join(parts[at] for at in differ) for name, parts in split.items()}
