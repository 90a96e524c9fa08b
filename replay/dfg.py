"""The global dataflow graph (Dfg): struct of arrays in topological order, predecessors in CSR form."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from esprof.types import Ns, Rank

if TYPE_CHECKING:
    import networkx as nx


class Cls(IntEnum):
    """What a node's time is spent on: the class of the critical path and of the what-ifs."""

    COMPUTE = 0
    COMMUNICATION = 1
    WAIT = 2
    """A stream waits for another one, or a launch for room in the queue: recorded, and for what."""
    CPU = 3
    HOST_GAP = 4
    DATA = 5
    LAUNCH = 6
    ALLOCATOR = 7
    CONTENTION = 8
    RESIDUAL = 9

    @property
    def label(self) -> str:
        return self.name.lower()


class Edge(IntEnum):
    """Why a node waits for another."""

    LANE = 0
    LAUNCH = 1
    WAIT = 2
    SYNC = 3
    THREAD = 4
    RENDEZVOUS = 5
    INFERRED = 6
    """Found by time alone: no event of the trace says so."""
    LIKELY_WAIT = 7
    """A stream waits: that was recorded, and for what is guessed by the order of launches."""


GUESSES = (Edge.INFERRED, Edge.LIKELY_WAIT)
"""The kinds of edges that are guessed: no event of the trace tells both of their ends."""


def gap_name(before: str, after: str) -> str:
    """The name of the nodes of class HOST_GAP that stand between these two operations. Made for people to read: an
    operation may bear the same name, and no name can be taken apart again."""
    return f"{before} → {after}"


JOIN_LANE = -1
"""Lane of the join of a collective, which belongs to no rank."""


@dataclass(frozen=True)
class Lane:
    """What runs one thing at a time: a CPU thread, a GPU stream, a loader worker, a communication thread."""

    rank: Rank
    kind: str
    """`cpu`, `stream`, `comm` or `loader`."""
    role: str
    """The same on all ranks for the same purpose, such as `main` or `stream 7`."""


@dataclass(frozen=True)
class StepMarks:
    """Where steps begin and end: node ids, shape (steps, ranks)."""

    steps: tuple[int, ...]
    ranks: tuple[Rank, ...]
    first: np.ndarray
    last: np.ndarray


@dataclass(frozen=True)
class Dfg:
    """One job's graph over consecutive steps. N nodes, E edges; times in ns since `t0_ns`, durations in ns.

    A node starts at `max over predecessors p of end[p] + lag`, or where it was recorded to if it has none, `residual` later,
    and ends `dur` after that. `dur_ns` is intrinsic work; `residual_ns` is the part of the recorded start that nothing
    explains (contention, where `contended`).
    """

    t0_ns: Ns
    dur_ns: np.ndarray
    """int64[N]"""
    recorded_ns: np.ndarray
    """int64[N], recorded start of the intrinsic work: what the residual is measured against."""
    residual_ns: np.ndarray
    """int64[N], never negative."""
    contended: np.ndarray
    """bool[N]"""
    lane: np.ndarray
    """int32[N], index into `lanes`; `JOIN_LANE` for the join of a collective."""
    step: np.ndarray
    """int32[N], step that issued the node; -1 for what was issued before the first."""
    cls: np.ndarray
    """int8[N], a `Cls`."""
    name: np.ndarray
    """int32[N], index into `names`."""
    event: np.ndarray
    """int32[N], row in the rank's event table; -1 where the node stands for none."""
    collective: np.ndarray
    """int32[N], number of the matched collective that the node is part of; -1 elsewhere."""
    bytes: np.ndarray
    """int64[N], what a transfer moved; -1 where that is not known and elsewhere."""
    key: np.ndarray
    """int32[N], the same for the counterparts of a node on other ranks and in other steps: lane role, name, occurrence."""
    pred_ptr: np.ndarray
    """int32[N + 1]"""
    pred_idx: np.ndarray
    """int32[E], ascending within a node."""
    pred_lag: np.ndarray
    """int32[E], ns, signed."""
    pred_kind: np.ndarray
    """int8[E], an `Edge`."""
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    marks: StepMarks

    @property
    def nodes(self) -> int:
        return len(self.dur_ns)

    @property
    def edges(self) -> int:
        return len(self.pred_idx)

    @cached_property
    def rank(self) -> np.ndarray:
        """int32[N], -1 for the join of a collective."""
        # The last entry is that of lane -1.
        ranks: np.ndarray = np.array([*(lane.rank for lane in self.lanes), -1], np.int32)[self.lane]
        return ranks

    def on(self, *lane_kinds: str) -> np.ndarray:
        """Boolean mask of the nodes on lanes of these kinds; `join` are the joins of collectives, on none."""
        kinds = [*(lane.kind for lane in self.lanes), "join"]
        mask: np.ndarray = np.array([kind in lane_kinds for kind in kinds])[self.lane]
        return mask

    def of(self, *classes: Cls) -> np.ndarray:
        """Boolean mask of the nodes of these classes."""
        among = np.zeros(len(Cls), bool)
        among[list(classes)] = True
        mask: np.ndarray = among[self.cls]
        return mask

    def has_gpu(self, rank: Rank | None = None) -> bool:
        """Whether anything ran on a GPU stream (of `rank`)."""
        return any(lane.kind == "stream" and rank in (None, lane.rank) for lane in self.lanes)

    def label(self, node: int) -> str:
        return self.names[int(self.name[node])]

    def to_networkx(self, limit: int = 10_000) -> "nx.DiGraph":
        """The first `limit` nodes as a networkx graph, for people to look at."""
        import networkx as nx

        graph = nx.DiGraph()
        for node in range(min(limit, self.nodes)):
            graph.add_node(
                node,
                name=self.label(node),
                cls=Cls(self.cls[node]).label,
                rank=int(self.rank[node]),
                dur_ns=int(self.dur_ns[node]),
            )
            for edge in range(self.pred_ptr[node], self.pred_ptr[node + 1]):
                kind = Edge(self.pred_kind[edge]).name.lower()
                graph.add_edge(int(self.pred_idx[edge]), node, kind=kind, lag_ns=int(self.pred_lag[edge]))
        return graph
