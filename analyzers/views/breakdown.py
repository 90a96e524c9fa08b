"""Breakdown of each rank's step: a partition of its time by the activity of device and host."""

from collections.abc import Mapping

import numpy as np

from esprof.analyzers.finding import ACTIVITIES, RankBreakdown
from esprof.core.statistics import distinct
from esprof.core.types import Rank, us
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.engine.timeline import Timeline
from esprof.replay.replayed import Replayed
from esprof.run.run import RankMeta


def breakdown(replayed: Replayed) -> tuple[RankBreakdown, ...]:
    """Breakdown of each rank's mean steady-state step."""
    timeline, at = replayed.timeline, replayed.pricer.steady_at
    return tuple(breakdown_of(replayed.run.rank(rank), timeline, at) for rank in timeline.dfg.marks.ranks)


def breakdown_of(meta: RankMeta, timeline: Timeline, at: np.ndarray) -> RankBreakdown:
    """Breakdown of a rank's mean step of those at the positions `at` of `dfg.marks.steps`."""
    dfg, rank = timeline.dfg, meta.rank
    spans = _spans(timeline, rank, at)
    communication = _intervals(timeline, _of(dfg, dfg.nodes_of(rank), Cls.COMMUNICATION))
    communication_ns = partition([communication], spans)[:, 0].mean()
    shares = partition(layers(timeline, rank), spans).mean(axis=0)
    return of_rank(meta, dict(zip(ACTIVITIES, shares.tolist(), strict=True)), float(communication_ns))


def shares_of_steps(replayed: Replayed) -> dict[Rank, np.ndarray]:
    """Time of each rank in each of `ACTIVITIES` in each steady-state step, ns, int64[steps, activities]."""
    timeline, at = replayed.timeline, replayed.pricer.steady_at
    return {rank: partition(layers(timeline, rank), _spans(timeline, rank, at)) for rank in timeline.dfg.marks.ranks}


def _spans(timeline: Timeline, rank: Rank, at: np.ndarray) -> np.ndarray:
    """(begin, end) of each step of a rank at these positions, ns since `t0_ns`, int64[steps, 2]."""
    end_ns, marks = timeline.end_ns, timeline.dfg.marks
    column = marks.ranks.index(rank)
    return np.stack([end_ns[marks.first[at, column]], end_ns[marks.last[at, column]]], axis=1)


def of_rank(meta: RankMeta, shares_ns: Mapping[str, float], communication_ns: float) -> RankBreakdown:
    """The breakdown of a rank from its time in each activity of a mean step, ns; missing ones are 0.

    `communication_ns` is the time of its communication, whether it overlaps compute or not.
    """
    values = {activity: us(shares_ns.get(activity, 0.0)) for activity in ACTIVITIES}
    overlap = 100 * (1 - shares_ns["exposed_communication"] / communication_ns) if communication_ns else None
    return RankBreakdown(
        rank=meta.rank,
        device=meta.device,
        host_name=meta.host,
        # Rounded shares must still sum to the step that is shown.
        step_us=round(sum(values.values()), 3),
        overlap_pct=None if overlap is None else round(overlap, 2),
        **values,
    )


def layers(timeline: Timeline, rank: Rank) -> list[np.ndarray]:
    """Intervals of each part except `idle`, in order of precedence, ns, shape (n, 2) each."""
    dfg = timeline.dfg
    mine = dfg.nodes_of(rank)
    host = _on(dfg, mine, LaneKind.CPU)
    device = _on(dfg, mine, LaneKind.STREAM) if dfg.has_gpu(rank) else host
    return [
        _intervals(timeline, _of(dfg, device, Cls.COMPUTE)),
        _intervals(timeline, _of(dfg, mine, Cls.COMMUNICATION)),
        _intervals(timeline, _of(dfg, device, Cls.COPY)),
        np.concatenate([waits(timeline, rank), _intervals(timeline, _of(dfg, mine, Cls.RESIDUAL))]),
        stalls(timeline, rank),
        _intervals(timeline, _of(dfg, host, Cls.CPU, Cls.HOST_GAP, Cls.LAUNCH, Cls.ALLOCATOR)),
    ]


