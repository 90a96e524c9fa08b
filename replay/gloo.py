"""Collectives on CPU threads (gloo): what issued them, where they run, and where the issuing thread waits for them."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from esprof.replay import rules
from esprof.replay.builder import GraphBuilder
from esprof.replay.collectives import Collective
from esprof.replay.dfg import Edge
from esprof.replay.gpu import add_transfer
from esprof.replay.rank_events import RankEvents
from esprof.trace.columns import collective_word
from esprof.types import Ns


@dataclass(frozen=True)
class Awaited:
    """Collectives that a thread waits for in a gap, and when the last of them was done."""

    until: Ns
    collectives: "list[Issued]"


@dataclass(frozen=True)
class Issued:
    """A collective and the call that issued it: when that was, when it ran, and its first and last node."""

    tid: int
    issued: Ns
    start: Ns
    end: Ns
    first: int
    last: int


@dataclass
class GlooWork:
    """The CPU collectives of one rank. `issues` maps the rows of the `c10d::` calls to what they issued."""

    issues: dict[int, Issued] = field(default_factory=dict)
    pending: dict[int, list[Issued]] = field(default_factory=lambda: defaultdict(list))
    """By issuing thread, what it has not yet been seen to wait for."""

    def awaited(self, tid: int, begin: Ns, until: Ns, *, after_backward: bool) -> Awaited | None:
        """What thread `tid` waits for in its gap [begin, until], if it does.

        The profiler does not record `Work.wait`. A gap in which an outstanding collective ends is that wait when it comes
        right after the backward pass (DDP waits for all buckets there) or when the thread goes on soon after that end.
        The waiter may run before the transfer's own thread, which has to be scheduled again, has noted its end.
        """
        early = rules.WAKE_UP if after_backward or until - begin > 2 * rules.WAKE_UP else rules.SYNC_EARLY
        mine = [work for work in self.pending[tid] if work.issued <= begin and work.end <= until + early]
        ended_inside = [work for work in mine if work.end > begin]
        if not mine or (not ended_inside and not after_backward):
            return None
        moment = min(max((work.end for work in ended_inside), default=begin), until)
        soon = until - moment <= max(rules.WAKE_UP, (until - begin) // 2)
        if not after_backward and not soon:
            return None
        self.pending[tid] = [work for work in self.pending[tid] if work not in mine]
        return Awaited(moment, mine)


def add_gloo_work(
    builder: GraphBuilder, events: RankEvents, matched: dict[int, Collective], joins: dict[int, int]
) -> GlooWork:
    """Add the collectives that ran on CPU threads, each thread a lane, and find the calls that issued them."""
    work = GlooWork()
    rows = [row for row, kind in enumerate(events.kind) if kind == "collective" and events.stream[row] < 0]
    lanes: dict[int, int] = {}
    nodes = {}
    for row in rows:
        tid = events.tid[row]
        if tid not in lanes:
            lanes[tid] = builder.add_lane(events.rank, "comm", "comm")
        nodes[row] = add_transfer(builder, lanes[tid], events, row, matched.get(row), joins)
    for call, row in _issuing_calls(events, rows).items():
        issued = Issued(events.tid[call], events.start[call], events.start[row], events.end[row], *nodes[row])
        work.issues[call] = issued
        work.pending[issued.tid].append(issued)
    return work


def _issuing_calls(events: RankEvents, rows: list[int]) -> dict[int, int]:
    """Row of each `c10d::` call -> row of its transfer.

    A process group queues its work first in, first out, so per kind of collective the order of issue is the order of
    start. Paired from the end, because the window may open between a call and its transfer.
    """
    calls: dict[str | None, list[int]] = defaultdict(list)
    for row, name in enumerate(events.name):
        if name.startswith("c10d::") and events.kind[row] == "op":
            calls[collective_word(name)].append(row)
    issues = {}
    for row in sorted(rows, key=lambda row: (events.start[row], row), reverse=True):
        waiting = calls[collective_word(events.name[row])]
        while waiting and events.start[waiting[-1]] > events.start[row]:
            waiting.pop()
        if waiting:
            issues[waiting.pop()] = row
    return dict(sorted(issues.items()))


def link_issues(builder: GraphBuilder, work: GlooWork, lane_of: dict[int, int]) -> None:
    """Tie each transfer to the call that issued it, with the hand-over latency that this rank shows."""
    found = list(work.issues.values())
    latency = _latency(found, threads=len({builder.lane[issued.first] for issued in found}))
    for issued in found:
        lane = lane_of.get(issued.tid)
        source = builder.ending_by(lane, issued.issued) if lane is not None else None
        if source is not None:
            builder.link(source, issued.first, Edge.LAUNCH, min(max(0, issued.start - issued.issued), latency))


def _latency(found: list[Issued], threads: int) -> Ns:
    """Median time from issue to start, of collectives that found a thread idle: the others waited for one in the queue."""
    in_order = sorted(found, key=lambda issued: issued.issued)
    ends = sorted(issued.end for issued in found)
    delays = [
        max(0, issued.start - issued.issued)
        for number, issued in enumerate(in_order)
        if number - bisect_right(ends, issued.issued) < threads
    ]
    return int(median(delays)) if delays else 0
