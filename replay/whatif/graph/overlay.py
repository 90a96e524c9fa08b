"""Changes to a graph, collected and then compiled into the next graph."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from esprof.core.types import Bytes, Ns
from esprof.replay.dfg import JOIN_LANE, Cls, Dfg, Edge, StepMarks
from esprof.replay.engine.schedule import freeze, schedule

_NODE = np.dtype(
    [
        ("lane", np.int32),
        ("name", np.int32),
        ("cls", np.int8),
        ("dur_ns", np.int64),
        ("recorded_ns", np.int64),
        ("step", np.int32),
        ("collective", np.int32),
        ("bytes", np.int64),
    ]
)
"""A node to add: those columns of a Dfg that are not the same for all new nodes."""

_EDGE = np.dtype([("source", np.int64), ("target", np.int64), ("lag", np.int64), ("kind", np.int64)])
"""An edge to add, between ids as they are before `compile`; its lag in ns."""


@dataclass
class AddedCollective:
    """A collective that an overlay adds."""

    name: str
    step: int
    nbytes: Bytes
    number: int
    join: int | None = None
    """The node at which the arrivals of its members meet; None before the first."""


@dataclass
class Overlay:
    """Nodes and edges to add to `dfg` and to take out of it. Nodes keep their ids until `compile`; new ones follow them."""

    dfg: Dfg
    dropped: np.ndarray = field(init=False)
    """Mask of the nodes of `dfg` to take out with their edges, bool[N]."""
    cut: np.ndarray = field(init=False)
    """Mask of the edges of `dfg` to take out, bool[E]."""
    lane: np.ndarray = field(init=False)
    """Lane of each node of `dfg`, int32[N]; change an entry to move its node."""
    _nodes: list[tuple[int, int, int, Ns, Ns, int, int, Bytes]] = field(default_factory=list)
    """The nodes to add, each as `_NODE` has it."""
    _edges: list[tuple[int, int, Ns, Edge]] = field(default_factory=list)
    """The edges to add, each as `_EDGE` has it."""
    _names: dict[str, int] = field(init=False)
    _collectives: int = field(init=False)

    def __post_init__(self) -> None:
        self.dropped = np.zeros(self.dfg.nodes, bool)
        self.cut = np.zeros(self.dfg.edges, bool)
        self.lane = self.dfg.lane.copy()
        self._names = {name: number for number, name in enumerate(self.dfg.names)}
        self._collectives = int(self.dfg.collective.max(initial=-1)) + 1

    def add(
        self,
        lane: int,
        name: str,
        cls: Cls,
        dur_ns: Ns,
        recorded_ns: Ns,
        *,
        step: int,
        collective: int = -1,
        nbytes: Bytes = -1,
    ) -> int:
        """Add a node and return its id. Where the edges leave a choice, `recorded_ns` says whose turn on the lane it is."""
        number = self._names.setdefault(name, len(self._names))
        self._nodes.append((lane, number, int(cls), dur_ns, recorded_ns, step, collective, nbytes))
        return self.dfg.nodes + len(self._nodes) - 1

    def add_collective(self, name: str, step: int, nbytes: Bytes) -> "AddedCollective":
        """A collective that was not in the graph, without members."""
        self._collectives += 1
        return AddedCollective(name, step, nbytes, self._collectives - 1)

    def add_member(
        self, collective: "AddedCollective", lanes: tuple[int, int], dur_ns: Ns, recorded_ns: Ns
    ) -> tuple[int, int]:
        """Add a rank to a new collective. Returns (its arrival, its communication): the communication, which takes `dur_ns`,
        waits for the arrivals of all members. `lanes` are those of both."""
        name, step, number = collective.name, collective.step, collective.number
        arrival = self.add(lanes[0], f"{name} (arrive)", Cls.WAIT, 0, recorded_ns, step=step, collective=number)
        if collective.join is None:
            lane = JOIN_LANE
            collective.join = self.add(lane, f"{name} (join)", Cls.WAIT, 0, recorded_ns, step=step, collective=number)
        nbytes = collective.nbytes
        communication = self.add(
            lanes[1], name, Cls.COMMUNICATION, dur_ns, recorded_ns, step=step, collective=number, nbytes=nbytes
        )
        self.link(arrival, collective.join, Edge.RENDEZVOUS)
        self.link(collective.join, communication, Edge.RENDEZVOUS)
        return arrival, communication

    def link(self, source: int, target: int, kind: Edge, lag_ns: Ns = 0) -> None:
        """`target` starts no earlier than `lag_ns` after `source` ends."""
        self._edges.append((source, target, lag_ns, kind))

    def compile(self) -> Dfg:
        """The graph with the changes made. Lanes whose order the changes leave open are scheduled (`schedule`).

        Raises InputError if the new dependencies form a cycle.
        """
        dfg, added = self.dfg, np.array(self._nodes, _NODE)
        staying = np.flatnonzero(~self.dropped)
        # The new id of each node, -1 for one that is taken out; the new nodes follow those that stay.
        new_id = np.full(dfg.nodes + len(self._nodes), -1, np.int64)
        new_id[staying] = np.arange(len(staying))
        new_id[dfg.nodes :] = len(staying) + np.arange(len(self._nodes))
        columns: dict[str, Any] = {
            name: _joined(getattr(dfg, name)[staying], added[name]) for name in _NODE.fields or ()
        }
        columns["lane"] = _joined(self.lane[staying], added["lane"])
        for name, absent in (("residual_ns", 0), ("contended", 0), ("event", -1), ("key", -1)):
            columns[name] = _joined(getattr(dfg, name)[staying], np.full(len(self._nodes), absent))
        marks = StepMarks(dfg.marks.steps, dfg.marks.ranks, new_id[dfg.marks.first], new_id[dfg.marks.last])
        loose = replace(dfg, **columns, **self._predecessors(new_id), names=tuple(self._names), marks=marks)
        return freeze(loose, schedule(loose).order)

    def _predecessors(self, new_id: np.ndarray) -> dict[str, Any]:
        """Edges in CSR form by the new ids (`new_id`): of several between two nodes the one with the longest lag."""
        dfg, nodes, longest = self.dfg, int(new_id.max(initial=-1)) + 1, np.iinfo(self.dfg.pred_lag.dtype).max
        added = np.array(self._edges, _EDGE)
        old = ~self.cut & (new_id[dfg.pred_target] >= 0) & (new_id[dfg.pred_idx] >= 0)
        recorded = {"source": dfg.pred_idx, "target": dfg.pred_target, "lag": dfg.pred_lag, "kind": dfg.pred_kind}
        source, target, lag, kind = (
            np.concatenate([column[old].astype(np.int64), added[name]]) for name, column in recorded.items()
        )
        source, target = new_id[source], new_id[target]
        # By target, then source, the longest lag first: of each pair of nodes the first edge stays, and no node waits for
        # itself.
        order = np.lexsort((-lag, source, target))
        pairs = target[order] * nodes + source[order]
        order = order[np.r_[True, pairs[1:] != pairs[:-1]] & (source[order] != target[order])]
        # Edges stand target by target: `pred_ptr` is where those of each node begin.
        return {
            "pred_ptr": np.searchsorted(target[order], np.arange(nodes + 1)).astype(dfg.pred_ptr.dtype),
            "pred_idx": source[order].astype(dfg.pred_idx.dtype),
            "pred_lag": np.clip(lag[order], -longest, longest).astype(dfg.pred_lag.dtype),
            "pred_kind": kind[order].astype(dfg.pred_kind.dtype),
        }


def _joined(column: np.ndarray, more: np.ndarray) -> np.ndarray:
    return np.concatenate([column, more.astype(column.dtype)])
