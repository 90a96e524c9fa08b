"""The global dataflow graph (Dfg): a struct of arrays, nodes in topological order, predecessors in CSR form."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from functools import cached_property

import numpy as np

from esprof.core.types import Ns, Rank


class Cls(IntEnum):
    """What a node's time is spent on. The critical path is divided by these classes, and what-ifs choose nodes by them."""

    COMPUTE = 0
    COMMUNICATION = 1
    WAIT = 2
    """A node without work of its own, at which a rank or a thread waits: an arrival at a collective, a join, a hand-over."""
    CPU = 3
    HOST_GAP = 4
    DATA = 5
    LAUNCH = 6
    ALLOCATOR = 7
    CONTENTION = 8
    RESIDUAL = 9
    COPY = 10
    """A copy between host and device, at the speed of the bus."""

    @property
    def label(self) -> str:
        return self.name.lower()


class Edge(IntEnum):
    """Why a node waits for another."""

    LANE = 0
    LAUNCH = 1
    WAIT = 2
    """A stream waits for another as the profiler recorded it, or a launch waits for room in the launch queue."""
    SYNC = 3
    THREAD = 4
    RENDEZVOUS = 5
    BY_TIME = 6
    """A dependency found by time alone: no event of the trace says so."""
    LIKELY_WAIT = 7
    """A stream waits: the wait was recorded, and what it is for is guessed by the order of launches."""


GUESSES = (Edge.BY_TIME, Edge.LIKELY_WAIT)
"""The kinds of edges that are guessed: no event of the trace tells both of their ends."""


UNSEEN_LOADER = "loader (not recorded)"
"""Role of the lane of batches that unrecorded workers make: each lasts as long as its rank waits for it."""


def gap_name(before: str, after: str) -> str:
    """The name of the nodes of class HOST_GAP that stand between these two operations. Made for people to read: an
    operation may bear the same name, and no name can be taken apart again."""
    return f"{before} → {after}"


JOIN_LANE = -1
"""Lane of the join of a collective, which belongs to no rank."""


class LaneKind(StrEnum):
    """What a lane is."""

    CPU = "cpu"
    """A CPU thread."""
    STREAM = "stream"
    """A GPU stream."""
    COMM = "comm"
    """A communication thread, or the link that those of a rank share."""
    LOADER = "loader"
    """A loader worker."""


@dataclass(frozen=True)
class Lane:
    """What runs one thing at a time: a CPU thread, a GPU stream, a loader worker, a communication thread."""

    rank: Rank
    kind: LaneKind
    role: str
    """What the lane is for, such as `main` or `stream 7`: the same for lanes of one purpose on all ranks."""


@dataclass(frozen=True)
class StepMarks:
    """The nodes at which steps begin and end on each rank."""

    steps: tuple[int, ...]
    """Numbers of the steps, ascending."""
    ranks: tuple[Rank, ...]
    first: np.ndarray
    """Id of the node at whose end each step begins, shape (steps, ranks)."""
    last: np.ndarray
    """Id of the node at whose end each step ends, shape (steps, ranks)."""


