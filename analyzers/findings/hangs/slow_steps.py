"""ESP804: slow steps during which the flight recorder took stacks."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank, by_step
from esprof.analyzers.findings.hangs.flight_evidence import locations, waiting_evidence
from esprof.analyzers.price import MIN_PCT_OF_STEP
from esprof.analyzers.priced_causes import severity
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Page, Rule
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.readable import duration, ranks, verb
from esprof.core.types import Ns, Rank
from esprof.run.flight.hang import Hang, find_hang
from esprof.run.flight.log import Snapshot
from esprof.run.raw.reasons import SnapshotReason

_MIN_SHARE_WAITED = 0.5
"""If the others waited for a rank for at least this share of the extra time of a step, that rank is the cause."""
_MAX_LOCATIONS_REPORTED = 3
"""Number of source locations that are reported, costliest first."""


@dataclass(frozen=True)
class _SlowStep:
    """A step that took too long, with snapshots of its ranks."""

    step: int
    dur_ns: Ns
    usual_ns: Ns
    cause: Hang | None
    """The late ranks and the collective in which the others waited for them; None if there were none."""
    snapshots: dict[Rank, Snapshot]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The ranks that delayed the others, or all with snapshots."""
        return self.cause.at_fault if self.cause else tuple(sorted(self.snapshots))

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for slow steps with the same cause."""
        return tuple(f"{rank} {self.snapshots[rank].location}" for rank in self.ranks)


def slow_steps(job: RecordedJob) -> Iterator[Cause]:
    """A cause for each source location of slow steps, costliest first. They have no price: usual steps lose no time."""
    by_cause: dict[tuple[str, ...], list[_SlowStep]] = defaultdict(list)
    for step, snapshots in sorted(_finished_steps(job).items()):
        slow = _slow_step(job.steps, step, snapshots)
        by_cause[slow.key].append(slow)
    run_ns = max((int(job.steps.table(rank).ints("dur_ns").sum()) for rank in job.run.ranks), default=0)
    min_lost_ns = MIN_PCT_OF_STEP / 100 * run_ns
    costly = sorted(
        (group for group in by_cause.values() if _lost_ns(group) >= min_lost_ns), key=_lost_ns, reverse=True
    )
    for group in costly[:_MAX_LOCATIONS_REPORTED]:
        yield _cause(group, 100 * _lost_ns(group) / run_ns)


def _finished_steps(job: RecordedJob) -> dict[int, dict[Rank, Snapshot]]:
    """Step -> rank -> its last snapshot in that step, for steps that have ended."""
    found: dict[int, dict[Rank, Snapshot]] = defaultdict(dict)
    for meta in job.run.meta.ranks:
        last = job.steps.last(meta.rank)
        for snapshot in job.run.flight(meta.rank).snapshots:
            if 0 < snapshot.step <= last and snapshot.reason in (SnapshotReason.SLOW, SnapshotReason.HANG):
                found[snapshot.step][meta.rank] = snapshot
    return found


def _slow_step(job: JobSteps, step: int, snapshots: dict[Rank, Snapshot]) -> _SlowStep:
    durations = [one.age_ns for one in snapshots.values()]
    for rank in snapshots:
        steps = job.table(rank)
        durations += steps.ints("dur_ns")[np.flatnonzero(steps.ints("step") == step)].tolist()
    usual_ns = max((one.usual_ns or 0 for one in snapshots.values()), default=0)
    cause = find_hang(snapshots)
    # A collective that happened to be running at that moment explains nothing.
    excess_ns = max(one.age_ns for one in snapshots.values()) - usual_ns
    if cause is not None and (cause.kind != "absent" or cause.waited_ns < _MIN_SHARE_WAITED * excess_ns):
        cause = None
    return _SlowStep(step, max(durations), usual_ns, cause, snapshots)


def _lost_ns(group: list[_SlowStep]) -> Ns:
    return sum(one.dur_ns - one.usual_ns for one in group)


def _cause(group: list[_SlowStep], pct: float) -> Cause:
    """`pct` is what they cost, in per cent of the run. Critical ones come before all that shortens usual steps."""
    worst = max(group, key=lambda one: one.dur_ns)
    located = locations(worst.ranks, worst.snapshots)
    return Cause(
        id="ESP804",
        title=_title(group, worst, located.get(worst.ranks[0])),
        ranks=worst.ranks,
        evidence={
            "took": by_step({one.step: one.dur_ns for one in group}, "ns"),
            "usual": Evidence(worst.usual_ns, "ns"),
            "lost_in_total": Evidence(_lost_ns(group), "ns"),
            "stacks": by_rank(located),
        }
        | (waiting_evidence(worst.cause) if worst.cause else {}),
        advice="If that line saves or validates: do it less often, on all ranks at once, or in the background "
        "(torch.distributed.checkpoint.async_save). Otherwise examine that line.",
        severity="critical" if severity(pct) == "critical" else "warning",
        confidence="high" if worst.cause else "medium",
    )


def _title(group: list[_SlowStep], worst: _SlowStep, location: str | None) -> str:
    took = f"{duration(worst.dur_ns)} instead of {duration(worst.usual_ns)}"
    what = f"Step {worst.step} took {took}" if len(group) == 1 else f"{len(group)} steps took up to {took}"
    at = f" at {location}" if location else ""
    if worst.cause:
        return f"{what}: {ranks(worst.ranks)} delayed the others{at}"
    return f"{what}: {ranks(worst.ranks)} {verb('were', worst.ranks)}{at}" if at else what


_PAGES = (
    Page(
        "ESP804",
        "Slow steps with stacks",
        "Steps took more than twice the 99th percentile of the steps before, or made no progress for seconds, and then "
        "continued. The stacks were taken during these steps, at most every 30 seconds.",
        "`took` by step compared with `usual`; `stacks` are the source locations of the ranks at that moment. If "
        "all others waited for one rank, the finding names that rank and the collective that it entered late.",
        "None: it does not affect usual steps. `lost in total` is the extra time of all these steps.",
        "Save and validate less often, on all ranks at once, or in the background; otherwise examine the given line.",
    ),
)

RULE = Rule(pages=_PAGES, of_job=slow_steps)
