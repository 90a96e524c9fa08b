"""Diagnosis of traces without any CPU event: the breakdown of each rank, and who is late, from GPU work alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import GPU_BOUND, Finding, RankBreakdown
from esprof.analyzers.findings.kernels.gpu_bound import bound_by_gpu
from esprof.analyzers.ops.gpu_calls import gpu_calls
from esprof.analyzers.price import MIN_PCT_OF_STEP, MeasuredPrice
from esprof.analyzers.rule import Cause
from esprof.analyzers.views.breakdown import of_rank, partition
from esprof.core import readable
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank, ns
from esprof.replay.building.build import MatchedRanks, matched_ranks
from esprof.replay.ranks.arrivals import Arrivals
from esprof.replay.runtime_names import copies_across_bus
from esprof.replay.steps import RecordedSteps, steps_of
from esprof.run.run import Run, RunWarning

_ACTIVITIES = ("compute", "exposed_communication", "copy", "wait", "idle")
"""The activities of a `RankBreakdown` that GPU work alone shows."""

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
    on_gpu = False
    for rank in run.ranks:
        events = run.events(rank)
        if (events.is_kind("op", "runtime", "loader") & (events.ints("tid") >= 0)).any():
            return False
        on_gpu |= bool((events.ints("stream") >= 0).any())
    return on_gpu


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
        return tuple(
            of_rank(
                self.run.rank(rank),
                dict(zip(_ACTIVITIES, self._shares_ns[rank].mean(axis=0).tolist(), strict=True)),
                float(partition([self._layers(column, rank)[1]], self.spans(rank))[:, 0].mean()),
            )
            for column, rank in enumerate(self.run.ranks)
        )

    @cached_property
    def _shares_ns(self) -> dict[Rank, np.ndarray]:
        """Time of each rank in each of `_ACTIVITIES` in each steady-state step, ns, shape (steps, activities)."""
        ranks = enumerate(self.run.ranks)
        return {rank: partition(self._layers(column, rank), self.spans(rank)) for column, rank in ranks}

    def _layers(self, column: int, rank: Rank) -> list[np.ndarray]:
        """Intervals of each of `_ACTIVITIES` except `idle`, in order of precedence, ns, shape (n, 2) each."""
        events = self.run.events(rank)
        start = events.ints("start_ns")
        end = start + events.ints("dur_ns")
        across = events.matches("name", copies_across_bus)
        on_gpu = events.ints("stream") >= 0
        computes = on_gpu & events.is_kind("kernel", "memcpy", "memset") & ~across
        communicates = on_gpu & events.is_kind("collective")
        join = np.clip(self._join_ns(column, end), start, end)
        layers = ((computes, start, end), (communicates, join, end), (on_gpu & across, start, end))
        waits = (communicates, start, join)
        return [np.stack([begin[mask], end[mask]], axis=1) for mask, begin, end in (*layers, waits)]

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
        rank = min(exposed, key=lambda one: exposed[one])
        if 100 * exposed[rank] < MIN_PCT_OF_STEP * self.step_ns:
            return
        margin = mean_margin(self._shares_ns[rank][:, _ACTIVITIES.index("exposed_communication")])
        yield Cause(
            id="ESP301",
            title="Communication that does not overlap compute takes "
            f"{readable.duration(exposed[rank])} a step on every rank",
            ranks=tuple(exposed),
            measured=MeasuredPrice(saving_ns=exposed[rank], margin_ns=margin, step_ns=self.step_ns),
            is_bound=True,
            confidence="medium",
            evidence={"exposed": by_rank(exposed, "ns"), "priced_as": Evidence("upper bound: its whole time")},
            advice="Send fewer bytes (compression, lower precision), use a faster link, or start collectives earlier. "
            "Whether compute could hide them needs CPU events.",
        )

    def _late_rank(self) -> Iterator[Cause]:
        arrivals = self._arrivals()
        if not len(arrivals) or len(arrivals.ranks) < 2:
            return
        late = dict(zip(self.run.ranks, (arrivals.late_ns() / len(self.steps.steady)).tolist(), strict=True))
        rank = max(late, key=lambda one: late[one])
        least = max(MIN_SHARE_OF_LATENESS * sum(late.values()), MIN_LATE_PCT_OF_STEP / 100 * self.step_ns)
        if late[rank] < least:
            return
        yield Cause(
            id="ESP201",
            title=f"Rank {rank} delays the other ranks by {readable.duration(late[rank])} a step: reason unknown",
            ranks=(rank,),
            severity="warning",
            confidence="medium",
            evidence={
                "collectives": Evidence(len(arrivals)),
                "late_per_step": by_rank({one: round(ns) for one, ns in late.items()}, "ns"),
            },
            advice="Its GPU reaches collectives after those of all other ranks. Compare its kernels with theirs "
            "(`esprof ops --rank`). Record CPU events to learn whether its CPU launches them late.",
        )

    def _arrivals(self) -> Arrivals:
        """When each rank arrived at the matched collectives of the steady-state steps, ns on one clock."""
        rendezvous, ranks = self.matched.rendezvous, self.run.ranks
        found: list[tuple[np.ndarray, ...]] = []
        for column, rank in enumerate(ranks):
            events, number = self.matched.events[column], rendezvous.by_rank[column].number
            start = events.start[events.collectives.row]
            step, arrived = events.step_at(start), rendezvous.clocks.apply(rank, start)
            rows = np.flatnonzero(np.isin(step, self.steps.steady) & (number >= 0))
            found.append((number[rows], np.full(len(rows), column), step[rows], arrived[rows]))
        return Arrivals.of(tuple(ranks), *map(np.concatenate, zip(*found, strict=True)))
