"""From edges in any order: a topological order of the nodes, and the predecessors of each node in CSR form."""

from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled_in_place
from esprof.core.errors import InputError
from esprof.replay.dfg import GUESSES, Edge

_DOUBTFUL = (GUESSES, (Edge.THREAD,), (Edge.RENDEZVOUS,), (Edge.WAIT,), (Edge.SYNC,))
"""Kinds of edges by which a cycle is broken, the least certain first."""

_MAX_LAG_NS = np.iinfo(np.int32).max
"""Longest lag that an edge can hold, ns, about two seconds."""


class Predecessors(NamedTuple):
    """The predecessors of each node in CSR form, N nodes and E edges. A node has no predecessor twice."""

    ptr: np.ndarray
    """Offsets, int32[N + 1]: the entries of node n in the other arrays are those from ptr[n] to before ptr[n + 1]."""
    idx: np.ndarray
    """Predecessors, int32[E], ascending within a node."""
    lag: np.ndarray
    """Lag of each edge, ns, int32[E]."""
    kind: np.ndarray
    """Kind of each edge, int8[E], an `Edge`."""


class Sorted(NamedTuple):
    """Nodes in topological order, with what had to be given up to sort them."""

    order: np.ndarray
    """Numbers of the nodes, in that order."""
    predecessors: Predecessors
    """Predecessors of each node, by the places of nodes in that order."""
    dropped: np.ndarray
    """The kind of each edge that was dropped to break a cycle."""
    clamped: int
    """How many edges had a lag longer than an edge can hold, which was cut."""


class _Followers(NamedTuple):
    """The edges that leave each node, in CSR form."""

    ptr: np.ndarray
    """Offsets, int32[N + 2]: the edges that leave node n are edge[ptr[n]:ptr[n + 1]]. The last entry only helps to fill."""
    edge: np.ndarray
    """Numbers of the edges, int32[E]."""


def sort(start_ns: np.ndarray, edges: np.ndarray) -> Sorted:
    """Order nodes topologically, the earliest recorded start first, ties by number.

    Of several edges between two nodes the strictest stays, and of those the first. Cycles are broken at their most doubtful
    edges. Raises InputError on one beyond doubt.
    """
    nodes = len(start_ns)
    order, dropped = np.empty(nodes, np.int32), np.zeros(0, np.int8)
    while True:
        followers = _Followers(np.zeros(nodes + 2, np.int32), np.empty(len(edges), np.int32))
        missing, heap = np.zeros(nodes, np.int32), np.empty(nodes, np.int32)
        _follow(edges, followers, missing)
        if _order(start_ns, edges, followers, missing, heap, order) == nodes:
            break
        doubtful = _doubtful_in_cycles(edges, nodes)
        dropped = np.append(dropped, edges["kind"][doubtful])
        edges = np.compress(~doubtful, edges)
    clamped = int((np.abs(edges["lag"]) > _MAX_LAG_NS).sum())
    return Sorted(order, _predecessors(edges, followers, order), dropped, clamped)


@compiled_in_place
def _follow(edges: np.ndarray, out: _Followers, entering: np.ndarray) -> None:
    """Fill `out`, and in `entering` how many edges enter each node; both are zero before."""
    # A counting sort. Counts go in two places too high: their running sum then has at ptr[n + 1] where the edges of n
    # begin, and filling these in moves that on to where they end, which is where the edges of n + 1 begin.
    for edge in edges:
        out.ptr[edge.source + 2] += 1
        entering[edge.target] += 1
    for node in range(len(entering)):
        out.ptr[node + 2] += out.ptr[node + 1]
    for number in range(len(edges)):
        source = edges[number].source
        out.edge[out.ptr[source + 1]] = number
        out.ptr[source + 1] += 1


@compiled_in_place
def _order(
    start_ns: np.ndarray,
    edges: np.ndarray,
    followers: _Followers,
    missing: np.ndarray,
    heap: np.ndarray,
    order: np.ndarray,
) -> int:
    """Fill `order` by Kahn's algorithm, the earliest recorded start first; return how many nodes it holds.

    Nodes on a cycle, and those behind one, are left out. `missing` is how many predecessors of each node are not in `order`
    yet; `heap` is room for all nodes.
    """
    size = done = 0
    for node in range(len(missing)):
        if missing[node] == 0:
            size = _push(heap, size, start_ns, node)
    while size:
        node = heap[0]
        size = _pop(heap, size, start_ns)
        order[done] = node
        done += 1
        for at in range(followers.ptr[node], followers.ptr[node + 1]):
            target = edges[followers.edge[at]].target
            missing[target] -= 1
            if missing[target] == 0:
                size = _push(heap, size, start_ns, target)
    return done


