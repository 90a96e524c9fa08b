"""EST steps of an elastic job in a graph: their cost on each rank, and the graph with ESTs on other ranks.

A rank runs its ESTs one after the other. The gradients of the last EST are sent during its backward pass, so the last one
is distinguished from the others, which are alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from esprof.core.assignment import Assignment
from esprof.core.tree import cover
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.communication.links import RecordedLinks, link_share
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.graph.selections import HOST_WORK
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Run

_EXCHANGE = "all_to_all"
"""The collective that sends partial sums: bytes in proportion to the whole subtrees of the rank."""

_GATHER = "all_gather"
"""The collective that sends encoded gradients, or sums of shards."""

_MIN_SHARE_OF_LARGEST = 1 / 64
"""Least size of a collective that carries gradients, as a share of the largest one in bytes."""

_MAX_DIFFERENCE = 0.1
"""Ranks whose times differ by less than this share arrive at about the same time: it is within the scatter of steps."""


_ADDS = ("reduce", "stage")
"""Operations of the training thread that add up gradients."""


@dataclass(frozen=True)
class EstStepCost:
    """Mean times of one rank in the steady-state steps, ns."""

    est_ns: float
    """Time of an EST that is not the rank's last."""
    last_ns: float
    """Time of the rank's last EST, without waiting."""
    update_ns: float
    """Time of the rest of a step, without waiting."""
    is_measured: bool
    """Whether `est_ns` was measured on this rank. For a rank with one EST, its ratio to `last_ns` is assumed to be that of
    the other ranks, or 1. For a rank without ESTs, the ratio of both to `update_ns` is assumed to be that of the others."""

    def of(self, ests: int) -> float:
        """Time of a step with this number of ESTs, ns."""
        return self.update_ns + (self.last_ns + (ests - 1) * self.est_ns if ests else 0.0)


