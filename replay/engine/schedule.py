"""List scheduling: in which order nodes run on a lane, where the edges of a graph leave that open.

After an edit that adds work to a lane, or moves work there, the recorded order of the lane does not hold any more. Then each
lane that is free takes, of the nodes that are ready, the one with the earliest recorded start. The order that results is
frozen into edges, and replay goes on as a longest path, which is some forty times as fast.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled_in_place
from esprof.core.errors import InputError
from esprof.replay.dfg import Dfg, Edge, StepMarks
from esprof.replay.engine.longest_path import ready, unsigned

_NEVER_NS = 2**62
_LANE_EDGE = int(Edge.LANE)
_MAX_LAG_NS = 2**31 - 1
_LANE_STATE = np.dtype(
    [
        ("first", np.int64),  # where the lane's two heaps begin in `_ListState.coming` and in `_ListState.waiting`
        ("coming", np.int64),  # how many nodes are in its heap in `_ListState.coming`
        ("waiting", np.int64),  # how many nodes are in its heap in `_ListState.waiting`
        ("free", np.int64),  # when the lane is done with all nodes that it has started, ns
        ("next_start_ns", np.int64),  # when the lane can start its next node, ns; _NEVER_NS while none is queued
    ]
)


@dataclass(frozen=True)
class Schedule:
    """When the nodes of a graph run. N nodes."""

    order: np.ndarray
    """Node ids in the order in which they were started, uint32[N]: a topological order."""
    start_ns: np.ndarray
    """Start of each node, int64[N], ns since the graph's `t0_ns`."""


class _Edges(NamedTuple):
    """Predecessors of nodes in CSR form."""

    ptr: np.ndarray
    idx: np.ndarray
    lag: np.ndarray
    kind: np.ndarray


class _ListState(NamedTuple):
    """A schedule under way. N nodes, L lanes (a power of two); times in ns."""

    delay: np.ndarray
    """How long a node takes once it has its lane, int64[N]."""
    recorded: np.ndarray
    """Recorded start of each node, int64[N]: of the nodes that are ready, a lane takes the one with the earliest."""
    lane: np.ndarray
    """Lane of each node, int32[N]; below 0 for a node that needs none."""
    before: _Edges
    """The predecessors of each node."""
    next_ptr: np.ndarray
    """CSR offsets of the followers, uint32[N + 1]: those of node n are next_idx[next_ptr[n]:next_ptr[n + 1]]."""
    next_idx: np.ndarray
    """Followers of the nodes, node by node and ascending, uint32[E]."""
    missing: np.ndarray
    """How many predecessors of each node have not been started, uint32[N]."""
    when: np.ndarray
    """When a node is ready, int64[N]; not set while a predecessor is missing."""
    end: np.ndarray
    """When a node ends, int64[N]; not set before the node is started."""
    lanes: np.ndarray
    """State of each lane, `_LANE_STATE`[L]."""
    soonest: np.ndarray
    """Tournament tree of the lanes, uint32[2L]: entry L + n is lane n, and entry n < L that of the lanes in entries 2n and
    2n + 1 that starts its next node first. Entry 1 is the lane that starts first of all."""
    coming: np.ndarray
    """A heap for each lane of the nodes that were not ready yet when the lane was free, the soonest first, uint32[N]."""
    waiting: np.ndarray
    """A heap for each lane of the nodes that are ready once the lane is free, the first recorded first, uint32[N]."""
    laneless: np.ndarray
    """Stack of the nodes that need no lane and are ready, uint32[N]."""
    order: np.ndarray
    """The nodes in the order in which they were started, uint32[N]."""


class _Frozen(NamedTuple):
    """A graph while `freeze` works; arrays are indexed by the new numbers of the N nodes, times in ns."""

    delay: np.ndarray
    """Residual and duration of each node, int64[N]."""
    recorded: np.ndarray
    lane: np.ndarray
    before: _Edges
    """The new edges, to be filled."""
    end: np.ndarray
    """End of each node, int64[N], to be filled."""
    latest: np.ndarray
    """The last node so far on each lane, int64[lanes]; -1 for none."""


