"""Collectives on CPU threads (gloo): what launched them, where they run, and until when calls wait for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.replay import rules
from esprof.replay.building.collectives.nodes import WorkNodes, work_nodes
from esprof.replay.building.collectives.rendezvous import RankRendezvous
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.lookup import numbered
from esprof.replay.building.node_records import NextIds, edges_of, joined
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.building.threads.cpu_threads import Chains
from esprof.replay.building.threads.layout import Works
from esprof.replay.dfg import Edge, Lane, LaneKind
from esprof.replay.launched import carried_out_as, launched_by
from esprof.run.collective_names import collective_word

_LINKS = ("link", "sends", "receives", "unmatched")
"""Roles of the lanes after those of threads: of collectives, of messages by direction, and of messages without a match."""


@dataclass(frozen=True)
class GlooWork:
    """The CPU collectives of one rank; times in ns on the rank's clock.

    Unless stated otherwise, arrays have an entry for each collective whose launching call was found, in order of calls.
    """

    lanes: tuple[Lane, ...]
    """A lane for each thread with a collective or message, and those of the rank's links (`_LINKS`)."""
    workers: int
    """Number of gloo's threads; messages are on those of the job."""
    nodes: np.ndarray
    """Nodes of all CPU collectives, also of those whose call was not found (`node_records.NODE`)."""
    call: np.ndarray
    """Row of the `c10d::` call that launched each collective."""
    thread: np.ndarray
    """Number of the thread that launched each collective."""
    launched: np.ndarray
    """When each collective was launched."""
    start: np.ndarray
    """When gloo's thread began with each collective."""
    end: np.ndarray
    """When gloo's thread noted the end of each collective."""
    first: np.ndarray
    """Node of the arrival at each collective."""
    first_start: np.ndarray
    """Recorded start of that node, ns."""
    last: np.ndarray
    """Communication node of each collective."""
    noted: np.ndarray
    """Delay from the end of each collective to when its own thread recorded that end."""
    queue: np.ndarray
    """Edges from each collective to the next one on the same gloo thread (`EDGE`)."""
    blocks: np.ndarray
    """bool: the call returns when its collective ends: it waited for it, or their threads share a core."""
    is_message: np.ndarray
    """bool: a message, on the thread that called it."""


def gloo_work(events: RankEvents, rendezvous: RankRendezvous, next_ids: NextIds) -> GlooWork:
    """The collectives that ran on CPU threads, and the calls that launched them.

    Each gloo thread is a lane of arrivals; all communication is on one more lane, the rank's link. Lanes and nodes are
    numbered from `next_ids` on.
    """
    rows = events.collectives.row
    calls = np.flatnonzero(events.ints("stream", rows) < 0)
    rows = rows[calls]
    lane, threads = numbered(events.ints("tid", rows))
    by_lane = np.argsort(lane, kind="stable")
    rows, lane, calls = rows[by_lane], lane[by_lane], calls[by_lane]
    is_message = rendezvous.silent_ns[calls] >= 0
    work = work_nodes(events, rendezvous, rows, lane, next_ids)
    link = _link_of(rendezvous, calls)
    # A rank may wait for its messages in another order than they pass.
    passed = (work.nodes["start_ns"] + work.nodes["dur_ns"])[work.last - next_ids.node]
    work = _on_links(work, np.where(is_message, passed, rendezvous.end_order[calls]), link, next_ids, len(threads))
    done = work.nodes["start_ns"] + work.nodes["dur_ns"]
    noted = events.end[rows] - done[work.last - next_ids.node]
    noted[rendezvous.is_awaited_late[calls]] = 0
    follows = np.flatnonzero((lane[1:] == lane[:-1]) & ~is_message[1:] & ~is_message[:-1])
    call, communication = _launching_calls(events, rows)
    row = rows[communication]
    returned = np.minimum(events.end[call], events.finish)
    is_long, after = returned - events.start[call] > rules.MIN_WAITING_CALL, returned - events.end[row]
    return GlooWork(
        lanes=(
            *(Lane(events.rank, LaneKind.COMM, "comm") for _ in threads),
            *(Lane(events.rank, LaneKind.COMM, role) for role in _LINKS if len(rows)),
        ),
        workers=len(np.unique(lane[~is_message])),
        nodes=work.nodes,
        call=call,
        thread=events.thread[call],
        launched=events.start[call],
        start=events.start[row],
        end=events.end[row],
        first=work.first[communication],
        first_start=work.nodes["start_ns"][work.first[communication] - next_ids.node],
        last=work.last[communication],
        noted=noted[communication],
        queue=edges_of(work.last[follows], work.first[follows + 1], Edge.LANE, noted[follows]),
        blocks=is_long & (after >= 0) & (after <= rules.MAX_SYNC_LATE) & ~is_message[communication],
        is_message=is_message[communication],
    )