@dataclass(frozen=True)
class Dfg:
    """One job's graph over consecutive steps. N nodes, E edges; times in ns since `t0_ns`, durations in ns.

    A node is ready at `max over predecessors p of end[p] + lag`, or at its recorded start if it has no predecessor. It
    starts `residual` after that, and ends `dur` after its start. `dur_ns` is intrinsic work; `residual_ns` is the part of
    the recorded start that no edge explains (contention, where `contended`).
    """

    t0_ns: Ns
    dur_ns: np.ndarray
    """int64[N], ns of intrinsic work of each node."""
    recorded_ns: np.ndarray
    """int64[N], recorded start of the intrinsic work, ns since `t0_ns`: what the residual is measured against."""
    residual_ns: np.ndarray
    """int64[N], delay of each node's start that no edge explains, ns, never negative."""
    contended: np.ndarray
    """bool[N], whether a node's residual is contention: it waited for room on a busy device."""
    lane: np.ndarray
    """int32[N], lane of each node, an index into `lanes`; `JOIN_LANE` for the join of a collective."""
    step: np.ndarray
    """int32[N], step that launched each node; -1 for what was launched before the first step."""
    cls: np.ndarray
    """int8[N], class of each node, a `Cls`."""
    name: np.ndarray
    """int32[N], name of each node, an index into `names`."""
    event: np.ndarray
    """int32[N], row of each node in its rank's event table; -1 where the node stands for no row."""
    collective: np.ndarray
    """int32[N], number of the matched collective that each node is part of; -1 where it is part of none."""
    bytes: np.ndarray
    """int64[N], bytes that a collective moved; -1 where unknown, and for other nodes."""
    key: np.ndarray
    """int32[N], a number that counterparts share, on all ranks and in all steps: one for each lane role, name, name of the
    neighbour before, and occurrence in the step; -1 for nodes that have none."""
    pred_ptr: np.ndarray
    """int32[N + 1], CSR offsets: the edges that enter node n are those from pred_ptr[n] to before pred_ptr[n + 1]."""
    pred_idx: np.ndarray
    """int32[E], predecessor at the start of each edge, ascending within a node."""
    pred_lag: np.ndarray
    """int32[E], least time from the predecessor's end to when the node is ready, ns; may be negative."""
    pred_kind: np.ndarray
    """int8[E], kind of each edge, an `Edge`."""
    names: tuple[str, ...]
    """Distinct names of nodes."""
    lanes: tuple[Lane, ...]
    marks: StepMarks

    @property
    def nodes(self) -> int:
        return len(self.dur_ns)

    @property
    def edges(self) -> int:
        return len(self.pred_idx)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The arrays with an entry for each node, by name."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if not field.name.startswith("pred_")}
        return {name: values for name, values in arrays.items() if isinstance(values, np.ndarray)}

    @cached_property
    def rank(self) -> np.ndarray:
        """int32[N], rank of each node; -1 for the join of a collective."""
        # The last entry is that of lane -1, which indexes it.
        ranks: np.ndarray = np.array([*(lane.rank for lane in self.lanes), -1], np.int32)[self.lane]
        return ranks

    @cached_property
    def _by_rank(self) -> dict[Rank, np.ndarray]:
        """Ids of the nodes of each rank, ascending."""
        order = np.argsort(self.rank, kind="stable")
        ranks, begin = np.unique(self.rank[order], return_index=True)
        return dict(zip(ranks.tolist(), np.split(order, begin[1:]), strict=True))

    def nodes_of(self, rank: Rank) -> np.ndarray:
        """Ids of the nodes on the lanes of a rank, int64, ascending."""
        return self._by_rank.get(rank, np.zeros(0, np.int64))

    def clock_offset_ns(self, start_ns: np.ndarray, nodes: np.ndarray) -> int:
        """By how much a rank's own clock, on which its events begin at `start_ns`, is ahead of the graph's, ns: clocks of
        ranks are aligned in the graph. Most of `nodes`, which have events, begin with theirs. 0 if there are none."""
        return int(np.median(start_ns[self.event[nodes]] - self.recorded_ns[nodes])) if len(nodes) else 0

    @cached_property
    def pred_target(self) -> np.ndarray:
        """int32[E], the node that each edge enters: each node, as often as it has predecessors."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.pred_ptr))

    def on(self, kind: LaneKind) -> np.ndarray:
        """bool[N], mask of the nodes on lanes of this kind; joins are on none."""
        # The last entry is that of lane -1, which indexes it.
        mask: np.ndarray = np.array([*(lane.kind == kind for lane in self.lanes), False])[self.lane]
        return mask

    def of(self, *classes: Cls) -> np.ndarray:
        """bool[N], mask of the nodes of these classes."""
        among = np.zeros(len(Cls), bool)
        among[list(classes)] = True
        mask: np.ndarray = among[self.cls]
        return mask

    def named(self, wanted: Callable[[str], object]) -> np.ndarray:
        """bool[N], mask of the nodes for whose name `wanted` is true."""
        mask: np.ndarray = np.array([bool(wanted(name)) for name in self.names], bool)[self.name]
        return mask

    def main_lane(self, rank: Rank) -> int:
        """The lane of a rank's main thread, on which its steps begin and end."""
        return int(self.lane[self.marks.first[0, self.marks.ranks.index(rank)]])

    def has_gpu(self, rank: Rank | None = None) -> bool:
        """Whether anything ran on a GPU stream (of `rank`)."""
        return any(lane.kind == LaneKind.STREAM and rank in (None, lane.rank) for lane in self.lanes)

    def label(self, node: int) -> str:
        return self.names[int(self.name[node])]
