"""Waits between GPU streams: events, recorded or inferred from launch order, and kernels that start late."""

from dataclasses import dataclass

import numpy as np

from esprof.core.compiled import compiled
from esprof.replay import rules
from esprof.replay.building.gpu.kernels import GpuWork
from esprof.replay.building.gpu.pending_events import likely_waits
from esprof.replay.building.lookup import entries, position
from esprof.replay.building.node_records import edges_of
from esprof.replay.dfg import Edge
from esprof.replay.runtime_names import CALL_TRAITS, call_traits

_MAX_SEARCHED = 4
"""How many of the pieces that ended last before a late kernel are searched for one on another stream."""


@dataclass(frozen=True)
class StreamWaits:
    """Waits between the streams of one rank, set up by `cudaStreamWaitEvent`."""

    edges: np.ndarray
    held: np.ndarray
    """bool, one entry per piece of GPU work: an event may have held it back."""
    rejected: int
    """Number of inferred waits that contradict the recorded times and got no edge."""


def waits(gpu: GpuWork) -> StreamWaits:
    """Find the event waits between streams.

    A wait recorded by the profiler names its streams. If only the call was recorded, the awaited work is inferred
    (`likely_waits`). Waits that NCCL sets up after its own launch are left out.
    """
    events = gpu.events
    rows = events.runtime[events.by_name(events.runtime, call_traits, CALL_TRAITS)["makes_stream_wait"]]
    is_recorded = events.record_of[rows] >= 0
    unrecorded = rows[~is_recorded]
    by_record = _recorded_waits(gpu, rows[is_recorded])
    by_order = likely_waits(gpu, unrecorded[~_behind_own_launch(gpu, unrecorded)])
    held = np.zeros(len(gpu), bool)
    for _, target in (by_record, by_order):
        held[target[target >= 0]] = True
    recorded, wrong = _across_streams(gpu, *by_record, Edge.WAIT)
    likely, unlikely = _across_streams(gpu, *by_order, Edge.LIKELY_WAIT)
    return StreamWaits(np.concatenate([recorded, likely]), held, wrong + unlikely)


def _across_streams(gpu: GpuWork, source: np.ndarray, target: np.ndarray, kind: Edge) -> tuple[np.ndarray, int]:
    """Edges between pairs of pieces (-1 is none) on different streams; other pairs are left out.

    Returns the edges, and the number of pairs rejected because the source ends after the target began.
    """
    known = (source >= 0) & (target >= 0)
    source, target = source[known], target[known]
    across = gpu.lane[source] != gpu.lane[target]
    source, target = source[across], target[across]
    wrong = gpu.end[source] > gpu.start[target] + rules.MAX_WAIT_OVERLAP
    source, target = source[~wrong], target[~wrong]
    lag = np.minimum(gpu.start[target] - gpu.end[source], 0)  # accepted pairs may overlap by up to MAX_WAIT_OVERLAP
    return edges_of(gpu.last[source], gpu.first[target], kind, lag), int(wrong.sum())


