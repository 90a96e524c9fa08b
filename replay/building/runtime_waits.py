"""What calls of the GPU's runtime waited for: by the profiler's records, by the launch queue, and by time."""

from dataclasses import dataclass

import numpy as np

from esprof.replay import rules
from esprof.replay.building.counts import Counts
from esprof.replay.building.cpu import Chains
from esprof.replay.building.gpu import GpuWork
from esprof.replay.building.lookup import position
from esprof.replay.building.names import Text
from esprof.replay.building.records import edges_of
from esprof.replay.dfg import Edge
from esprof.replay.runtime_names import CALL_TRAITS, call_traits

_FAR = np.iinfo(np.int64).max
"""Measure of a piece of work that cannot be the cause (`_least`)."""


@dataclass(frozen=True)
class Causes:
    """What calls waited for: row of the call, piece of GPU work, kind of evidence (`Edge`), an entry for each such pair.

    A call may have several causes, all of one kind.
    """

    row: np.ndarray
    work: np.ndarray
    kind: np.ndarray

    def __add__(self, other: "Causes") -> "Causes":
        return Causes(*(np.concatenate(both) for both in zip(vars(self).values(), vars(other).values(), strict=True)))


_NO_CAUSES = Causes(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int8))


def _causes(row: np.ndarray, work: np.ndarray, kind: Edge) -> Causes:
    """Causes of one kind, without those whose `work` is -1."""
    known = work >= 0
    return Causes(row[known], work[known], np.full(int(known.sum()), kind, np.int8))


@dataclass(frozen=True)
class RuntimeCalls:
    """The calls of the GPU's runtime on threads that are lanes, an entry for each."""

    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    launched: np.ndarray
    """The first piece of GPU work that each call launched; -1 for none."""
    traits: np.ndarray
    """Traits of each call (`CALL_TRAITS`)."""

    @property
    def is_long(self) -> np.ndarray:
        long: np.ndarray = self.end - self.start > rules.LONG_CALL
        return long

    def waits(self, causes: Causes) -> np.ndarray:
        """Mask of the calls that waited: those that have one of `causes`, and long ones of which nothing tells the cause."""
        known = np.isin(self.row, causes.row)
        waits: np.ndarray = known | (self.traits["synchronizes"] & self.is_long & ~self.traits["allocates"])
        return waits


def runtime_calls(gpu: GpuWork) -> RuntimeCalls:
    """The runtime calls of a rank."""
    events = gpu.events
    rows = events.threads.row[events.of_kind(events.threads.row, "runtime")]
    return RuntimeCalls(
        row=rows,
        start=events.start[rows],
        end=np.minimum(events.end[rows], events.finish),
        launched=gpu.launched_by[rows],
        traits=events.by_name(rows, call_traits, CALL_TRAITS),
    )


def causes(gpu: GpuWork, calls: RuntimeCalls) -> Causes:
    """The GPU work that calls waited for; none of calls that did not block, or of which nothing tells the cause."""
    recorded = calls.traits["synchronizes"] & (gpu.events.record_of[calls.row] >= 0)
    blocked = calls.is_long & ~recorded
    room = gpu.makes_room[calls.row]
    for_room = blocked & (room >= 0) & _just_before(gpu.end_of(room), calls.end)
    copy = blocked & ~for_room & calls.traits["copies"] & (calls.launched >= 0)
    for_copy = copy & _just_before(gpu.end_of(calls.launched), calls.end)
    unknown = blocked & ~for_room & ~copy & (calls.traits["synchronizes"] | calls.traits["frees"])
    return (
        _recorded(gpu, calls.row[recorded])
        + _causes(calls.row[for_room], room[for_room], Edge.WAIT)
        + _causes(calls.row[for_copy], calls.launched[for_copy], Edge.SYNC)
        + _likely(gpu, calls, np.flatnonzero(unknown))
    )


def _recorded(gpu: GpuWork, row: np.ndarray) -> Causes:
    """What recorded synchronisations wait for: an event's kernel, a stream's last, or the last of every stream."""
    if not len(row):
        return _NO_CAUSES
    events, record = gpu.events, gpu.events.record_of[row]
    start = events.start[row]
    source = events.runtime_of(events.ints("sync_correlation", record))
    event, stream = source >= 0, position(gpu.streams, events.ints("stream", record))
    awaited = position(gpu.streams, events.ints("sync_stream", record))
    by_event = gpu.to_stream.last(awaited, events.start[source])
    by_stream = gpu.to_stream.last(stream, start)
    of_all = ~event & (events.ints("stream", record) < 0)
    every = gpu.last_per_stream(start[of_all])
    # Of calls that wait for all streams, each has as many entries as there are streams, call by call as in `every`.
    one, all_of_them = np.where(event, by_event, by_stream), np.repeat(row[of_all], len(gpu.lanes))
    return _causes(row, one, Edge.SYNC) + _causes(all_of_them, every.ravel(), Edge.SYNC)


