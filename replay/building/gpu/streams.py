"""Why work on one GPU stream waits for another: events waited for, recorded or by launch order, and late kernels."""

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
"""How many of the pieces that ended last before a late kernel began are searched for one of another stream."""


@dataclass(frozen=True)
class StreamWaits:
    """Waits of one rank's streams for each other, set up by `cudaStreamWaitEvent`."""

    edges: np.ndarray
    held: np.ndarray
    """bool, an entry for each piece of GPU work: an event may have held it back."""
    rejected: int
    """How many waits cannot be true, and got no edge."""


def waits(gpu: GpuWork) -> StreamWaits:
    """Which work on one stream waited for which on another by an event.

    A wait that the profiler recorded tells its streams; what one of which there is only the call is for, is guessed. Waits
    that NCCL sets up behind its own launch are left out.
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
    """Edges between pieces of work (-1 is none) that run on two streams, the source before the target; others are left out.

    Returns the edges, and how many pairs got none because the source ends too late: those were paired wrongly.
    """
    known = (source >= 0) & (target >= 0)
    source, target = source[known], target[known]
    across = gpu.lane[source] != gpu.lane[target]
    source, target = source[across], target[across]
    wrong = gpu.end[source] > gpu.start[target] + rules.MAX_WAIT_OVERLAP
    source, target = source[~wrong], target[~wrong]
    lag = np.minimum(gpu.start[target] - gpu.end[source], 0)  # They may overlap by as much as is not rejected.
    return edges_of(gpu.last[source], gpu.first[target], kind, lag), int(wrong.sum())


def _recorded_waits(gpu: GpuWork, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(source, target) of each wait by the profiler's own record, pieces of GPU work; -1 where there is none.

    The source is the last that was launched to the awaited stream before the event was recorded, the target the first that
    was launched to the waiting stream afterwards, in order of launch, not of GPU time (HTA #73, #117).
    """
    events, record = gpu.events, gpu.events.record_of[rows]
    recorded = events.runtime_of(events.ints("sync_correlation", record))
    since = events.start[np.where(recorded >= 0, recorded, rows)]
    awaited, waiting = (position(gpu.streams, events.ints(column, record)) for column in ("sync_stream", "stream"))
    return gpu.to_stream.last(awaited, since), gpu.to_stream.next(waiting, events.start[rows])


def _behind_own_launch(gpu: GpuWork, rows: np.ndarray) -> np.ndarray:
    """Mask of the calls that stand inside a collective's CPU call, behind the launch of that collective."""
    events = gpu.events
    enclosing = events.inside_comms(rows)
    launched = gpu.by_thread.last(events.thread[rows], events.start[rows])
    since = entries(gpu.launched, launched, 0)
    behind: np.ndarray = (enclosing >= 0) & (launched >= 0) & (since >= events.start[enclosing])
    return behind


def late_kernels(gpu: GpuWork, nodes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Find a reason for kernels that start late: another stream's kernel that just ended, or a GPU that others filled.

    All kernels of a CUDA graph are launched at once: one that does not run as soon as its stream is free has a reason.
    Returns edges from kernels that just ended; marks kernels held up by contention in `nodes`. `edges` are those known so
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
    """When `edges` allow each node to start, by recorded times, ns; its own start where no edge enters it."""
    never = np.iinfo(np.int64).min
    ready = np.full(len(nodes), never)
    ends = (nodes["start_ns"] + nodes["dur_ns"])[edges["source"]]
    np.maximum.at(ready, edges["target"], ends + edges["lag"])
    return np.where(ready == never, nodes["start_ns"], ready)


def _just_ended(gpu: GpuWork, late: np.ndarray) -> np.ndarray:
    """For each late piece, the last on another stream of the `_MAX_SEARCHED` pieces that ended before it; -1 for none."""
    # How many had ended by then: the last of them stands one place before that. The latest is tried last, and so stays.
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
    """For each late piece, the time from `since` to its start in which another stream computes, ns.

    `reach` is the latest end of computing work up to each piece, and ascends: all pieces before the first that reaches
    beyond `since` had ended by then.
    """
    # Pieces stand by start: what overlaps is counted once, since `reached` is how far the pieces before have covered.
    covered = np.zeros(len(late), np.int64)
    for n in range(len(late)):
        own, reached = late[n], since[n]
        for other in range(np.searchsorted(reach, since[n], side="right"), own):
            if computes[other] and lane[other] != lane[own] and end[other] > reached:
                until = min(end[other], start[own])
                covered[n] += max(0, until - max(start[other], reached))
                reached = max(reached, until)
    return covered