@dataclass(frozen=True)
class EstLoad:
    """Assignment of ESTs to ranks in the steady-state steps of a graph, and its cost."""

    dfg: Dfg
    steps: tuple[int, ...]
    assignment: Assignment
    est: np.ndarray
    """int32[N], EST of each node on a main thread; -1 for nodes of no EST."""
    probed: ProbedCollectives | None
    """Measured collectives of the job, if any."""

    @classmethod
    def of(cls, run: Run, dfg: Dfg, steps: Sequence[int]) -> "EstLoad":
        """Raises Declined if the run is not of an elastic job, or ESTs moved in these steps."""
        est = np.full(dfg.nodes, -1, np.int32)
        ran: list[tuple[int, ...]] = []
        for rank in dfg.marks.ranks:
            nodes = _on_main(dfg, rank)
            est[nodes] = _est_of(run, dfg, nodes, rank)
            mine = est[nodes][np.isin(dfg.step[nodes], steps)]
            each = {
                tuple(np.unique(est[nodes][(dfg.step[nodes] == step) & (est[nodes] >= 0)]).tolist()) for step in steps
            }
            if len(each) > 1:
                raise Declined("ESTs moved between ranks in these steps")
            ran.append(tuple(np.unique(mine[mine >= 0]).tolist()))
        if not any(ran):
            raise Declined(
                "this run does not show which rank ran which EST: only an elastic job records that "
                "(ElasticTrainer(telemetry=RUN))"
            )
        if run.missing_ranks:
            raise Declined("ranks of the job are missing from the run")
        return cls(dfg, tuple(steps), Assignment(tuple(ran)), est, ProbedCollectives.of(run))

    @cached_property
    def _last(self) -> np.ndarray:
        """bool[N], mask of the nodes of each rank's last EST."""
        last = np.array([max(ests, default=-2) for ests in self.assignment.ests], np.int32)
        position = np.zeros(max(self.dfg.marks.ranks) + 2, np.int32)
        position[list(self.dfg.marks.ranks)] = np.arange(len(self.dfg.marks.ranks))
        found: np.ndarray = (self.est >= 0) & (self.est == last[position[self.dfg.rank]])
        return found

    @cached_property
    def costs(self) -> dict[Rank, EstStepCost]:
        """Costs by rank. Raises Declined if a rank ran no EST and its update times do not determine the cost of one."""
        known = {rank: self._measured(rank) for rank in self.dfg.marks.ranks}
        ran = [known[rank] for rank, ests in zip(self.dfg.marks.ranks, self.assignment.ests, strict=True) if ests]
        relation = median([cost.est_ns / cost.last_ns for cost in ran if cost.is_measured] or [1.0])
        pace = median(cost.last_ns / cost.update_ns if cost.update_ns else 0.0 for cost in ran)
        found = {}
        for rank, cost in known.items():
            last = cost.last_ns or cost.update_ns * pace
            if not last:
                raise Declined(f"rank {rank} ran no EST, so the cost of one there is unknown")
            found[rank] = cost if cost.is_measured else replace(cost, last_ns=last, est_ns=last * relation)
        return found

    def _measured(self, rank: Rank) -> EstStepCost:
        ests = self.assignment.ests[self.dfg.marks.ranks.index(rank)]
        dfg = self.dfg
        works = self._on_steady(rank) & dfg.of(*HOST_WORK) & dfg.on(LaneKind.CPU)
        last = self._total(works & self._last)
        others = self._total(works & (self.est >= 0) & ~self._last)
        update = self._total(works & (self.est < 0))
        return EstStepCost(others / max(1, len(ests) - 1), last, update, is_measured=len(ests) > 1)

    def _total(self, nodes: np.ndarray) -> float:
        """Mean time of these nodes in a step, ns."""
        return float(self.dfg.dur_ns[nodes].sum()) / len(self.steps)

    def _on_steady(self, rank: Rank) -> np.ndarray:
        mask: np.ndarray = (self.dfg.lane == self.dfg.main_lane(rank)) & np.isin(self.dfg.step, self.steps)
        return mask

    def moved(self, to: Assignment, longer: float | None = None) -> Dfg:
        """The graph with the ESTs assigned by `to`. Raises Declined if it does not fit the job.

        The time of the ESTs before a rank's last one scales with their number, and that of communication with its bytes. If
        `longer` was measured, it is the ratio of the new to the recorded duration of gradient communication instead.
        """
        if (to.n_est, to.world) != (self.assignment.n_est, self.assignment.world):
            raise Declined(
                f"the plan has {to.n_est} ESTs on {to.world} ranks; the run has {self.assignment.n_est} ESTs on "
                f"{self.assignment.world} ranks"
            )
        dfg = self.dfg
        dur, residual = dfg.dur_ns.astype(float), dfg.residual_ns.copy()
        for position, rank in enumerate(dfg.marks.ranks):
            before, after = len(self.assignment.ests[position]), len(to.ests[position])
            on_rank = dfg.lane == dfg.main_lane(rank)
            first = on_rank & (self.est >= 0) & ~self._last
            cost = self.costs[rank]
            if before > 1:
                dur[first] *= max(0, after - 1) / (before - 1)
            elif before and after > 1:
                dur[self._first(on_rank & self._last)] += cost.est_ns * (after - 1)
            elif not before and after:
                dur[self._first(on_rank)] += cost.last_ns + cost.est_ns * (after - 1)
            if not after:
                dur[on_rank & self._last] = 0
                residual[on_rank & (self.est >= 0)] = 0
        collectives = dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0)
        if longer is None:
            dur[collectives] *= self._communication_ratio(to)[collectives]
        else:
            dur[collectives & carries_gradients(dfg)] *= longer
        return replace(dfg, dur_ns=np.rint(dur).astype(np.int64), residual_ns=residual)

    def _communication_ratio(self, to: Assignment) -> np.ndarray:
        """Ratio of the new to the recorded duration of communication, float64[N].

        The link's share scales with the bytes, the CPUs' share with the speed of the rank that arrives last.
        """
        dfg = self.dfg
        of_link = link_share(dfg, RecordedLinks.of(dfg), self.probed).share
        sums = dfg.named(lambda name: _EXCHANGE in name)
        carried = np.where(sums, _most_carried(to) / _most_carried(self.assignment), 1.0)
        if not sums.any():  # encoded gradients: each rank sends as many as the rank with most ESTs
            gathers = dfg.named(lambda name: _GATHER in name)
            carried = np.where(gathers, _most_ests(to) / _most_ests(self.assignment), 1.0)
        by_cpus = np.where(dfg.on(LaneKind.COMM), self._pace_ns(to) / self._pace_ns(self.assignment), 1.0)
        longer: np.ndarray = of_link * carried + (1 - of_link) * by_cpus
        return longer

    def _pace_ns(self, assignment: Assignment) -> float:
        """Time of an EST on the rank that arrives last, ns; on the slowest if several arrive at about the same time."""
        costs = [self.costs[rank] for rank in self.dfg.marks.ranks]
        busy = [cost.of(len(ests)) for cost, ests in zip(costs, assignment.ests, strict=True)]
        return max(cost.last_ns for cost, ns in zip(costs, busy, strict=True) if ns > (1 - _MAX_DIFFERENCE) * max(busy))

    def _first(self, mask: np.ndarray) -> np.ndarray:
        """The first of these nodes in each step that is work and has a duration."""
        nodes = np.flatnonzero(mask & self.dfg.of(*HOST_WORK) & (self.dfg.dur_ns > 0))
        nodes = nodes[np.argsort(self.dfg.recorded_ns[nodes], kind="stable")]
        _, first = np.unique(self.dfg.step[nodes], return_index=True)
        found: np.ndarray = nodes[first]
        return found


