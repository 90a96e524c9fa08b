"""Timelines as a table: one row for each node of the graph in each timeline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from esprof.analyzers.sharing.redaction.hashed import hashed
from esprof.analyzers.tracks.content import Exported
from esprof.analyzers.tracks.replayed import lane_labels
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import Timeline

NODES = pa.schema(
    [
        ("timeline", pa.string()),
        ("rank", pa.int32()),
        ("lane", pa.string()),
        ("lane_kind", pa.string()),
        ("name", pa.string()),
        ("class", pa.string()),
        ("step", pa.int32()),
        ("collective", pa.int32()),
        ("bytes", pa.int64()),
        ("measured_start_ns", pa.int64()),
        ("measured_dur_ns", pa.int64()),
        ("replayed_start_ns", pa.int64()),
        ("replayed_end_ns", pa.int64()),
        ("on_critical_path", pa.bool_()),
    ]
)
"""Columns of the table (docs/how-to/export.md). Times are ns since the epoch on the clock of the job."""


def node_rows(exported: Exported) -> Iterator[pa.RecordBatch]:
    """The rows (`NODES`) of each rank in each timeline, by lane and start."""
    timelines = [_TimelineRows(exported, title, timeline) for title, timeline in exported.timelines.items()]
    for rank in exported.ranks:
        for rows in timelines:
            yield rows.of_rank(rank)


@dataclass(frozen=True)
class _TimelineRows:
    exported: Exported
    title: str
    timeline: Timeline

    @property
    def _dfg(self) -> Dfg:
        return self.timeline.dfg

    @cached_property
    def _nodes(self) -> np.ndarray:
        """Ids of the nodes that are on a lane, by rank, lane and start."""
        dfg = self._dfg
        nodes = np.flatnonzero((dfg.lane >= 0) & (dfg.dur_ns > 0) & np.isin(dfg.step, self.exported.steps))
        order = np.lexsort((self.timeline.start_ns[nodes], dfg.lane[nodes], dfg.rank[nodes]))
        by_rank: np.ndarray = nodes[order]
        return by_rank

    @cached_property
    def _first(self) -> np.ndarray:
        """Index in `_nodes` of the first node of each rank of the job, and their number."""
        ranks = np.append(self.exported.ranks, np.iinfo(np.int32).max)
        return np.searchsorted(self._dfg.rank[self._nodes], ranks)

    @cached_property
    def _on_path(self) -> np.ndarray:
        on_path = np.zeros(self._dfg.nodes, bool)
        on_path[[piece.node for piece in self.exported.paths[self.title]]] = True
        return on_path

    @cached_property
    def _names(self) -> pa.Array:
        names = self._dfg.names
        return pa.array([hashed("node", name) for name in names] if self.exported.is_redacted else names, pa.string())

    @cached_property
    def _labels(self) -> Sequence[str]:
        return lane_labels(self._dfg)

    def of_rank(self, rank: Rank) -> pa.RecordBatch:
        dfg, recorded, timeline = self._dfg, self.exported.dfg, self.timeline
        at = list(self.exported.ranks).index(rank)
        nodes = self._nodes[self._first[at] : self._first[at + 1]]
        lanes, absent = dfg.lane[nodes].tolist(), np.full(len(nodes), dfg.key is not recorded.key)
        measured = np.where(absent, 0, nodes)
        columns = [
            pa.array([self.title] * len(nodes), pa.string()),
            pa.array(dfg.rank[nodes], pa.int32()),
            pa.array([self._labels[lane] for lane in lanes], pa.string()),
            pa.array([dfg.lanes[lane].kind.value for lane in lanes], pa.string()),
            self._names.take(pa.array(dfg.name[nodes])),
            pa.array([Cls(cls).label for cls in dfg.cls[nodes].tolist()], pa.string()),
            _known(dfg.step[nodes], pa.int32()),
            _known(dfg.collective[nodes], pa.int32()),
            _known(dfg.bytes[nodes], pa.int64()),
            pa.array(recorded.t0_ns + recorded.recorded_ns[measured], pa.int64(), mask=absent),
            pa.array(recorded.dur_ns[measured], pa.int64(), mask=absent),
            pa.array(dfg.t0_ns + timeline.start_ns[nodes], pa.int64()),
            pa.array(dfg.t0_ns + timeline.end_ns[nodes], pa.int64()),
            pa.array(self._on_path[nodes], pa.bool_()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=NODES)


def _known(values: np.ndarray, type_: pa.DataType) -> pa.Array:
    """The values; negative ones are unknown, hence null."""
    return pa.array(values, type_, mask=values < 0)
