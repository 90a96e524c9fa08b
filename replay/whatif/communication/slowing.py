"""Slowdown of CPU work by concurrent communication, as `esprof probe` measured it."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.engine.timeline import Timeline, replay
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.scenario import Scenario
from esprof.run.run import Run

_SLOWED_WORK = (Cls.COMPUTE, Cls.CPU, Cls.HOST_GAP)
"""Work of CPU threads that communication slows down."""

_MIN_OWN_SHARE = 0.25
"""Minimum share of a node's time that is its own work, not slowdown by concurrent communication."""

_REPLAY_ROUNDS = 3
"""Number of replays in which work and concurrent communication are scheduled: each depends on the times of the other."""


@dataclass(frozen=True)
class Slowing:
    """How much communication slows down concurrent CPU work.

    Both share the CPUs' time, caches and memory. A probe measures how much longer a backward pass takes during back-to-back
    all-reduces of some sizes. The loss is assumed proportional to the bytes, and spread evenly over a collective.
    """

    lost: dict[Rank, tuple[np.ndarray, np.ndarray]]
    """Rank -> (bytes of a collective, ascending; ns of work lost per byte)."""
    recorded: Timeline
    """The replay of the graph as recorded."""

    @classmethod
    def of(cls, run: Run, recorded: Timeline) -> Self | None:
        """None where a probe measured no collectives, or no slowdown on some ranks."""
        if ProbedCollectives.of(run) is None:
            return None
        lost = {rank: found for rank in run.ranks if (found := _lost(run, rank)) is not None}
        return cls(lost, recorded) if lost and len(lost) == len(run.ranks) else None

    @cached_property
    def undisturbed(self) -> Dfg:
        """The recorded graph with CPU work as long as it would be without concurrent communication."""
        dfg = self.recorded.dfg
        own = np.maximum(dfg.dur_ns - self.slowed_ns(self.recorded), _MIN_OWN_SHARE * dfg.dur_ns)
        return replace(dfg, dur_ns=np.rint(own).astype(np.int64))

    def slow_down(self, scenario: Scenario) -> Scenario:
        """A scenario made from the undisturbed graph, its CPU work slowed down by communication that is concurrent now."""
        alone = scenario.dfg
        # The slowdown of faster work shrinks in proportion.
        pace = alone.dur_ns / np.maximum(self.undisturbed.dur_ns, 1) if scenario.has_recorded_nodes else 1.0
        dfg = alone
        for _ in range(_REPLAY_ROUNDS):
            slowed = self.slowed_ns(replay(dfg), scenario.taken_ns) * pace
            dfg = replace(alone, dur_ns=alone.dur_ns + np.rint(slowed).astype(np.int64))
        return replace(scenario, dfg=dfg)

    def amounts(self, dfg: Dfg) -> np.ndarray:
        """Work that each collective takes from concurrent CPU work, ns, float64[N]; 0 for other nodes."""
        amount = np.zeros(dfg.nodes)
        collectives = dfg.on(LaneKind.COMM) & dfg.of(Cls.COMMUNICATION) & (dfg.bytes > 0)
        for rank, (sizes, per_byte) in self.lost.items():
            mine = np.flatnonzero(collectives & (dfg.rank == rank))
            amount[mine] = dfg.bytes[mine] * np.interp(np.log(dfg.bytes[mine]), np.log(sizes), per_byte)
        return amount

    def slowed_ns(self, timeline: Timeline, taken_ns: np.ndarray | None = None) -> np.ndarray:
        """Slowdown of each node by concurrent communication of its rank, ns, float64[N]; `taken_ns` as in `Scenario`."""
        dfg = timeline.dfg
        amount, slowed = self.amounts(dfg), np.zeros(dfg.nodes)
        if taken_ns is not None:
            amount = np.where(np.isnan(taken_ns), amount, taken_ns)
        work = dfg.on(LaneKind.CPU) & dfg.of(*_SLOWED_WORK)
        for rank in self.lost:
            moving = np.flatnonzero((amount > 0) & (dfg.rank == rank))
            nodes = np.flatnonzero(work & (dfg.rank == rank))
            if len(moving):
                until = _running_total(timeline.start_ns[moving], timeline.end_ns[moving], amount[moving])
                slowed[nodes] = np.interp(timeline.end_ns[nodes], *until) - np.interp(timeline.start_ns[nodes], *until)
        return slowed


def _lost(run: Run, rank: Rank) -> tuple[np.ndarray, np.ndarray] | None:
    """(bytes of a collective, ns of this rank's work lost per byte); None where not measured."""
    assert run.probes is not None, "asked only where there are probes"
    passes = {
        one.beside: one
        for one in run.probes.sweeps
        if (one.kind, one.unit, one.ranks) == ("backward", "bytes", (rank,))
    }
    collectives = [
        one for one in run.probes.sweeps if (one.kind, one.beside) == ("collective", "backward") and rank in one.ranks
    ]
    if not {"", "all_reduce"} <= passes.keys() or not collectives:
        return None
    alone, concurrent = (
        {point.size: point.samples_ns for point in passes[which].points} for which in ("", "all_reduce")
    )
    took = {point.size: float(np.median(point.samples_ns)) for point in collectives[0].points}
    sizes = sorted(alone.keys() & concurrent.keys() & took.keys())
    if not sizes:
        return None
    # Means: under a CPU quota most passes run undelayed, and a few are delayed for long.
    left = [float(np.mean(alone[size]) / np.mean(concurrent[size])) for size in sizes]
    per_byte = [max(0.0, took[size] * (1 - share)) / size for size, share in zip(sizes, left, strict=True)]
    return np.array(sizes, np.int64), np.array(per_byte)


def _running_total(start_ns: np.ndarray, end_ns: np.ndarray, amount: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(moments, ascending; cumulative loss): each amount is spread evenly from its start to its end."""
    rate = amount / np.maximum(end_ns - start_ns, 1)
    moments = np.concatenate([start_ns, end_ns]).astype(np.float64)
    changes = np.concatenate([rate, -rate])
    order = np.argsort(moments, kind="stable")
    moments, running = moments[order], np.cumsum(changes[order])
    total = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(moments))])
    return moments, total
