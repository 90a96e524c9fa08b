"""What esprof says about a recorded job: the only module here that knows esprof."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import esprof
from esprof.analyzers import diagnose
from esprof.analyzers.finding import Finding
from esprof.core.step_words import Unit
from esprof.replay.replayed import Replayed, answer
from esprof.replay.rules import ALL_RULES, Rules

LATE = ("ESP201", "ESP202", "ESP203", "ESP204", "ESP206")
"""Findings that name a rank as late."""
INPUT = "ESP1"
"""Begins the findings on waits for input data."""
STAGES = "ESP207"
"""Names a stage that computes longer for any reason: a trace does not distinguish a slow device from more layers."""


@dataclass(frozen=True)
class Answer:
    """What one scenario would give, in µs; without `predicted_us` it was refused for `reason`."""

    scenario: str
    predicted_us: float | None
    low_us: float
    high_us: float
    saving_us: tuple[float, float]
    """Ends of the interval of the saving."""
    reason: str


@dataclass(frozen=True)
class Said:
    """Steps counted and their mean, replay's own errors, the answers, and what `diagnose` finds."""

    steps: tuple[int, ...]
    unit: Unit
    """What esprof takes as a step: of jobs without step marks perhaps a block of repeated work."""
    step_us: float
    self_error_pct: float
    strict_error_pct: float
    answers: tuple[Answer, ...]
    named: tuple[tuple[str, tuple[int, ...]], ...]
    """(finding, ranks) of all findings in order."""
    savings_us: tuple[float, ...]
    """Saving of each of them, 0 without one."""
    together_us: float
    """Saving of a step if all fixes, symptoms included, are replayed at once."""
    warnings: tuple[str, ...]


def ask(folder: Path, scenarios: Sequence[str], max_error_pct: float, rules: Rules = ALL_RULES) -> Said:
    run = esprof.load(folder)
    rebuilt = Replayed.of(run, rules=rules, max_error_pct=max_error_pct)
    replayed, found = answer(rebuilt, scenarios), diagnose(rebuilt)
    errors = [abs(step.error_pct) for step in replayed.steps]
    return Said(
        steps=tuple(step.step for step in replayed.steps),
        unit=run.unit,
        step_us=replayed.step_us,
        self_error_pct=max(errors, default=0.0),
        strict_error_pct=abs(replayed.strict_error_pct),
        answers=tuple(_answer(one) for one in replayed.what_if),
        named=tuple((one.id, tuple(one.ranks)) for one in found.findings),
        savings_us=tuple(one.saving_us for one in found.findings),
        together_us=_together_us(rebuilt, found.findings),
        warnings=tuple(warning.code for warning in run.warnings),
    )


def _together_us(replayed: Replayed, causes: Sequence[Finding]) -> float:
    every = [one for cause in causes for one in (cause, *cause.symptoms)]
    scenarios = dict.fromkeys(one.what_if for one in every if one.what_if)
    return (replayed.pricer.saving_ns(",".join(scenarios)) or 0.0) / 1e3 if scenarios else 0.0


def _answer(one: Any) -> Answer:
    if not one.answered:
        return Answer(one.spec, None, 0.0, 0.0, (0.0, 0.0), one.reason or "")
    saving = (one.saving_low_us, one.saving_high_us)
    return Answer(one.spec, one.predicted_us, one.low_us, one.high_us, saving, "")
