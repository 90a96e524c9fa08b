"""From a scenario's price to a Finding's figures."""

import shlex
from typing import Any, Literal

from esprof.analyzers.finding import Finding, Severity
from esprof.replay.answering import Replayed
from esprof.types import Ns, Rank, us

WORTH_NAMING = 1.0
"""A cause that costs less than this share of a step, in per cent, is no finding."""

HOURS_A_DAY = 24


def finding(
    replayed: Replayed,
    id: str,
    title: str,
    *,
    ranks: tuple[Rank, ...],
    saving_ns: float,
    confidence: Literal["high", "medium", "low"],
    evidence: dict[str, Any],
    advice: str,
    command: str | None = None,
) -> Finding:
    """A Finding with its saving per step, in per cent and in device-hours a day; RUN in `command` becomes the run's path."""
    saving = max(0.0, saving_ns)
    pct = 100 * saving / replayed.oracle.step_ns
    return Finding(
        id=id,
        title=title,
        severity=severity(pct),
        ranks=ranks,
        saving_us=us(saving),
        saving_pct=round(pct, 3),
        saving_device_hours_per_day=round(pct / 100 * HOURS_A_DAY * replayed.run.world_size, 3),
        confidence=confidence,
        evidence=evidence,
        advice=advice,
        command=command.replace("RUN", shlex.quote(str(replayed.run.path or "RUN"))) if command else None,
    )


def severity(pct: float) -> Severity:
    """How loud a finding is, by the share of a step that it costs, in per cent."""
    if pct >= 20:
        return "critical"
    return "warning" if pct >= 5 else "info"


def worth_naming(replayed: Replayed, saving_ns: float) -> bool:
    return 100 * saving_ns / replayed.oracle.step_ns >= WORTH_NAMING


def listed(ranks: tuple[Rank, ...]) -> str:
    """`rank 1`, `ranks 0 and 6`, `ranks 0, 1 and 2`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def ms(ns: Ns | float) -> float:
    """Milliseconds for evidence, which people read."""
    return round(float(ns) / 1e6, 3)