def schedule(dfg: Dfg) -> Schedule:
    """Run `dfg`, whose nodes may stand in any order, with one node at a time on each lane.

    Of all lanes the one that can start soonest is next, of equals the lowest; it starts the node that was recorded first
    (`recorded_ns`, of equals the lowest id) of those that are ready by then. Nodes of lane -1 start when they are ready.
    Raises InputError if the dependencies form a cycle.
    """
    state = _begin(dfg)
    _reverse_edges(state.before, state.next_ptr, state.next_idx)
    started = _run(state)
    if started < dfg.nodes:
        raise InputError(f"the dependencies of {dfg.nodes - started:,} nodes form a cycle")
    return Schedule(state.order, state.end - dfg.dur_ns)


def freeze(dfg: Dfg, order: np.ndarray) -> Dfg:
    """The graph with its nodes renumbered to the `order` of a schedule, and each lane held to that order by edges.

    Its longest path takes as long as the schedule. A node without predecessors starts when it was recorded to: the edge from
    the node before it on its lane has a lag that keeps it there.
    """
    # The inverse of `order`: the new number of each node.
    new_id = np.empty(dfg.nodes, np.int32)
    new_id[order] = np.arange(dfg.nodes, dtype=np.int32)
    # Every array with an entry for each node. One of edges, if there are just as many, is replaced below.
    nodes = {
        field.name: values[order]
        for field in fields(dfg)
        if field.init and isinstance(values := getattr(dfg, field.name), np.ndarray) and len(values) == dfg.nodes
    }
    room = dfg.edges + dfg.nodes  # A node gets at most one edge more, from the node before it on its lane.
    ptr, idx = np.zeros_like(dfg.pred_ptr), np.empty(room, dfg.pred_idx.dtype)
    lag, kind = np.empty(room, dfg.pred_lag.dtype), np.empty(room, dfg.pred_kind.dtype)
    frozen = _Frozen(
        nodes["residual_ns"] + nodes["dur_ns"],
        nodes["recorded_ns"],
        nodes["lane"],
        _Edges(unsigned(ptr), unsigned(idx), lag, kind),
        np.empty(dfg.nodes, np.int64),
        np.full(len(dfg.lanes), -1),
    )
    count = _link(order, new_id, _edges(dfg), frozen)
    edges = {"pred_ptr": ptr} | {
        name: values[:count].copy() for name, values in (("pred_idx", idx), ("pred_lag", lag), ("pred_kind", kind))
    }
    marks = StepMarks(dfg.marks.steps, dfg.marks.ranks, new_id[dfg.marks.first], new_id[dfg.marks.last])
    return replace(dfg, **(nodes | edges), marks=marks)


def _edges(dfg: Dfg) -> _Edges:
    return _Edges(unsigned(dfg.pred_ptr), unsigned(dfg.pred_idx), dfg.pred_lag, dfg.pred_kind)


def _begin(dfg: Dfg) -> _ListState:
    """The state before any node is started; `next_ptr` and `next_idx` are still to be filled."""
    # A power of two, at least as many as there are lanes: the tournament is a full binary tree.
    nodes, lanes = dfg.nodes, 1 << max(0, len(dfg.lanes) - 1).bit_length()
    return _ListState(
        delay=dfg.residual_ns + dfg.dur_ns,
        recorded=dfg.recorded_ns,
        lane=dfg.lane,
        before=_edges(dfg),
        next_ptr=np.zeros(nodes + 1, np.uint32),
        next_idx=np.empty(dfg.edges, np.uint32),
        missing=np.diff(dfg.pred_ptr).astype(np.uint32),
        when=np.empty(nodes, np.int64),
        end=np.empty(nodes, np.int64),
        lanes=_idle(dfg.lane, lanes),
        soonest=_tournament(lanes),
        coming=np.empty(nodes, np.uint32),
        waiting=np.empty(nodes, np.uint32),
        laneless=np.empty(nodes, np.uint32),
        order=np.empty(nodes, np.uint32),
    )


