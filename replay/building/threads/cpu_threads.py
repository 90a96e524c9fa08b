"""CPU threads of a rank as chains of nodes, and the edges between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from esprof.replay import rules
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.lookup import Sequences
from esprof.replay.building.node_names import Text, plain
from esprof.replay.building.node_records import NODE, NextIds, edges_of, joined
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.building.threads.layout import (
    MAX_NODES_PER_ITEM,
    MAX_NODES_PER_PAUSE,
    BackwardNames,
    ChainThread,
    Outline,
    ThreadRows,
    Works,
    lay_out,
    outline,
)
from esprof.replay.building.threads.pauses import pauses
from esprof.replay.dfg import Edge, Lane, LaneKind

_ENGINE = "autograd::engine"
"""Prefix of the names of autograd nodes."""

_BACKWARD = ("Backward", "AccumulateGrad", "c10d::", "copy_bucket_to_grad")
"""Each occurs in names of operations of a backward pass."""


@dataclass(frozen=True)
class Chains:
    """The threads of a rank as chains of nodes, sorted by thread and numbered from `base`."""

    lanes: tuple[Lane, ...]
    nodes: np.ndarray
    base: int
    thread: np.ndarray
    """Number of the thread of each node, ascending."""
    node_of: np.ndarray
    """Node of each row of the event table that is a call with a node of its own; -1 for all other rows."""
    boundaries: np.ndarray
    """Moments at which steps begin or end, ns, ascending."""
    boundary_node: np.ndarray
    """Node of each of `boundaries` on the main thread; -1 if the boundary lies inside a call."""

    @cached_property
    def _by_end(self) -> Sequences:
        ends = self.nodes["start_ns"] + self.nodes["dur_ns"]
        return Sequences(self.thread, ends, int(ends.min()))

    def ending_by(self, thread: np.ndarray | int, moment: np.ndarray) -> np.ndarray:
        """The last node of each thread that ends at or before a moment (ns); -1 where there is none."""
        at = self._by_end.last(thread, moment)
        return np.where(at >= 0, self.base + at, -1)

    def start_of(self, nodes: np.ndarray) -> np.ndarray:
        """Recorded start of each node's own work, ns; arbitrary for -1."""
        starts: np.ndarray = self.nodes["start_ns"][np.maximum(nodes - self.base, 0)]
        return starts

    def end_of(self, nodes: np.ndarray) -> np.ndarray:
        """Recorded end of each node, ns; arbitrary for -1."""
        ends: np.ndarray = self.start_of(nodes) + self.nodes["dur_ns"][np.maximum(nodes - self.base, 0)]
        return ends

    def is_named(self, nodes: np.ndarray, text: Text) -> np.ndarray:
        """Mask of the nodes whose name is exactly `text`; False for -1."""
        mask: np.ndarray = (nodes >= 0) & (self.nodes["name"][np.maximum(nodes - self.base, 0)] == plain(text))
        return mask

    def before(self, nodes: np.ndarray) -> np.ndarray:
        """The node before each on its thread; -1 for the first, and for -1."""
        at = np.maximum(nodes - self.base, 0)
        return np.where((at > 0) & (self.thread[at] == self.thread[at - 1]), nodes - 1, -1)


def chains(events: RankEvents, rows: ThreadRows, works: Sequence[Works], next_ids: NextIds) -> Chains:
    """The threads of a rank; lanes and nodes are numbered from `next_ids`.

    `rows` classifies each row of the event table. `works` are the collectives that each thread launched to gloo's threads;
    their `waiter` is filled here.
    """
    roles = events.threads.roles
    backward = BackwardNames(
        belongs=events.by_text(events.threads.row, _is_backward),
        continues=events.by_text(events.threads.row, lambda name: name.startswith(_ENGINE)),
    )
    boundaries = np.unique([events.step_start, events.step_end])
    node_of, node_at = np.full(len(events.start), -1), np.full(len(boundaries), -1)
    chunks: list[np.ndarray] = []
    for number, thread in enumerate(_threads(events, boundaries, works)):
        items = _outline(thread, rows)
        most = MAX_NODES_PER_ITEM * (len(items.row) + 1) + MAX_NODES_PER_PAUSE * len(thread.pause_begin)
        nodes = np.zeros(most, NODE)
        base = next_ids.node + sum(map(len, chunks))
        count = lay_out(items, thread, rows, works[number], backward, base, nodes, node_of, node_at)
        chunks.append(nodes[:count])
    nodes, thread_of = joined(chunks), np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in chunks])
    nodes["lane"], nodes["collective"], nodes["bytes"] = next_ids.lane + thread_of, -1, -1
    nodes["step"] = events.step_at(nodes["start_ns"])
    lanes = tuple(Lane(events.rank, LaneKind.CPU, role) for role in roles)
    return Chains(lanes, nodes, next_ids.node, thread_of, node_of, boundaries, node_at)


