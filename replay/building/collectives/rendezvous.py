"""Matched collectives across ranks: clock offsets, waiting ranks, and the split into waiting and communication."""

from dataclasses import dataclass

import numpy as np

from esprof.replay import rules
from esprof.replay.building.collectives.matching import CollectiveCalls, is_partial
from esprof.replay.building.collectives.transfers import transfers
from esprof.run.clocks.by_collectives import Clocks, CommunicationFit, MatchedCalls, align_hosts, fit_communication
from esprof.run.run import Run


@dataclass(frozen=True)
class RankRendezvous:
    """Collective calls of one rank, as matched across ranks; one entry per call of `RankEvents.collectives`."""

    number: np.ndarray
    """Number of the collective, the same on all ranks; -1 where it was not matched."""
    communication_ns: np.ndarray
    """Duration of the call after its wait, ns; 0 where the call was not matched."""
    end_order: np.ndarray
    """Position of the collective in the run, sorted by its first end on any rank; 0 where the call was not matched."""
    waits: np.ndarray
    """bool: the call waits for other ranks. A sender may leave before they arrive."""
    awaited: np.ndarray
    """bool: other ranks wait for the call."""
    shared: np.ndarray
    """bool: the collective has other members, so an unmatched call may include waiting."""
    late_ns: np.ndarray
    """For a message over gloo, the time from its transfer to the end of its event, ns; 0 for other calls."""
    is_awaited_late: np.ndarray
    """bool: the message had arrived before its rank waited for it."""
    receives: np.ndarray
    """bool: the call's rank needs data of other ranks."""
    silent_ns: np.ndarray
    """See `CollectiveCalls.silent_ns`."""


@dataclass(frozen=True)
class Rendezvous:
    """The matched collectives of a run."""

    clocks: Clocks
    communication: CommunicationFit
    """Durations of the collectives that no rank leaves before all have arrived."""
    by_rank: list[RankRendezvous]
    """Calls of each rank, in the order of the run's ranks."""
    arrival_ns: np.ndarray
    """Arrival of the last awaited rank at each collective, ns on the job's clock, shape (collectives,). Estimated where
    that rank is missing."""
    early: int
    """Number of calls that ended before an awaited rank arrived: a sign of unaligned clocks."""


def find_rendezvous(run: Run, calls: CollectiveCalls, number: np.ndarray) -> Rendezvous:
    """Align the clocks by matched collectives, and separate waiting from communication."""
    at = np.flatnonzero(number >= 0)
    rendezvous, both_ways = number[at], (calls.sends & calls.receives)[at]
    shown = MatchedCalls(np.array(run.ranks)[calls.rank[at]], rendezvous, calls.start_ns[at], calls.end_ns[at])
    ranks = {rank: run.rank(rank) for rank in run.ranks}
    clocks = align_hosts(
        _where(both_ways, shown),
        {rank: meta.host for rank, meta in ranks.items()},
        {rank: meta.clock_residual_ns for rank, meta in ranks.items()},
    )
    aligned = shown.on(clocks)
    is_message = calls.silent_ns[at] >= 0
    waits, awaited = _roles(calls.sends[at], calls.receives[at], aligned)
    waits, awaited = waits | is_message, awaited | is_message
    arrival_ns = _latest(rendezvous[awaited], aligned.start_ns[awaited])
    begin = np.where(waits, np.maximum(arrival_ns[rendezvous], aligned.start_ns), aligned.start_ns)
    communication_ns, found = np.maximum(aligned.end_ns - begin, 0), fit_communication(_where(both_ways, aligned))
    if len(clocks.hosts) > 1:  # ranks of one host share a clock, so recorded times need no correction
        communication_ns[both_ways] = found.ns
    passed = transfers(aligned, calls.silent_ns[at], calls.receives[at], calls.bytes[at])
    communication_ns[is_message] = passed.took_ns[is_message]
    lacking = is_partial(calls, number)[at] & both_ways
    late_ns = _late_ns(rendezvous, communication_ns, np.where(lacking, calls.alike[at], -1))
    arrival_ns += late_ns
    communication_ns = np.maximum(communication_ns - late_ns[rendezvous], 0)
    # Once one rank has ended a collective, all have its data, but others may be preempted before they record the end. The
    # maximum of the negated ends is the earliest end; argsort of argsort is the rank of each among all.
    end_order = np.argsort(np.argsort(-_latest(rendezvous, -aligned.end_ns), kind="stable"))[rendezvous]
    matched = (communication_ns, end_order, waits, awaited)
    columns = [_spread(at, number, column) for column in (*matched, passed.late_ns, passed.is_awaited_late)]
    columns = [number, *columns[:4], calls.members != 1, *columns[4:], calls.receives, calls.silent_ns]
    splits = np.searchsorted(calls.rank, np.arange(1, len(run.ranks)))
    of_ranks = zip(*(np.split(column, splits) for column in columns), strict=True)
    early = int((aligned.end_ns < begin).sum())
    return Rendezvous(clocks, found, [RankRendezvous(*mine) for mine in of_ranks], arrival_ns, early)


def _where(mask: np.ndarray, calls: MatchedCalls) -> MatchedCalls:
    return MatchedCalls(calls.rank[mask], calls.collective[mask], calls.start_ns[mask], calls.end_ns[mask])


def _latest(number: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Latest moment of each number, ns; `number` is the number of each moment, from 0 on."""
    latest = np.full(number.max(initial=-1) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, number, moment)
    return latest


def _late_ns(number: np.ndarray, communication_ns: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Time that each collective waited for a missing member after all others had arrived, ns, shape (collectives,).

    `number` is the collective of each call, and `alike` is -1 where no member is missing. The time since the last recorded
    arrival is an upper bound of the communication, and usually tight. A collective that takes much longer than the median of
    similar collectives has waited.
    """
    took, of = -_latest(number, -communication_ns), _latest(number, alike)
    order = np.lexsort((took, of))
    names, first, count = np.unique(of[order], return_index=True, return_counts=True)
    usual = took[order][first + (count - 1) // 2][np.searchsorted(names, of)]
    waited: np.ndarray = (of >= 0) & (took > rules.MIN_ABSENT_RATIO * usual)
    return np.where(waited, took - usual, 0)


def _spread(at: np.ndarray, like: np.ndarray, values: np.ndarray) -> np.ndarray:
    """An array of the length of `like` with `values` at the indices `at` and 0 elsewhere."""
    spread = np.zeros(len(like), values.dtype)
    spread[at] = values
    return spread


def _roles(sends: np.ndarray, receives: np.ndarray, calls: MatchedCalls) -> tuple[np.ndarray, np.ndarray]:
    """(whether it waits for others, whether others wait for it) for each call.

    A rank that only sends may leave before the others arrive: then it has not waited, and only they wait for it. If it was
    still in the call when the last rank arrived, as with a message too long to be buffered, all ranks wait for each other.
    """
    last = _latest(calls.collective, calls.start_ns)[calls.collective]
    waits = receives | (calls.end_ns >= last)
    together = np.zeros(calls.collective.max(initial=-1) + 1, bool)
    together[calls.collective[waits & ~receives]] = True
    return waits, sends | together[calls.collective]