def _idle(lane: np.ndarray, count: int) -> np.ndarray:
    """`count` lanes before anything runs."""
    lanes = np.zeros(count, _LANE_STATE)
    # The heaps of a lane begin behind those of all lanes before it, each with room for every node of its lane.
    lanes["first"][1:] = np.cumsum(np.bincount(lane[lane >= 0], minlength=count))[:-1]
    lanes["free"], lanes["next_start_ns"] = -_NEVER_NS, _NEVER_NS
    return lanes


def _tournament(lanes: int) -> np.ndarray:
    """The tournament while no lane has a next node: the lowest lane wins each match."""
    soonest = np.empty(2 * lanes, np.uint32)
    soonest[lanes:] = np.arange(lanes)
    for match in range(lanes - 1, 0, -1):
        soonest[match] = soonest[2 * match]
    return soonest


@compiled_in_place
def _reverse_edges(before: _Edges, next_ptr: np.ndarray, next_idx: np.ndarray) -> None:
    """Fill `next_ptr`, all zero before, and `next_idx` with the followers of each node, ascending (a counting sort)."""
    nodes = len(next_ptr) - 1
    for edge in range(len(before.idx)):
        next_ptr[before.idx[edge]] += 1
    for node in range(nodes):
        next_ptr[node + 1] += next_ptr[node]
    # Each entry is the end of its node's followers now, and is moved to their beginning by filling in the last ones first.
    for node in range(nodes - 1, -1, -1):
        for edge in range(before.ptr[node], before.ptr[node + 1]):
            source = before.idx[edge]
            next_ptr[source] -= 1
            next_idx[next_ptr[source]] = node


@compiled_in_place
def _run(state: _ListState) -> int:
    """Start nodes until none is ready; return how many were started: fewer than all where dependencies form a cycle."""
    idle = _admit_first(state)  # How many nodes are in `laneless`.
    started = 0
    while True:
        lane = -1
        if idle > 0:
            idle -= 1
            node = state.laneless[idle]
            state.end[node] = state.when[node] + state.delay[node]
        else:
            lane = state.soonest[1]
            if state.lanes[lane].next_start_ns == _NEVER_NS:
                return started
            node = _take(lane, state)
            state.end[node] = state.lanes[lane].next_start_ns + state.delay[node]
            state.lanes[lane].free = state.end[node]
        state.order[started] = node
        started += 1
        for edge in range(state.next_ptr[node], state.next_ptr[node + 1]):
            follower = state.next_idx[edge]
            state.missing[follower] -= 1
            if state.missing[follower] == 0:
                idle = _admit(follower, idle, state)
        if lane >= 0:
            _set_next_of_lane(lane, state)


@compiled_in_place
def _admit_first(state: _ListState) -> int:
    """Admit all nodes that have no predecessor."""
    idle = 0
    for node in range(len(state.delay)):
        if state.missing[node] == 0:
            idle = _admit(node, idle, state)
    return idle


@compiled_in_place
def _admit(node: int, idle: int, state: _ListState) -> int:
    """Queue a node whose predecessors have all been started. Takes and returns how many nodes `laneless` holds."""
    before = state.before
    when = ready(node, state.recorded, before.ptr, before.idx, before.lag, state.end)
    state.when[node] = when
    if state.lane[node] < 0:
        state.laneless[idle] = node
        return idle + 1
    lane = state.lanes[state.lane[node]]
    if when <= lane.free:
        _push(state.waiting, lane.first, lane.waiting, node, state.recorded)
        lane.waiting += 1
    else:
        _push(state.coming, lane.first, lane.coming, node, state.when)
        lane.coming += 1
    if max(when, lane.free) < lane.next_start_ns:
        _set_next_of_lane(state.lane[node], state)
    return idle


@compiled_in_place
def _take(number: int, state: _ListState) -> int:
    """Remove the next node from the heaps of a lane, and return it."""
    lane = state.lanes[number]
    # All that is ready by now competes by recorded start.
    while lane.coming > 0 and state.when[state.coming[lane.first]] <= lane.next_start_ns:
        _push(
            state.waiting,
            lane.first,
            lane.waiting,
            _pop(state.coming, lane.first, lane.coming, state.when),
            state.recorded,
        )
        lane.coming -= 1
        lane.waiting += 1
    lane.waiting -= 1
    return _pop(state.waiting, lane.first, lane.waiting + 1, state.recorded)