def _is_backward(name: str) -> bool:
    return name.startswith(_ENGINE) or any(text in name for text in _BACKWARD)


def _threads(events: RankEvents, boundaries: np.ndarray, works: Sequence[Works]) -> list[ChainThread]:
    """The rank's threads as input to `layout`."""
    threads = events.threads
    rows = [threads.row[begin:end] for begin, end in pairwise(threads.ptr.tolist())]
    partner = {threads.main: threads.autograd, threads.autograd: threads.main}
    nothing = np.zeros(0, np.int64)
    found = []
    for number, row in enumerate(rows):
        is_main, other = number == threads.main, partner.get(number, -1)
        pause_begin, pause_end = pauses(events, row, works[number])
        found.append(
            ChainThread(
                row=row,
                # The start of other threads is unknown, so each begins with its first item.
                begin=events.begin if is_main or other >= 0 else int(events.start[row[0]]),
                finish=events.finish,
                is_main=is_main,
                boundaries=boundaries if is_main else nothing,
                # Operations nest, so their ends do not ascend.
                partner=np.maximum.accumulate(events.end[rows[other]]) if other >= 0 else nothing,
                pause_begin=pause_begin,
                pause_end=pause_end,
            )
        )
    return found


def _outline(thread: ChainThread, rows: ThreadRows) -> Outline:
    most = len(thread.row) + len(thread.boundaries)
    out = Outline(
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.bool_)
    )
    count = outline(thread, rows, out)
    return Outline(*(column[:count] for column in out))


def hand_overs(events: RankEvents, chains: Chains) -> np.ndarray:
    """Edges between main and autograd thread: from the end of work on one to the wait for that work on the other."""
    threads = events.threads
    waiting = np.flatnonzero(chains.nodes["name"] == plain(Text.HAND_OVER))
    other = np.where(chains.thread[waiting] == threads.main, threads.autograd, threads.main)
    source = chains.ending_by(other, chains.nodes["start_ns"][waiting])
    return edges_of(source, chains.base + waiting, Edge.THREAD)


def step_marks(events: RankEvents, chains: Chains) -> tuple[np.ndarray, np.ndarray]:
    """(node at which each step begins, node at which it ends), each of shape (steps,).

    If a boundary lies inside a call, it is the last node before the boundary, or else the first of the main thread.
    """
    main = events.threads.main
    known = chains.boundary_node
    before = chains.ending_by(main, chains.boundaries)
    node = np.where(
        known >= 0, known, np.where(before >= 0, before, chains.base + np.searchsorted(chains.thread, main))
    )
    first, last = (
        node[np.searchsorted(chains.boundaries, moments)] for moments in (events.step_start, events.step_end)
    )
    return first, last


def coverage(chains: Chains) -> BuildCounts:
    """Count the gaps that are waits: long waits for collectives, and waits hidden before calls."""
    # A wait node has no duration; the wait lasted from the end of the previous node to the node's own end.
    nodes = chains.base + np.arange(len(chains.nodes))
    ends = chains.nodes["start_ns"] + chains.nodes["dur_ns"]
    long = np.diff(ends, prepend=ends[:1]) > rules.MIN_WAITING_CALL
    for_collectives = chains.is_named(nodes, Text.WAIT_FOR_COLLECTIVES) & long
    waits = int(for_collectives.sum() + chains.is_named(nodes, Text.HIDDEN_WAIT).sum())
    return BuildCounts(waits=waits, waits_inferred=waits)
