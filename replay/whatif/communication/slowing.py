"""CPU work that transfers beside it slow down, where `esprof probe` measured by how much: without them, and with others."""

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
"""Work of CPU threads that transfers slow down."""

_MIN_OWN_SHARE = 0.25
"""Share of a node's time, at least, that is its own work and not what transfers beside it took from it."""

_REPLAY_ROUNDS = 3
"""How often work and the transfers beside it are laid out anew: where transfers lie depends on the work, and the other way
round."""


@dataclass(frozen=True)
class Slowing:
    """By how much transfers slow down the work of the CPUs beside them.

    Both share the CPUs' time, caches and memory. What was measured is how much longer a backward pass takes while
    all-reduces of some sizes follow one another; that loss is taken to go with the bytes, spread evenly over a transfer.
    """

    lost: dict[Rank, tuple[np.ndarray, np.ndarray]]
    """Rank -> (bytes of a transfer, ascending; ns of work lost a byte)."""
    recorded: Timeline
    """The replay of the graph as recorded."""

    @classmethod
    def of(cls, run: Run, recorded: Timeline) -> Self | None:
        """None where transfers were not measured, or what they take from the work beside them not on all ranks."""
        if ProbedCollectives.of(run) is None:
            return None
        lost = {rank: found for rank in run.ranks if (found := _lost(run, rank)) is not None}
        return cls(lost, recorded) if lost and len(lost) == len(run.ranks) else None

    @cached_property
    def undisturbed(self) -> Dfg:
        """The recorded graph with CPU work as long as it would be without transfers beside it."""
        dfg = self.recorded.dfg
        own = np.maximum(dfg.dur_ns - self.slowed_ns(self.recorded), _MIN_OWN_SHARE * dfg.dur_ns)
        return replace(dfg, dur_ns=np.rint(own).astype(np.int64))

    def slow_down(self, scenario: Scenario) -> Scenario:
        """A scenario made of the undisturbed graph, its CPU work slowed by the transfers that are beside it now."""
        alone = scenario.dfg
        # Work that got faster loses as much less to the transfers.
        pace = alone.dur_ns / np.maximum(self.undisturbed.dur_ns, 1) if scenario.has_recorded_nodes else 1.0
        dfg = alone
        for _ in range(_REPLAY_ROUNDS):
            slowed = self.slowed_ns(replay(dfg), scenario.taken_ns) * pace
            dfg = replace(alone, dur_ns=alone.dur_ns + np.rint(slowed).astype(np.int64))
        return replace(scenario, dfg=dfg)

    def amounts(self, dfg: Dfg) -> np.ndarray:
        """What each transfer takes from the work beside it, ns, float64[N]; 0 for other nodes."""
        amount = np.zeros(dfg.nodes)
        collectives = dfg.on(LaneKind.COMM) & dfg.of(Cls.COMMUNICATION) & (dfg.bytes > 0)
        for rank, (sizes, per_byte) in self.lost.items():
            mine = np.flatnonzero(collectives & (dfg.rank == rank))
            amount[mine] = dfg.bytes[mine] * np.interp(np.log(dfg.bytes[mine]), np.log(sizes), per_byte)
        return amount

    def slowed_ns(self, timeline: Timeline, taken_ns: np.ndarray | None = None) -> np.ndarray:
        """By how much each node takes longer for the transfers that its rank makes meanwhile, ns, float64[N]; `taken_ns` is
        as in `Scenario`."""
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
    """(bytes of a transfer, ns of this rank's work that it takes a byte); None where that was not measured."""
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
    alone, beside = ({point.size: point.samples_ns for point in passes[which].points} for which in ("", "all_reduce"))
    took = {point.size: float(np.median(point.samples_ns)) for point in collectives[0].points}
    sizes = sorted(alone.keys() & beside.keys() & took.keys())
    if not sizes:
        return None
    # Means, since a CPU quota lets most passes through and holds up a few for long.
    left = [float(np.mean(alone[size]) / np.mean(beside[size])) for size in sizes]
    per_byte = [max(0.0, took[size] * (1 - share)) / size for size, share in zip(sizes, left, strict=True)]
    return np.array(sizes, np.int64), np.array(per_byte)


def _running_total(start_ns: np.ndarray, end_ns: np.ndarray, amount: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(moments, ascending; sum of what was lost until then): each amount is spread evenly from its start to its end."""
    rate = amount / np.maximum(end_ns - start_ns, 1)
    moments = np.concatenate([start_ns, end_ns]).astype(np.float64)
    changes = np.concatenate([rate, -rate])
    order = np.argsort(moments, kind="stable")
    moments, running = moments[order], np.cumsum(changes[order])
    total = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(moments))])
    return moments, total
