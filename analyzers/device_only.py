"""Diagnosis of traces without any CPU event: the breakdown of each rank, and who is late, from GPU work alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import ACTIVITIES, GPU_BOUND, Finding, RankBreakdown
from esprof.analyzers.findings.kernels.gpu_bound import bound_by_gpu
from esprof.analyzers.ops.gpu_calls import gpu_calls
from esprof.analyzers.price import MIN_PCT_OF_STEP, MeasuredPrice
from esprof.analyzers.rule import Cause
from esprof.analyzers.views.breakdown import partition
from esprof.core import readable
from esprof.core.types import Ns, Rank, ns, us
from esprof.replay.building.build import MatchedRanks, matched_ranks
from esprof.replay.runtime_names import copies_across_bus
from esprof.replay.steps import RecordedSteps, steps_of
from esprof.run.run import Run, RunWarning

MIN_SHARE_OF_LATENESS = 0.5
"""Least share of the lateness of all ranks that one rank must have for it to be reported as late."""

MIN_LATE_PCT_OF_STEP = 3.0
"""Least lateness of that rank, in per cent of a step."""

_MEANING = {
    "exposed_communication": "communication that does not overlap compute",
    "copy": "copies between host and device",
    "wait": "waiting for other ranks",
    "idle": "an idle GPU, whose cause needs CPU events",
}
"""Activities of a `RankBreakdown` in words."""

NO_CPU_EVENTS = RunWarning(
    "no-cpu-events",
    "no CPU event was recorded: causes of idle time, replay and what-ifs need them (ProfilerActivity.CPU)",
)


def is_device_only(run: Run) -> bool:
    """Whether ranks recorded GPU work, but neither operations nor calls on a CPU."""
    tables = [run.events(rank) for rank in run.ranks]
    on_cpu = any((events.is_kind("op", "runtime", "loader") & (events.ints("tid") >= 0)).any() for events in tables)
    return not on_cpu and any((events.ints("stream") >= 0).any() for events in tables)


@dataclass(frozen=True)
class DeviceOnly:
    """A run of GPU work alone."""

    run: Run
    steps: RecordedSteps

    @classmethod
    def of(cls, run: Run) -> "DeviceOnly":
        """Raises InputError if the ranks have no recorded step in common."""
        steps = steps_of(run)
        return cls(steps.run, steps)

    def spans(self, rank: Rank) -> np.ndarray:
        """(start, end) of each steady-state step, ns, shape (steps, 2)."""
        return np.array([self.steps.boundaries[rank][step] for step in self.steps.steady], np.int64)

    @cached_property
    def step_ns(self) -> float:
        """Duration of the mean step, ns; the longest of all ranks."""
        return max(float(np.diff(self.spans(rank), axis=1).mean()) for rank in self.run.ranks)

    @cached_property
    def matched(self) -> MatchedRanks:
        """The collectives, as matched across ranks."""
        return matched_ranks(self.steps)

    def _join_ns(self, column: int, end: np.ndarray) -> np.ndarray:
        """When each row of a rank, if it is a collective, began to communicate, ns: after its wait; 0 for other rows.

        A collective that has peers and was not matched counts as a wait.
        """
        events, rendezvous = self.matched.events[column], self.matched.rendezvous.by_rank[column]
        row, found = events.collectives.row, np.zeros(len(end), np.int64)
        unknown = rendezvous.shared & (rendezvous.number < 0)
        alone = np.where(unknown, end[row], 0)
        found[row] = np.where(rendezvous.number >= 0, end[row] - rendezvous.communication_ns, alone)
        return found

    @cached_property
    def breakdown(self) -> tuple[RankBreakdown, ...]:
        """Breakdown of each rank's mean step. What no GPU work covers is idle, since its cause is unknown."""
        return tuple(self._breakdown_of(column, rank) for column, rank in enumerate(self.run.ranks))

    def _breakdown_of(self, column: int, rank: Rank) -> RankBreakdown:
        events, meta = self.run.events(rank), self.run.rank(rank)
        start = events.ints("start_ns")
        end = start + events.ints("dur_ns")
        codes, names = events.codes("name")
        across = np.array([*map(copies_across_bus, names), False])[codes]
        on_gpu = events.ints("stream") >= 0
        copies = on_gpu & across
        computes = on_gpu & events.is_kind("kernel", "memcpy", "memset") & ~across
        communicates = on_gpu & events.is_kind("collective")
        join = np.clip(self._join_ns(column, end), start, end)
        layers = [
            np.stack([start[mask], end[mask]], axis=1)
            for mask, start, end in (
                (computes, start, end),
                (communicates, join, end),
                (copies, start, end),
                (communicates, start, join),
            )
        ]
        spans = self.spans(rank)
        shares = partition(layers, spans).mean(axis=0)
        in_flight = float(partition(layers[1:2], spans)[:, 0].mean())
        of = dict(zip(("compute", "exposed_communication", "copy", "wait", "idle"), shares.tolist(), strict=True))
        values = {activity: us(of.get(activity, 0.0)) for activity in ACTIVITIES}
        overlap = 100 * (1 - of["exposed_communication"] / in_flight) if in_flight else None
        return RankBreakdown(
            rank=rank,
            device=meta.device,
            host_name=meta.host,
            step_us=round(sum(values.values()), 3),
            overlap_pct=None if overlap is None else round(overlap, 2),
            **values,
        )

    def causes(self) -> Iterator[Cause]:
        """Causes of lost time that GPU work alone shows."""
        yield from self._late_rank()
        yield from self._exposed()
        calls = {rank: gpu_calls(self.run.events(rank), rank, self.steps) for rank in self.run.ranks}
        yield from bound_by_gpu(self.breakdown, calls, self.run)

    def verdict(self, findings: Sequence[Finding]) -> str:
        """The first finding, how much of the step is compute, and the largest part of the rest."""
        compute = sum(one.compute / one.step_us for one in self.breakdown if one.step_us) / len(self.breakdown)
        takes = f"A step takes {readable.duration(self.step_ns)}, {100 * compute:.0f} % of it compute."
        named = f" {findings[0].title}." if findings else ""
        means = {name: sum(getattr(one, name) for one in self.breakdown) / len(self.breakdown) for name in _MEANING}
        name = max(means, key=lambda activity: means[activity])
        if (findings and findings[0].id == GPU_BOUND) or not means[name]:
            return takes + named
        return f"{takes}{named} The largest part of the rest is {_MEANING[name]}: {readable.duration(ns(means[name]))}."

    def _exposed(self) -> Iterator[Cause]:
        exposed = {one.rank: ns(one.exposed_communication) for one in self.breakdown}
        least = min(exposed.values())
        if 100 * least < MIN_PCT_OF_STEP * self.step_ns:
            return
        yield Cause(
            id="ESP301",
            title=f"Communication that does not overlap compute takes {readable.duration(least)} a step on every rank",
            ranks=tuple(exposed),
            measured=MeasuredPrice(saving_ns=least, margin_ns=0.0, step_ns=self.step_ns),
            is_bound=True,
            confidence="medium",
            evidence={"exposed": by_rank(exposed, "ns"), "priced_as": Evidence("upper bound: its whole time")},
            advice="Send fewer bytes (compression, lower precision), use a faster link, or start collectives earlier. "
            "Whether compute could hide them needs CPU events.",
        )

    def _late_rank(self) -> Iterator[Cause]:
        late, count = self._lateness()
        total = sum(late.values())
        if not total:
            return
        rank = max(late, key=lambda one: late[one])
        a_step = late[rank] / len(self.steps.steady)
        if late[rank] < MIN_SHARE_OF_LATENESS * total or 100 * a_step < MIN_LATE_PCT_OF_STEP * self.step_ns:
            return
        yield Cause(
            id="ESP201",
            title=f"Rank {rank} delays the other ranks by {readable.duration(a_step)} a step: reason unknown",
            ranks=(rank,),
            severity="warning",
            confidence="medium",
            evidence={
                "collectives": Evidence(count),
                "late_per_step": by_rank({one: round(ns / len(self.steps.steady)) for one, ns in late.items()}, "ns"),
            },
            advice="Its GPU reaches collectives after those of all other ranks. Compare its kernels with theirs "
            "(`esprof ops --rank`). Record CPU events to learn whether its CPU launches them late.",
        )

    def _lateness(self) -> tuple[dict[Rank, Ns], int]:
        """(how long the others waited for each rank alone, from the second-last arrival to its own, ns; collectives)."""
        late, matched, ranks = dict.fromkeys(self.run.ranks, 0), self.matched, self.run.ranks
        arrivals: dict[int, list[tuple[Ns, Rank]]] = {}
        for column, rank in enumerate(ranks):
            events, number = matched.events[column], matched.rendezvous.by_rank[column].number
            steady = np.isin(events.step_at(events.start[events.collectives.row]), self.steps.steady)
            start = matched.rendezvous.clocks.apply(rank, events.start[events.collectives.row])
            for at in np.flatnonzero(steady & (number >= 0)).tolist():
                arrivals.setdefault(int(number[at]), []).append((int(start[at]), rank))
        for found in arrivals.values():
            found.sort()
            if len(found) > 1:
                late[found[-1][1]] += found[-1][0] - found[-2][0]
        return late, len(arrivals)