def _recorded_waits(gpu: GpuWork, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(source, target) pieces of GPU work of each wait that the profiler recorded; -1 where there is none.

    The source is the last piece launched to the awaited stream before the event was recorded. The target is the first piece
    launched to the waiting stream after the call. Both follow launch order, not GPU time (HTA #73, #117).
    """
    events, record = gpu.events, gpu.events.record_of[rows]
    recorded = events.runtime_of(events.ints("sync_correlation", record))
    since = events.start[np.where(recorded >= 0, recorded, rows)]
    awaited, waiting = (position(gpu.streams, events.ints(column, record)) for column in ("sync_stream", "stream"))
    return gpu.to_stream.last(awaited, since), gpu.to_stream.next(waiting, events.start[rows])


def _behind_own_launch(gpu: GpuWork, rows: np.ndarray) -> np.ndarray:
    """Mask of the calls inside a collective's CPU call and after the launch of that collective."""
    events = gpu.events
    enclosing = events.inside_comms(rows)
    launched = gpu.by_thread.last(events.thread[rows], events.start[rows])
    since = entries(gpu.launched, launched, 0)
    behind: np.ndarray = (enclosing >= 0) & (launched >= 0) & (since >= events.start[enclosing])
    return behind


def late_kernels(gpu: GpuWork, nodes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Explain kernels that start late by a kernel of another stream that just ended, or by contention for the GPU.

    All kernels of a CUDA graph are launched at once, so each that does not start as soon as its stream is free is late.
    Returns edges from the kernels that just ended, and marks contended kernels in `nodes`. `edges` are the edges known so
    far.
    """
    since = _ready(nodes, edges)[gpu.first]
    late = np.flatnonzero(gpu.start - since > np.where(gpu.in_graph, rules.MAX_STREAM_GAP, rules.MIN_KERNEL_LATENESS))
    cause = _just_ended(gpu, late)
    follows = (cause >= 0) & (gpu.start[late] - gpu.end[cause] <= rules.MAX_FOLLOWING_PAUSE)
    others = late[~follows]
    computes = ~gpu.is_collective  # NCCL alone does not fill a GPU
    reach = np.maximum.accumulate(np.where(computes, gpu.end, 0))
    covered = _covered(others, since[others], gpu.start, gpu.end, gpu.lane, computes, reach)
    contended = others[covered >= rules.MIN_CONTENDED_SHARE * (gpu.start[others] - since[others])]
    nodes["contended"][gpu.first[contended]] = True
    target, source = late[follows], cause[follows]
    return edges_of(gpu.last[source], gpu.first[target], Edge.BY_TIME, gpu.start[target] - gpu.end[source])


def _ready(nodes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Earliest start of each node that `edges` permit, by recorded times, ns; its own start if no edge enters it."""
    never = np.iinfo(np.int64).min
    ready = np.full(len(nodes), never)
    ends = (nodes["start_ns"] + nodes["dur_ns"])[edges["source"]]
    np.maximum.at(ready, edges["target"], ends + edges["lag"])
    return np.where(ready == never, nodes["start_ns"], ready)


def _just_ended(gpu: GpuWork, late: np.ndarray) -> np.ndarray:
    """For each late piece, the last of the `_MAX_SEARCHED` pieces ended before it that is on another stream; -1 for none."""
    # `ended` counts the pieces that had ended; candidates run from the earliest to the latest, and the latest fit remains.
    by_end = np.argsort(gpu.end, kind="stable")
    ended = np.searchsorted(gpu.end[by_end], gpu.start[late] + rules.MAX_WAIT_OVERLAP, side="right")
    cause = np.full(len(late), -1)
    for back in range(_MAX_SEARCHED, 0, -1):
        candidate = by_end[np.maximum(ended - back, 0)]
        usable = (ended >= back) & (gpu.lane[candidate] != gpu.lane[late])
        cause = np.where(usable, candidate, cause)
    return cause


@compiled
def _covered(
    late: np.ndarray,
    since: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    lane: np.ndarray,
    computes: np.ndarray,
    reach: np.ndarray,
) -> np.ndarray:
    """For each late piece, the time between `since` and its start during which another stream computes, ns.

    `reach` is the running maximum of the ends of computing work, so a binary search skips the pieces that ended by `since`.
    """
    # Pieces are sorted by start; `reached` is the end of the time covered so far, so that overlaps count once.
    covered = np.zeros(len(late), np.int64)
    for n in range(len(late)):
        own, reached = late[n], since[n]
        for other in range(np.searchsorted(reach, since[n], side="right"), own):
            if computes[other] and lane[other] != lane[own] and end[other] > reached:
                until = min(end[other], start[own])
                covered[n] += max(0, until - max(start[other], reached))
                reached = max(reached, until)
    return covered