def waits(timeline: Timeline, rank: Rank) -> np.ndarray:
    """From this rank's arrival at each matched collective to the arrival of the last peer, ns, shape (n, 2)."""
    dfg = timeline.dfg
    mine = dfg.nodes_of(rank)
    mine = mine[dfg.collective[mine] >= 0]
    arrive, communicate = _of(dfg, mine, Cls.WAIT), _of(dfg, mine, Cls.COMMUNICATION)
    arrive = arrive[np.argsort(dfg.collective[arrive])]
    communicate = communicate[np.argsort(dfg.collective[communicate])]
    return np.stack([timeline.end_ns[arrive], timeline.start_ns[communicate]], axis=1)


def stalls(timeline: Timeline, rank: Rank) -> np.ndarray:
    """Intervals in which this rank's threads are in the loader's `next`, waiting or making batches, ns, shape (n, 2)."""
    dfg = timeline.dfg
    nodes = _of(dfg, _on(dfg, dfg.nodes_of(rank), LaneKind.CPU), Cls.DATA)
    before = np.array([_lane_end_before(timeline, int(node)) for node in nodes], np.int64)
    return np.stack([before, timeline.end_ns[nodes]], axis=1) if len(nodes) else np.zeros((0, 2), np.int64)


def _on(dfg: Dfg, nodes: np.ndarray, kind: LaneKind) -> np.ndarray:
    """The `nodes` (ids) on lanes of this kind."""
    chosen: np.ndarray = nodes[np.array([lane.kind == kind for lane in dfg.lanes])[dfg.lane[nodes]]]
    return chosen


def _of(dfg: Dfg, nodes: np.ndarray, *classes: Cls) -> np.ndarray:
    """The `nodes` (ids) of these classes."""
    among = np.zeros(len(Cls), bool)
    among[list(classes)] = True
    chosen: np.ndarray = nodes[among[dfg.cls[nodes]]]
    return chosen


def _lane_end_before(timeline: Timeline, node: int) -> int:
    """End of the predecessors of `node` on its thread, ns: the start of a blocking call, whose work starts later."""
    dfg: Dfg = timeline.dfg
    sources = dfg.pred_idx[dfg.pred_ptr[node] : dfg.pred_ptr[node + 1]]
    same = sources[dfg.lane[sources] == dfg.lane[node]]
    return int(timeline.end_ns[same].max(initial=0)) if len(same) else int(timeline.start_ns[node])


def _intervals(timeline: Timeline, nodes: np.ndarray) -> np.ndarray:
    return np.stack([timeline.start_ns[nodes], timeline.end_ns[nodes]], axis=1)


def partition(layers: list[np.ndarray], spans: np.ndarray) -> np.ndarray:
    """Split disjoint `spans` (s, 2) among `layers`: an instant counts for the first layer that covers it, else for the rest.

    Returns (s, layers + 1) in the unit of `spans`; each row sums to its span.
    """
    bounds = distinct(np.concatenate([spans.ravel(), *(layer.ravel() for layer in layers)]))
    begin, length = bounds[:-1], np.diff(bounds)
    owner = np.full(len(begin), len(layers))
    for number in reversed(range(len(layers))):
        change = np.zeros(len(bounds), np.int64)
        nonempty = layers[number][layers[number][:, 1] > layers[number][:, 0]]
        np.add.at(change, np.searchsorted(bounds, nonempty[:, 0]), 1)
        np.add.at(change, np.searchsorted(bounds, nonempty[:, 1]), -1)
        owner[np.cumsum(change)[:-1] > 0] = number
    shares = np.zeros((len(spans), len(layers) + 1), np.int64)
    for row, (first, last) in enumerate(spans):
        inside = slice(*np.searchsorted(begin, (first, last)).tolist())
        shares[row] = np.bincount(owner[inside], weights=length[inside], minlength=len(layers) + 1).astype(np.int64)
    return shares
