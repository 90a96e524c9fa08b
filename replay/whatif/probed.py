"""What `esprof probe` measured of transfers between CPUs and of the work beside them, where a run has such measurements."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.engine.timeline import Timeline
from esprof.run.collective_names import collective_word
from esprof.run.curve import Curve
from esprof.run.probes import Probes, Sweep
from esprof.run.run import Run

_WORK = (Cls.COMPUTE, Cls.CPU, Cls.HOST_GAP)
"""Work of CPU threads that transfers slow down."""

_LEAST_LEFT = 0.25
"""Share of a node's time, at least, that is its own work and not what transfers beside it took from it."""


@dataclass(frozen=True)
class Link:
    """What the link takes of one collective, ns a byte, beside what the CPUs need for the same byte at the same time."""

    ns_per_byte: float
    cpu_ns_per_byte: float
    """Below this no faster link brings it."""


@dataclass(frozen=True)
class ProbedTransfers:
    """The curves of transfers between CPUs of one run."""

    run: Run
    probes: Probes

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """None where nothing was measured of transfers between CPUs."""
        probes = run.probes
        if probes is None or not any(one.kind == "collective" and one.device == "cpu" for one in probes.sweeps):
            return None
        return cls(run, probes)

    def curve(self, name: str, ranks: tuple[Rank, ...]) -> Curve | None:
        """What the collective of this name takes these ranks, or, where they were not measured, as many others."""
        sweep = self._sweep(name, ranks)
        return sweep.curve() if sweep is not None else None

    def link(self, name: str, ranks: tuple[Rank, ...]) -> Link | None:
        """How fast the link is for this collective. None where that was not measured, or sizes do not reach far enough for
        a slope."""
        sweep = self._sweep(name, ranks)
        if sweep is None or not (slope := sweep.curve().slope()):
            return None
        told = [(point.size, (point.cpu_ns,)) for point in sweep.points if point.cpu_ns]
        cpu = Curve.through(told).slope() if told else 0.0
        quotas = [quota for rank in ranks if rank in self.run.ranks and (quota := self.run.rank(rank).cpu_quota)]
        return Link(slope, cpu / min([1.0, *quotas]))

    def _sweep(self, name: str, ranks: tuple[Rank, ...]) -> Sweep | None:
        word = collective_word(name)
        return sweep_of(self.probes, word, ranks, device="cpu") if word is not None else None


def sweep_of(probes: Probes, word: str, ranks: tuple[Rank, ...], device: str | None = None) -> Sweep | None:
    """What was measured of a collective (`collective_word`) with these ranks, or, if they were not, with as many others."""
    alike = [
        one
        for one in probes.sweeps
        if (one.kind, one.name, one.beside) == ("collective", word, "") and one.points and device in (None, one.device)
    ]
    exact = [one for one in alike if one.ranks == ranks]
    return next(iter(exact or [one for one in alike if len(one.ranks) == len(ranks)]), None)


@dataclass(frozen=True)
class Slowing:
    """By how much transfers slow down the work of the CPUs beside them.

    Both share the CPUs' time, caches and memory. What was measured is how much longer a backward pass takes while
    all-reduces of some sizes follow one another; that loss is taken to go with the bytes, spread evenly over a transfer.
    """

    lost: dict[Rank, tuple[np.ndarray, np.ndarray]]
    """Rank -> (bytes of a transfer, ascending; ns of work lost a byte)."""

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """None where it was not measured on all ranks of the run."""
        lost = {rank: found for rank in run.ranks if (found := _lost(run, rank)) is not None}
        return cls(lost) if lost and len(lost) == len(run.ranks) else None

    def amounts(self, dfg: Dfg) -> np.ndarray:
        """What each transfer takes from the work beside it, ns, float64[N]; 0 for other nodes."""
        amount = np.zeros(dfg.nodes)
        transfers = dfg.on(LaneKind.COMM) & dfg.of(Cls.COMMUNICATION) & (dfg.bytes > 0)
        for rank, (sizes, per_byte) in self.lost.items():
            mine = np.flatnonzero(transfers & (dfg.rank == rank))
            amount[mine] = dfg.bytes[mine] * np.interp(np.log(dfg.bytes[mine]), np.log(sizes), per_byte)
        return amount

    def slowed_ns(self, timeline: Timeline, taken_ns: np.ndarray | None = None) -> np.ndarray:
        """By how much each node takes longer for the transfers that its rank makes meanwhile, ns, float64[N]; `taken_ns` is
        as in `Scenario`."""
        dfg = timeline.dfg
        amount, slowed = self.amounts(dfg), np.zeros(dfg.nodes)
        if taken_ns is not None:
            amount = np.where(np.isnan(taken_ns), amount, taken_ns)
        work = dfg.on(LaneKind.CPU) & dfg.of(*_WORK)
        for rank in self.lost:
            moving = np.flatnonzero((amount > 0) & (dfg.rank == rank))
            nodes = np.flatnonzero(work & (dfg.rank == rank))
            if len(moving):
                until = _running_total(timeline.start_ns[moving], timeline.end_ns[moving], amount[moving])
                slowed[nodes] = np.interp(timeline.end_ns[nodes], *until) - np.interp(timeline.start_ns[nodes], *until)
        return slowed


def undisturbed(dfg: Dfg, slowed_ns: np.ndarray) -> np.ndarray:
    """What each node would take without the transfers that slowed it by so much, ns, int64[N]."""
    own = np.maximum(dfg.dur_ns - slowed_ns, _LEAST_LEFT * dfg.dur_ns)
    whole: np.ndarray = np.rint(own).astype(np.int64)
    return whole


def _lost(run: Run, rank: Rank) -> tuple[np.ndarray, np.ndarray] | None:
    """(bytes of a transfer, ns of this rank's work that it takes a byte); None where that was not measured."""
    assert run.probes is not None, "asked only where there are probes"
    passes = {
        one.beside: one
        for one in run.probes.sweeps
        if (one.kind, one.unit, one.ranks) == ("backward", "bytes", (rank,))
    }
    transfers = [
        one for one in run.probes.sweeps if (one.kind, one.beside) == ("collective", "backward") and rank in one.ranks
    ]
    if not {"", "all_reduce"} <= passes.keys() or not transfers:
        return None
    alone, beside = ({point.size: point.samples_ns for point in passes[which].points} for which in ("", "all_reduce"))
    took = {point.size: float(np.median(point.samples_ns)) for point in transfers[0].points}
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
