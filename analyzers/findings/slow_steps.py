"""ESP804: slow steps that the flight recorder caught in the act, with where the ranks were."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from esprof.analyzers.finding import Confidence, Finding, Severity
from esprof.analyzers.pricing import WORTH_NAMING, ms
from esprof.trace.flight.log import Snapshot
from esprof.trace.flight.standstill import Standstill, ranks_text, standstill
from esprof.trace.run import Run
from esprof.types import NS_PER_MS, NS_PER_S, Ns, Rank

_MOST_STACKS = 8
"""Ranks whose place is named: those at fault first."""
_MOST_OF = 0.5
"""Share of a step's excess that the others must have waited for a rank, if that is to be the cause."""
_MOST_STALLS = 3
"""Places of slow steps that are named: those that cost most."""


@dataclass(frozen=True)
class _Stall:
    """A step that took too long, and what its ranks were seen at."""

    step: int
    dur_ns: Ns
    usual_ns: Ns
    cause: Standstill | None
    snapshots: dict[Rank, Snapshot]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Those that kept the others waiting, or all that were seen."""
        return self.cause.at_fault if self.cause else tuple(sorted(self.snapshots))

    @property
    def key(self) -> tuple[str, ...]:
        """What stalls of one cause have in common."""
        return tuple(f"{rank} {self.snapshots[rank].place}" for rank in self.ranks)


def stalls(run: Run) -> list[Finding]:
    """ESP804, for each place that slow steps were caught at, costliest first. Without a price: they are not usual steps."""
    by_cause: dict[tuple[str, ...], list[_Stall]] = defaultdict(list)
    for step, snapshots in sorted(_finished_steps(run).items()):
        stall = _stall(run, step, snapshots)
        by_cause[stall.key].append(stall)
    worth_ns = WORTH_NAMING / 100 * max((int(run.steps(rank).ints("dur_ns").sum()) for rank in run.ranks), default=0)
    costly = sorted((group for group in by_cause.values() if _lost_ns(group) >= worth_ns), key=_lost_ns, reverse=True)
    return [_finding(group) for group in costly[:_MOST_STALLS]]


def _finished_steps(run: Run) -> dict[int, dict[Rank, Snapshot]]:
    """Step -> rank -> its last snapshot in that step, of steps that ended."""
    found: dict[int, dict[Rank, Snapshot]] = defaultdict(dict)
    for meta in run.meta.ranks:
        last = last_step(run, meta.rank)
        for snapshot in run.flight(meta.rank).snapshots:
            if 0 < snapshot.step <= last and snapshot.reason in ("slow", "hang"):
                found[snapshot.step][meta.rank] = snapshot
    return found


def _stall(run: Run, step: int, snapshots: dict[Rank, Snapshot]) -> _Stall:
    durations = [one.age_ns for one in snapshots.values()]
    for rank in snapshots:
        steps = run.steps(rank)
        durations += steps.ints("dur_ns")[np.flatnonzero(steps.ints("step") == step)].tolist()
    usual_ns = max((one.usual_ns or 0 for one in snapshots.values()), default=0)
    cause = standstill(snapshots)
    # A collective that was under way just then explains nothing.
    excess_ns = max(one.age_ns for one in snapshots.values()) - usual_ns
    if cause is not None and (cause.kind != "absent" or cause.waited_ns < _MOST_OF * excess_ns):
        cause = None
    return _Stall(step, max(durations), usual_ns, cause, snapshots)


def _lost_ns(group: list[_Stall]) -> Ns:
    return sum(stall.dur_ns - stall.usual_ns for stall in group)


def _finding(group: list[_Stall]) -> Finding:
    worst = max(group, key=lambda stall: stall.dur_ns)
    seen = places(worst.ranks, worst.snapshots)
    return unpriced(
        "ESP804",
        _title(group, worst, seen.get(str(worst.ranks[0]))),
        worst.ranks,
        {
            "took_ms_in_steps": {str(stall.step): ms(stall.dur_ns) for stall in group},
            "usual_ms": ms(worst.usual_ns),
            "lost_ms_in_all": ms(_lost_ns(group)),
            "stacks": seen,
        }
        | (waiting_evidence(worst.cause) if worst.cause else {}),
        "If it is a save or a validation that has to be: do it less often, on all ranks at once, or beside the training "
        "(torch.distributed.checkpoint.async_save). Else look at what is at that line.",
        severity="warning",
        confidence="high" if worst.cause else "medium",
    )


def _title(group: list[_Stall], worst: _Stall, place: str | None) -> str:
    took = f"{_time(worst.dur_ns)} instead of {_time(worst.usual_ns)}"
    what = f"Step {worst.step} took {took}" if len(group) == 1 else f"{len(group)} steps took up to {took}"
    did = "kept the others waiting" if worst.cause else "was seen" if len(worst.ranks) == 1 else "were seen"
    return f"{what}: {ranks_text(worst.ranks)} {did}{f' at {place}' if place else ''}"


def _time(ns: Ns) -> str:
    return f"{ns / NS_PER_S:.2f} s" if ns >= NS_PER_S else f"{ns / NS_PER_MS:.3g} ms"


def last_step(run: Run, rank: Rank) -> int:
    """The last step of `rank` that ended; 0 where none is known."""
    steps = run.steps(rank).ints("step")
    return int(steps.max()) if len(steps) else 0


def waiting_evidence(still: Standstill) -> dict[str, Any]:
    """What is waited in and by whom; empty where ranks that disagreed do not wait."""
    if not still.waiting:
        return {}
    first = still.waiting[0]
    return {
        "group": list(first.group),
        "number": first.number,
        "collective": first.what.collective,
        "bytes": first.what.bytes,
        "entered_by": list(first.entered),
        "missing": list(first.missing or first.unknown),
        "waited_s": round(first.waited_ns / NS_PER_S, 3),
    }


def places(first: Sequence[Rank], snapshots: Mapping[Rank, Snapshot]) -> dict[str, str]:
    """Rank -> `file(line): function`: where the ranks of `first` are, then some of the others."""
    ranks = [*first, *sorted(snapshots.keys() - set(first))]
    found = {str(rank): snapshots[rank].place for rank in ranks if rank in snapshots}
    return {rank: str(place) for rank, place in list(found.items())[:_MOST_STACKS] if place}


def unpriced(
    id: str,
    title: str,
    ranks: tuple[Rank, ...],
    evidence: dict[str, Any],
    advice: str,
    *,
    severity: Severity = "critical",
    confidence: Confidence = "high",
) -> Finding:
    """A Finding without saving."""
    return Finding(
        id=id,
        title=title,
        severity=severity,
        ranks=ranks,
        saving_us=0.0,
        saving_pct=0.0,
        saving_device_hours_per_day=0.0,
        confidence=confidence,
        evidence=evidence,
        advice=advice,
    )
