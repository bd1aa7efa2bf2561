"""What a fit is worth, in plain words: which exponents the points identify, and what else a reader must know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridlaw.pipelines.laws.fit import LawFit

# width of the interval as a share of the exponent: up to the first it is identified, beyond the second it is not
IDENTIFIED_WIDTH = 0.6
BARELY_WIDTH = 2.0


def exponent_verdict(value: float, interval: tuple[float, float] | None) -> str:
    """``identified``, ``barely identified``, ``not identified`` or ``unknown`` (no interval)."""
    if interval is None:
        return "unknown"
    low, high = interval
    if value <= 0 or low <= 1e-3 * value:
        return "not identified"
    width = (high - low) / value
    if width <= IDENTIFIED_WIDTH:
        return "identified"
    return "barely identified" if width <= BARELY_WIDTH else "not identified"


def plain_verdict(law: LawFit) -> tuple[str, bool]:
    """Sentences for people, and whether every exponent is identified."""
    form_exponents = [name for name in ("alpha", "beta") if name in law.parameters]
    states = {name: exponent_verdict(law.parameters[name], law.intervals.get(name)) for name in form_exponents}
    sentences = []
    for name, state in states.items():
        value = law.parameters[name]
        if state == "unknown":
            sentences.append(f"{name} {value:.3g}, without an interval.")
            continue
        low, high = law.intervals[name]
        span = f"{name} {value:.3g} ({law.level:.0%} interval {low:.3g} to {high:.3g})"
        sentences.append(f"{span} is {state} by these points.")
    if not law.converged:
        sentences.insert(0, "The fit did not converge: do not use it.")
    elif law.agreeing_starts < 2:
        sentences.append(f"Only one of {law.num_starts} starts reached this optimum.")
    if law.at_bounds:
        sentences.append(f"At a bound: {'; '.join(law.at_bounds)}. The data ask for more than the bound allows.")
    spare = law.num_points - len(law.parameters)
    if spare <= 0:
        sentences.append(
            f"{law.num_points} points for {len(law.parameters)} parameters: the law fits them whatever the truth."
        )
    if law.intervals and law.num_degenerate:
        sentences.append(f"{law.num_degenerate} of {law.num_resamples} resamples were degenerate and left out.")
    elif law.num_resamples and not law.intervals and spare > 0:
        sentences.append(f"No interval: {law.num_degenerate} of {law.num_resamples} resamples were degenerate.")
    if any(state == "not identified" for state in states.values()):
        sentences.append("Use predictions within the measured range, with their interval, rather than the exponents.")
    identified = law.converged and all(state == "identified" for state in states.values())
    return " ".join(sentences), identified