def _likely(gpu: GpuWork, calls: RuntimeCalls, at: np.ndarray) -> Causes:
    """What the calls at these places, which have no record, waited for.

    Of the last work on each stream that was launched before a call and ended inside it, the cause is the piece that ended as
    the call returned. Where there is none, it is the piece that ended last, if the call waits for all streams or only one
    stream has such work; of `cudaFree`, which takes long by itself, nothing is known then.
    """
    if not len(at):
        return _NO_CAUSES
    start, end = calls.start[at], calls.end[at]
    # A line for each call, a column for each stream.
    last = gpu.last_per_stream(start)
    ends = gpu.end_of(last)
    ended = (ends > start[:, None]) & (ends <= end[:, None] + rules.SYNC_EARLY)
    near = _least(last, np.where(ended, _distance(ends, end), _FAR))
    by_definition = ~calls.traits["frees"][at] & (calls.traits["whole_device"][at] | (ended.sum(axis=1) == 1))
    latest = _least(last, np.where(ended & by_definition[:, None], -ends, _FAR))
    return _causes(calls.row[at], np.where(near >= 0, near, latest), Edge.BY_TIME)


def hidden_causes(gpu: GpuWork, calls: RuntimeCalls) -> Causes:
    """The GPU work whose end may have ended a silence before calls that hide a wait (docs/replay.md §1.5)."""
    at = np.flatnonzero(calls.traits["hides_wait"])
    last = gpu.last_per_stream(calls.start[at])
    near = _least(last, _distance(gpu.end_of(last), calls.start[at]))
    return _causes(calls.row[at], near, Edge.BY_TIME)


def _distance(ends: np.ndarray, until: np.ndarray) -> np.ndarray:
    """From each of the `ends` in a line to the moment `until` of that line, ns; _FAR for an end too far from it.

    Shapes: `ends` (calls, streams), `until` (calls,).
    """
    return np.where(_just_before(ends, until[:, None]), np.abs(until[:, None] - ends), _FAR)


def _least(work: np.ndarray, measure: np.ndarray) -> np.ndarray:
    """Of the `work` in each line the piece with the least `measure`; -1 where all measure _FAR. Both (calls, streams)."""
    if not work.size:
        return np.full(len(work), -1)
    line, column = np.arange(len(work)), np.argmin(measure, axis=1)
    return np.where(measure[line, column] < _FAR, work[line, column], -1)


def _just_before(moment: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Whether something that ended at `moment` can be what a call that returned at `until` waited for."""
    apart = until - moment
    near: np.ndarray = (apart >= -rules.SYNC_EARLY) & (apart <= rules.SYNC_LATE)
    return near


def sync_edges(gpu: GpuWork, causes: Causes, chains: Chains) -> np.ndarray:
    """Edges from what calls waited for to the return of the calls.

    By the recorded clocks a call may return a little before or after what it waited for: the lag keeps that.
    """
    node = chains.node_of[causes.row]
    lag = np.clip(chains.start_of(node) - gpu.end_of(causes.work), -rules.SYNC_EARLY, rules.SYNC_LATE)
    return edges_of(gpu.last[causes.work], node, causes.kind, lag)


def hidden_edges(gpu: GpuWork, causes: Causes, chains: Chains) -> np.ndarray:
    """Edges from GPU work to the hidden waits that it ended. A hidden wait, where there is one, stands before its call."""
    wait = chains.before(chains.node_of[causes.row])
    wait = np.where(chains.is_named(wait, Text.HIDDEN_WAIT), wait, -1)
    return edges_of(gpu.last[causes.work], wait, Edge.BY_TIME, chains.start_of(wait) - gpu.end_of(causes.work))


def queue_edges(gpu: GpuWork, row: np.ndarray, chains: Chains) -> np.ndarray:
    """Edges from the work that makes room in the launch queue to the launches in `row`, which found room without waiting.

    Without these edges a slower GPU would not make them wait.
    """
    row = row[gpu.makes_room[row] >= 0]
    room, node = gpu.makes_room[row], chains.node_of[row]
    return edges_of(gpu.last[room], node, Edge.WAIT, np.minimum(chains.start_of(node) - gpu.end[room], 0))


def coverage(calls: RuntimeCalls, causes: Causes, chains: Chains) -> Counts:
    """How many long calls waited, and for how many of them the cause was recorded, or found by time."""
    waits = calls.row[calls.waits(causes) & calls.is_long & (chains.node_of[calls.row] >= 0)]
    by_time = causes.kind == Edge.BY_TIME
    return Counts(
        waits=len(waits),
        waits_recorded=int(np.isin(waits, causes.row[~by_time]).sum()),
        waits_inferred=int(np.isin(waits, causes.row[by_time]).sum()),
    )