def _link_of(rendezvous: RankRendezvous, calls: np.ndarray) -> np.ndarray:
    """Index in `_LINKS` of each call; -1 for a collective without a match, which stays on its thread."""
    matched, is_message = rendezvous.number[calls] >= 0, rendezvous.silent_ns[calls] >= 0
    return np.select(
        [matched & ~is_message, matched & rendezvous.receives[calls], matched, is_message],
        [_LINKS.index("link"), _LINKS.index("receives"), _LINKS.index("sends"), _LINKS.index("unmatched")],
        -1,
    )


def _on_links(work: WorkNodes, order: np.ndarray, link: np.ndarray, next_ids: NextIds, threads: int) -> WorkNodes:
    """Put all communication on the lanes of the rank's links, one collective or message after the other, by `order`.

    `link` is the index in `_LINKS` of each. Two collectives that share a link take as long together as one after the other.
    So each lasts from the end of the one before it, and their sum does not depend on how threads share them. `order`, in
    which collectives ended or messages passed, is the same on all ranks: ranks with different orders would deadlock. A
    collective that was recorded to end after a later one had ended before: other processes preempted its thread before it
    recorded the end.
    """
    nodes, moved = work.nodes.copy(), [np.zeros(0, np.int64)]
    for one in np.unique(link[link >= 0]).tolist():
        at = work.last[link == one] - next_ids.node
        at = at[np.argsort(order[link == one], kind="stable")]
        start = nodes["start_ns"][at]
        end = start + nodes["dur_ns"][at]
        # Backwards, a running minimum cuts each end to the ends of the later ones; forwards, the running maximum of earlier
        # ends is the earliest possible start.
        end = np.maximum(np.minimum.accumulate(end[::-1])[::-1], start)
        reached = np.maximum.accumulate(np.append(start.min(initial=0), end))[:-1]
        start = np.clip(reached, start, end)
        nodes["start_ns"][at], nodes["dur_ns"][at] = start, end - start
        nodes["lane"][at] = next_ids.lane + threads + one
        moved.append(at)
    # Nodes are sorted by lane: communication moves to the end. `number` is the new number of each node.
    last = np.concatenate(moved)
    new_order = np.append(np.setdiff1d(np.arange(len(nodes)), last), last)
    number = np.empty(len(nodes), np.int64)
    number[new_order] = next_ids.node + np.arange(len(nodes))
    return WorkNodes(nodes[new_order], number[work.first - next_ids.node], number[work.last - next_ids.node])