@compiled_in_place
def _push(heap: np.ndarray, size: int, start_ns: np.ndarray, node: int) -> int:
    """Add a node to the binary heap; return its new size."""
    at = size
    while at > 0 and _earlier(start_ns, node, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = node
    return size + 1


@compiled_in_place
def _pop(heap: np.ndarray, size: int, start_ns: np.ndarray) -> int:
    """Remove the earliest node, `heap[0]`, from the binary heap; return its new size."""
    size -= 1
    node, at = heap[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _earlier(start_ns, heap[child + 1], heap[child]):
            child += 1
        if not _earlier(start_ns, heap[child], node):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = node
    return size


@compiled_in_place
def _earlier(start_ns: np.ndarray, one: int, other: int) -> bool:
    return start_ns[one] < start_ns[other] or (start_ns[one] == start_ns[other] and one < other)


def _predecessors(edges: np.ndarray, followers: _Followers, order: np.ndarray) -> Predecessors:
    """The predecessors of each node, with nodes numbered by their place in `order`."""
    # `number` is the inverse of `order`: the new number of each node. `latest` is the source counted last for each target.
    nodes = len(order)
    number, latest = np.empty(nodes, np.int32), np.full(nodes, -1, np.int32)
    number[order] = np.arange(nodes)
    ptr = np.zeros(nodes + 2, np.int32)
    _count(edges, followers, order, number, latest, ptr)
    count = int(ptr[-1])
    found = Predecessors(ptr[:-1], np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int8))
    latest[:] = -1
    _fill(edges, followers, order, number, latest, ptr, found)
    return found


@compiled_in_place
def _count(
    edges: np.ndarray,
    followers: _Followers,
    order: np.ndarray,
    number: np.ndarray,
    latest: np.ndarray,
    ptr: np.ndarray,
) -> None:
    """Count the predecessors of each node: fill `ptr`, int32[nodes + 2], zero before.

    Afterwards ptr[n + 1] is where the predecessors of node n begin; `_fill` moves it on to where they end. Sources are
    visited in order, so that of several edges between two nodes all but the first find their source in `latest`, which
    holds the source counted last for each target and is -1 before.
    """
    for source in range(len(order)):
        for at in range(followers.ptr[order[source]], followers.ptr[order[source] + 1]):
            target = number[edges[followers.edge[at]].target]
            if latest[target] != source:
                latest[target] = source
                ptr[target + 2] += 1
    for node in range(len(order)):
        ptr[node + 2] += ptr[node + 1]


@compiled_in_place
def _fill(
    edges: np.ndarray,
    followers: _Followers,
    order: np.ndarray,
    number: np.ndarray,
    latest: np.ndarray,
    ptr: np.ndarray,
    out: Predecessors,
) -> None:
    """Fill `out` as `_count` counted. Of several edges between two nodes the one with the longest lag stays.

    `ptr` is as `_count` left it, and `latest` is -1 again.
    """
    for source in range(len(order)):
        for at in range(followers.ptr[order[source]], followers.ptr[order[source] + 1]):
            edge = edges[followers.edge[at]]
            target, lag = number[edge.target], min(max(edge.lag, -_MAX_LAG_NS), _MAX_LAG_NS)
            if latest[target] != source:
                latest[target] = source
                ptr[target + 1] += 1  # The slot before it is the new edge's.
            elif lag <= out.lag[ptr[target + 1] - 1]:
                continue
            slot = ptr[target + 1] - 1
            out.idx[slot], out.lag[slot], out.kind[slot] = source, lag, edge.kind


def _doubtful_in_cycles(edges: np.ndarray, nodes: int) -> np.ndarray:
    """Mask of the edges on cycles that are of the most doubtful kinds there, in the order of `_DOUBTFUL`.

    One call may not find enough: `sort` drops these and asks again until no cycle is left. Raises InputError where no
    edge on a cycle is of such a kind.
    """
    # Few graphs have a cycle: the others do not pay for importing scipy.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # An edge is on a cycle exactly if one strongly connected component holds both its ends.
    ones = np.ones(len(edges), np.int8)
    graph = coo_array((ones, (edges["source"], edges["target"])), shape=(nodes, nodes))
    component = connected_components(graph, directed=True, connection="strong")[1]
    in_cycle = component[edges["source"]] == component[edges["target"]]
    for kinds in _DOUBTFUL:
        doubtful: np.ndarray = in_cycle & np.isin(edges["kind"], kinds)
        if doubtful.any():
            return doubtful
    raise InputError(
        "launches and their kernels form a cycle: ids of the trace do not belong together",
        remedy="Record again; if the trace was edited or put together, see that each correlation id occurs once.",
    )