@compiled_in_place
def _set_next_of_lane(number: int, state: _ListState) -> None:
    """Find out when a lane can start its next node, and bring the tournament up to date on its way to the top."""
    lanes, soonest = state.lanes, state.soonest
    lane = lanes[number]
    lane.next_start_ns = _NEVER_NS
    if lane.waiting > 0:
        lane.next_start_ns = lane.free
    elif lane.coming > 0:
        lane.next_start_ns = max(lane.free, state.when[state.coming[lane.first]])
    match = (len(lanes) + number) >> 1
    while match > 0:
        left, right = soonest[2 * match], soonest[2 * match + 1]
        winner = right if lanes[right].next_start_ns < lanes[left].next_start_ns else left
        # Another lane has won this match before and wins it again: nothing changes above.
        if soonest[match] == winner and winner != number:
            return
        soonest[match] = winner
        match >>= 1


@compiled_in_place
def _push(heap: np.ndarray, first: int, size: int, node: int, key: np.ndarray) -> None:
    """Add `node` to the heap of `size` nodes that begins at `first`."""
    at = size
    while at > 0:
        above = heap[first + ((at - 1) >> 1)]
        if not _sooner(node, above, key):
            break
        heap[first + at] = above
        at = (at - 1) >> 1
    heap[first + at] = node


@compiled_in_place
def _pop(heap: np.ndarray, first: int, size: int, key: np.ndarray) -> int:
    """Remove the soonest node from the heap of `size` nodes that begins at `first`."""
    soonest: int = heap[first]
    last = heap[first + size - 1]
    at, below = 0, 1
    while below < size - 1:
        if below < size - 2 and _sooner(heap[first + below + 1], heap[first + below], key):
            below += 1
        if not _sooner(heap[first + below], last, key):
            break
        heap[first + at] = heap[first + below]
        at, below = below, 2 * below + 1
    heap[first + at] = last
    return soonest


@compiled_in_place
def _sooner(one: int, other: int, key: np.ndarray) -> bool:
    """Whether node `one` comes before node `other` by their keys; of equals the lower id."""
    return key[one] < key[other] or (key[one] == key[other] and one < other)


@compiled_in_place
def _link(order: np.ndarray, new_id: np.ndarray, old: _Edges, frozen: _Frozen) -> int:
    """Renumber the edges, and let each node follow the one before it on its lane; returns how many edges there are."""
    new = frozen.before
    count = 0
    for here in range(len(order)):
        node, lane = order[here], frozen.lane[here]
        latest = frozen.latest[lane] if lane >= 0 else -1
        for edge in range(old.ptr[node], old.ptr[node + 1]):
            source, lag = new_id[old.idx[edge]], old.lag[edge]
            if source == latest:
                # The edge holds the lane's order itself, if the node may not start before the other has ended.
                latest, lag = -1, max(lag, 0)
            _insert(new, here, count, source, lag, old.kind[edge])
            count += 1
        if latest >= 0:
            # Without another edge (none was added since `ptr`), only the lag keeps the node at its recorded start.
            pause = max(0, frozen.recorded[here] - frozen.end[latest]) if count == new.ptr[here] else 0
            _insert(new, here, count, latest, min(pause, _MAX_LAG_NS), _LANE_EDGE)
            count += 1
        new.ptr[here + 1] = count
        frozen.end[here] = ready(here, frozen.recorded, new.ptr, new.idx, new.lag, frozen.end) + frozen.delay[here]
        if lane >= 0:
            frozen.latest[lane] = here
    return count


@compiled_in_place
def _insert(edges: _Edges, node: int, count: int, source: int, lag: int, kind: int) -> None:
    """Insert an edge into those of `node`, which are the last of the `count` edges so far, so that they ascend by source."""
    at = count
    while at > edges.ptr[node] and edges.idx[at - 1] > source:
        edges.idx[at], edges.lag[at], edges.kind[at] = edges.idx[at - 1], edges.lag[at - 1], edges.kind[at - 1]
        at -= 1
    edges.idx[at], edges.lag[at], edges.kind[at] = source, lag, kind