def has_est_records(run: Run) -> bool:
    """Whether the run was recorded by an elastic job, whose events name the ESTs."""
    return any((run.events(rank).ints("est") >= 0).any() for rank in run.ranks)


def _on_main(dfg: Dfg, rank: Rank) -> np.ndarray:
    """Ids of the nodes of the rank's main thread, in order of execution."""
    nodes = np.flatnonzero(dfg.lane == dfg.main_lane(rank))
    found: np.ndarray = nodes[np.argsort(dfg.recorded_ns[nodes], kind="stable")]
    return found


def _est_of(run: Run, dfg: Dfg, nodes: np.ndarray, rank: Rank) -> np.ndarray:
    """EST of each of these nodes: the EST of its event; a gap has that of the previous event in the same step."""
    events, event = run.events(rank).ints("est"), dfg.event[nodes]
    # Position of the latest node, up to and including each, that has an event.
    at = np.maximum.accumulate(np.where(event >= 0, np.arange(len(nodes)), 0))
    is_known = (event[at] >= 0) & (dfg.step[nodes][at] == dfg.step[nodes])
    found: np.ndarray = np.where(is_known, events[np.maximum(event[at], 0)], -1).astype(np.int32)
    return found


def carries_gradients(dfg: Dfg) -> np.ndarray:
    """bool[N], mask of the communication of gradients; other collectives carry losses, buffers, or hashes."""
    sends = dfg.named(lambda name: _EXCHANGE in name or _GATHER in name)
    found: np.ndarray = dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & sends
    large: np.ndarray = found & (dfg.bytes >= _MIN_SHARE_OF_LARGEST * dfg.bytes[found].max(initial=0))
    return large


def _most_ests(assignment: Assignment) -> int:
    return max(map(len, assignment.ests))


def _most_carried(assignment: Assignment) -> float:
    """Number of shards that the busiest rank sends or receives in the exchange of partial sums.

    A rank sends to each other rank one shard of each of its whole subtrees, and receives one of each subtree of the others.
    """
    nodes = [len(cover(ests, assignment.n_est)) for ests in assignment.ests]
    sent = [count * (assignment.world - 1) for count in nodes]
    received = [sum(nodes) - count for count in nodes]
    return float(max(1, *sent, *received))


def exchanged(est_load: EstLoad, took_ns: float) -> Dfg:
    """The graph in which averaging the gradients takes `took_ns`, beginning when the last rank has ended its EST steps.

    Encoded gradients are sent after all EST steps of a rank. The recorded cost of averaging is removed.
    """
    dfg = est_load.dfg
    dur, residual = dfg.dur_ns.copy(), dfg.residual_ns.copy()
    sends = carries_gradients(dfg)
    dur[sends], residual[sends] = 0, 0
    is_adding = dfg.named(_ADDS.__contains__) & dfg.on(LaneKind.CPU)
    for rank in dfg.marks.ranks:
        adding = np.flatnonzero(is_adding & (dfg.lane == dfg.main_lane(rank)))
        dur[adding] = 0
        last = {int(dfg.step[node]): int(node) for node in adding[np.argsort(dfg.recorded_ns[adding], kind="stable")]}
        dur[list(last.values())] = round(took_ns)
    return replace(dfg, dur_ns=dur, residual_ns=residual)
