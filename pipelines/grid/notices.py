"""What a person should know before a run, though nothing is refused for it: told by ``plan`` and by ``run``.

Code of another version, or another interpreter, never makes a finished point drift; checkpoints that are gone from the
store cost training again. Both are said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gridlaw.pipelines.grid.state import PYTHON, GridState
from gridlaw.pipelines.plan import GridPlan
from gridlaw.platform.ledger.version import CodeVersion, code_version

_WORDS = {
    "points": ("finished point was made", "finished points were made"),
    "trunks": ("trunk to be continued was begun", "trunks to be continued were begun"),
}


def notices(plan: GridPlan, state: GridState) -> list[str]:
    """Sentences for people."""
    return [*version_notices(plan, state), *lost_checkpoints(plan, state)]


def version_notices(plan: GridPlan, state: GridState) -> list[str]:
    """Finished points, and trunks that would be continued, that another version of the code or of Python made."""
    here = _maker(code_version(), PYTHON)
    made: Counter[tuple[str, str]] = Counter()
    for standing in state.points.values():
        if standing.status == "done" and standing.run is not None:
            made["points", _maker_of(standing.run.tags)] += 1
    for trunk in plan.trunks:
        standing = state.trunks[trunk.name]
        if standing.step and standing.run is not None and _undone(state, [point.name for point in trunk.points]):
            made["trunks", _maker_of(standing.run.tags)] += 1
    return [
        f"{count} {_WORDS[what][count > 1]} by {maker}; this is {here}"
        for (what, maker), count in made.items()
        if maker != here
    ]


def lost_checkpoints(plan: GridPlan, state: GridState) -> list[str]:
    """Trunks that were trained further than their newest checkpoint in the store, and are needed again."""
    told = []
    for trunk in plan.trunks:
        standing = state.trunks[trunk.name]
        steps = int(standing.run.number("steps") or 0) if standing.run is not None else 0
        if standing.step < steps and _undone(state, [point.name for point in trunk.points]):
            told.append(
                f"trunk {trunk.name} was trained to step {steps:,}, and the store has its checkpoints only to step "
                f"{standing.step:,}: what is missing is trained again"
            )
    return told


def _undone(state: GridState, points: list[str]) -> bool:
    return any(state.points[name].status != "done" for name in points)


def _maker_of(tags: Mapping[str, str]) -> str:
    return _maker(CodeVersion.of_tags(tags), tags.get("python", PYTHON))


def _maker(code: CodeVersion, python: str) -> str:
    return f"gridlaw {code} on Python {python}"