def _launching_calls(events: RankEvents, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows of `c10d::` calls, ascending; position in `rows` of the collective that each launched).

    Calls are paired by kind: a process group queues its work first in, first out.
    """
    calls = np.sort(events.threads.row[events.by_name(events.threads.row, lambda name: name.startswith("c10d::"))])
    call_kind, row_kind = _kinds(events, calls, rows)
    pairs = [np.zeros((2, 0), np.int64)]
    for kind in np.unique(row_kind).tolist():
        waiting = calls[call_kind == kind]
        communications = np.flatnonzero(row_kind == kind)
        communications = communications[np.lexsort((rows[communications], events.start[rows[communications]]))]
        chosen = launched_by(events.start[waiting], events.start[rows[communications]])
        pairs.append(np.stack([waiting[chosen[chosen >= 0]], communications[chosen >= 0]]))
    call, communication = np.concatenate(pairs, axis=1)
    order = np.argsort(call)
    return call[order], communication[order]


def _kinds(events: RankEvents, *rows: np.ndarray) -> list[np.ndarray]:
    """Kind of the collective that each row is or launches, by its name, as a number; an array for each of `rows`."""
    words: dict[str | None, int] = {}
    kind = np.zeros(len(events.texts), np.int64)
    for code in np.unique(np.concatenate([events.name[some] for some in rows])).tolist():
        word = collective_word(events.texts[code])
        kind[code] = words.setdefault(carried_out_as(word), len(words))
    return [kind[events.name[some]] for some in rows]


def works_of(gloo: GlooWork, threads: int) -> list[Works]:
    """The collectives that each of `threads` CPU threads launched, for the layout of its chain."""
    works = []
    for thread in range(threads):
        mine = np.flatnonzero(gloo.thread == thread)
        mine = mine[np.argsort(gloo.end[mine], kind="stable")]
        over, settled = np.zeros(1, np.int64), np.zeros(1, np.int64)
        works.append(Works(mine, gloo.launched[mine], gloo.end[mine], np.full(len(mine), -1), over, settled))
    return works


def launches(gloo: GlooWork, chains: Chains) -> np.ndarray:
    """Edges from each call to the collective that it launched, with this rank's hand-over latency.

    The latency is the median time from launch to start of collectives that found a gloo thread idle; others queued.
    """
    own = np.flatnonzero(~gloo.is_message)
    start, launched, thread = gloo.start[own], gloo.launched[own], gloo.thread[own]
    delay = np.maximum(start - launched, 0)
    # Before the n-th was launched, n others were; those that had not ended kept a thread busy.
    order = np.argsort(launched, kind="stable")
    ended = np.searchsorted(np.sort(gloo.end[own]), launched[order], side="right")
    idle_delays = delay[order][np.arange(len(order)) - ended < gloo.workers]
    latency = int(np.median(idle_delays)) if len(idle_delays) else 0
    return joined(
        [
            edges_of(chains.ending_by(thread, launched), gloo.first[own], Edge.LAUNCH, np.minimum(delay, latency)),
            _asked(gloo, chains),
        ]
    )


def _asked(gloo: GlooWork, chains: Chains) -> np.ndarray:
    """Edges from each call to its end of the message, which is there before the call returns."""
    at = np.flatnonzero(gloo.is_message)
    node = chains.node_of[gloo.call[at]]
    begin = gloo.first_start[at]
    return edges_of(node, gloo.first[at], Edge.LAUNCH, begin - chains.end_of(node))


def awaited(gloo: GlooWork, works: Sequence[Works], chains: Chains) -> np.ndarray:
    """Edges from collectives to where the threads that launched them wait for them."""
    work, waiter = (np.concatenate([getattr(one, column) for one in works]) for column in ("number", "waiter"))
    lag = np.minimum(chains.start_of(waiter) - gloo.end[work], 0) + gloo.noted[work]
    return edges_of(gloo.last[work], waiter, Edge.BY_TIME, lag)


def returns(gloo: GlooWork, chains: Chains) -> np.ndarray:
    """Edges from collectives to the calls that launched and waited for them."""
    node = chains.node_of[gloo.call[gloo.blocks]]
    lag = chains.start_of(node) - gloo.end[gloo.blocks] + gloo.noted[gloo.blocks]
    return edges_of(gloo.last[gloo.blocks], node, Edge.BY_TIME, lag)


def coverage(gloo: GlooWork) -> BuildCounts:
    """Number of calls that waited for the collective that they launched, all found by time."""
    blocked = int(gloo.blocks.sum())
    return BuildCounts(waits=blocked, waits_inferred=blocked)
