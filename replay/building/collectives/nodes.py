"""Nodes for work on streams and communication threads: one per row, two for a matched collective."""

from dataclasses import dataclass

import numpy as np

from esprof.replay.building.collectives.rendezvous import RankRendezvous
from esprof.replay.building.lookup import entries
from esprof.replay.building.node_names import NameForm, packed
from esprof.replay.building.node_records import NextIds, nodes_of
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.dfg import Cls
from esprof.replay.runtime_names import copies_across_bus


@dataclass(frozen=True)
class WorkNodes:
    """Rows as nodes (`NODE`): two for a matched collective (arrival and communication), one for other work."""

    nodes: np.ndarray
    first: np.ndarray
    """Number of the first node of each row; for a matched collective its arrival."""
    last: np.ndarray
    """Number of the last node of each row; for a matched collective its communication."""


def work_nodes(
    events: RankEvents, rendezvous: RankRendezvous, rows: np.ndarray, lane: np.ndarray, next_ids: NextIds
) -> WorkNodes:
    """Nodes of `rows`, which are sorted by lane and order of execution; lanes and nodes are numbered from `next_ids`.

    A matched collective is an arrival of zero duration and a communication node; the join of all ranks will be between them.
    The time from arrival to join is waiting (docs/explanation/replay.md §2; Lumos, MLSys 2025). An unmatched collective is
    one node: its share of waiting is unknown, so it counts as unexplained if it has peers.
    """
    # Position of each row among the collectives, whose rows ascend; -1 for other work.
    calls = events.collectives.row
    call = np.minimum(np.searchsorted(calls, rows), len(calls) - 1)
    call = np.where(entries(calls, call, -1) == rows, call, -1)
    number = entries(rendezvous.number, call, -1)
    matched = number >= 0
    unexplained = entries(rendezvous.shared, call, False) & ~matched
    # The running sum of the rows' node counts (2 for matched collectives) is the position after each row's last node.
    last = np.cumsum(1 + matched) - 1
    of = np.repeat(np.arange(len(rows)), 1 + matched)  # position in `rows` of each node
    is_arrival = np.zeros(len(of), bool)
    is_arrival[last[matched] - 1] = True
    start, name = events.start[rows], events.name[rows]
    end, silent = events.end[rows] - entries(rendezvous.late_ns, call, 0), entries(rendezvous.silent_ns, call, -1)
    # Of a message without a match only the wait is known.
    start = np.where(~matched & (silent >= 0), end - silent, start)
    begin = np.where(matched, end - entries(rendezvous.communication_ns, call, 0), start)
    copies = events.by_name(rows, copies_across_bus)
    cls = np.select([unexplained, call >= 0, copies], [Cls.RESIDUAL, Cls.COMMUNICATION, Cls.COPY], Cls.COMPUTE)
    nodes = nodes_of(
        len(of),
        start_ns=np.where(is_arrival, start[of], begin[of]),
        dur_ns=np.where(is_arrival, 0, (end - begin)[of]),
        name=np.where(is_arrival, packed(NameForm.ARRIVE, name)[of], packed(NameForm.PLAIN, name)[of]),
        bytes=np.where(is_arrival, -1, entries(events.collectives.bytes, call, -1)[of]),
        lane=next_ids.lane + lane[of],
        step=events.launched_in(rows)[of],
        event=np.where(is_arrival | (rows >= events.recorded)[of], -1, rows[of]),
        collective=number[of],
        has_join_edge=np.where(
            is_arrival, entries(rendezvous.awaited, call, False)[of], entries(rendezvous.waits, call, False)[of]
        ),
        cls=np.where(is_arrival, Cls.WAIT, cls[of]),
    )
    return WorkNodes(nodes, next_ids.node + last - matched, next_ids.node + last)
