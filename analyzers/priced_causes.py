"""Findings from causes: each with the saving of its scenario, with a measured saving, or without a price."""

import math
import shlex
from dataclasses import replace
from typing import Any

from esprof.analyzers.finding import Confidence, Finding, Severity
from esprof.analyzers.rule import Case, Cause
from esprof.core.types import ns, us
from esprof.run.run import Run

HOURS_A_DAY = 24


def priced(cause: Cause, case: Case) -> Finding:
    """The cause with its share of the saving of its scenario, and the command that shows all of that.

    Without a saving if the scenario is declined; confidence is then at most medium.
    """
    if cause.scenario is None:
        return as_measured(cause, case.run)
    (answer,) = case.pricer.answers([cause.scenario])
    if answer.saving_us is None or answer.saving_low_us is None or answer.saving_high_us is None:
        return unpriced(replace(cause, confidence=no_more_than("medium", cause.confidence)))
    if answer.saving_low_us <= 0 and cause.severity is not None:  # It matters even if usual steps lose nothing.
        return unpriced(cause)
    most_us = math.inf if cause.most_ns is None else us(cause.most_ns)
    saving_us, low_us, high_us = (
        cause.share_of_scenario * min(max(0.0, one), most_us)
        for one in (answer.saving_us, answer.saving_low_us, answer.saving_high_us)
    )
    pct = 100 * ns(saving_us) / case.pricer.step_ns
    return _finding(
        cause,
        saving_us=saving_us,
        saving_low_us=max(low_us, cause.certain_share * saving_us),
        saving_high_us=high_us,
        saving_pct=round(pct, 3),
        saving_device_hours_per_day=_device_hours(pct, case.run),
        severity=cause.severity or severity(pct),
        what_if=cause.scenario,
        command=_command(cause.scenario, case.run),
    )


def no_more_than(most: Confidence, confidence: Confidence) -> Confidence:
    """The lower of the two."""
    order: tuple[Confidence, ...] = ("low", "medium", "high")
    return min(most, confidence, key=order.index)


def unpriced(cause: Cause) -> Finding:
    """The cause without a price."""
    return _finding(
        cause,
        saving_us=0.0,
        saving_low_us=0.0,
        saving_high_us=0.0,
        saving_pct=0.0,
        saving_device_hours_per_day=0.0,
        severity=cause.severity or severity(0),
    )


def as_measured(cause: Cause, run: Run) -> Finding:
    """The cause with its measured price, or without a price."""
    if cause.measured is None:
        return unpriced(cause)
    saving, margin = cause.measured.saving_ns, cause.measured.margin_ns
    pct = 100 * saving / cause.measured.step_ns
    return _finding(
        cause,
        saving_us=us(saving),
        saving_low_us=us(cause.measured.low_ns),
        saving_high_us=us(saving + margin),
        saving_pct=round(pct, 3),
        saving_device_hours_per_day=_device_hours(pct, run),
        severity=cause.severity or severity(pct),
    )


def _device_hours(pct: float, run: Run) -> float:
    """This share of the time, in per cent, as device-hours a day on the ranks of the run."""
    return round(pct / 100 * HOURS_A_DAY * len(run.ranks), 3)


def severity(pct: float) -> Severity:
    """The severity of a finding that costs this share of a step, in per cent."""
    if pct >= 20:
        return "critical"
    return "warning" if pct >= 5 else "info"


def _finding(cause: Cause, **figures: Any) -> Finding:
    return Finding(
        id=cause.id,
        title=cause.title,
        ranks=cause.ranks,
        confidence=cause.confidence,
        evidence=cause.evidence,
        advice=cause.advice,
        is_bound=cause.is_bound,
        **figures,
    )


def _command(scenario: str, run: Run) -> str:
    """The command that prints the finding's price."""
    window = f" --window {run.window}" if run.window is not None else ""
    return f"esprof replay {shlex.join(run.sources) or 'RUN'}{window} --what-if {shlex.quote(scenario)}"
