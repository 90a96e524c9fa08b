"""What calls of the GPU's runtime waited for: by the profiler's records, by the launch queue, and by time."""

from dataclasses import dataclass

import numpy as np

from esprof.replay import rules
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.gpu.kernels import GpuWork
from esprof.replay.building.lookup import Sequences, entries, position
from esprof.replay.building.node_names import Text
from esprof.replay.building.node_records import edges_of
from esprof.replay.building.threads.cpu_threads import Chains
from esprof.replay.dfg import Edge
from esprof.replay.runtime_names import CALL_TRAITS, call_traits

_MAX_STEPS_IN_FLIGHT = 4
"""How many events back a script may wait for one that it recorded."""

_MAX_SEARCHED = 16
"""How many of the pieces that ended last by a moment are looked at for the one that a call waited for."""

_NO_CAUSE_NS = np.iinfo(np.int64).max
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
        long: np.ndarray = self.end - self.start > rules.MIN_WAITING_CALL
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
    """The GPU work that calls waited for, or would have waited for; none of calls of which nothing tells the cause."""
    traits, long = calls.traits, calls.is_long
    is_recorded = traits["synchronizes"] & _has_recorded_event(gpu, calls)
    room = gpu.makes_room[calls.row]
    for_room = ~is_recorded & (room >= 0) & (gpu.end_of(room) > calls.start) & _in_time(gpu.end_of(room), calls.end)
    copy = long & ~is_recorded & ~for_room & traits["copies"] & (calls.launched >= 0)
    for_copy = copy & _just_before(gpu.end_of(calls.launched), calls.end)
    stops = traits["frees"] | (traits["synchronizes"] & traits["whole_device"])
    of_device = _of_device(gpu, calls, np.flatnonzero(stops & ~is_recorded))
    unknown = traits["synchronizes"] & ~is_recorded & ~for_room & ~copy & ~np.isin(calls.row, of_device.row)
    of_events = _of_events(gpu, calls, np.flatnonzero(unknown & traits["one_event"]))
    unknown &= ~np.isin(calls.row, of_events.row)
    return (
        _recorded(gpu, calls.row[is_recorded])
        + _causes(calls.row[for_room], room[for_room], Edge.WAIT)
        + _causes(calls.row[for_copy], calls.launched[for_copy], Edge.SYNC)
        + of_device
        + of_events
        + _likely(gpu, calls, np.flatnonzero(unknown & long))
        + _own_stream(gpu, calls, np.flatnonzero(unknown & ~long & traits["whole_stream"]))
    )


def _has_recorded_event(gpu: GpuWork, calls: RuntimeCalls) -> np.ndarray:
    """Mask of the calls whose record tells what they wait for. That of an event recorded before the window does not."""
    events, record = gpu.events, gpu.events.record_of[calls.row]
    event = np.where(record >= 0, events.ints("sync_correlation", record), -1)
    is_recorded: np.ndarray = (record >= 0) & ((event < 0) | (events.runtime_of(event) >= 0))
    return is_recorded


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
    return _causes(row, np.where(event, by_event, by_stream), Edge.SYNC) + _all_of(gpu, row[of_all], every)


def _of_device(gpu: GpuWork, calls: RuntimeCalls, at: np.ndarray) -> Causes:
    """What the calls at these places wait for, which by their definition wait for all streams: the last of each.

    Nothing for a call that returned before one of these ended: then something is amiss.
    """
    every = gpu.last_per_stream(calls.start[at])
    ended = _in_time(gpu.end_of(every), calls.end[at][:, None]).all(axis=1)
    return _all_of(gpu, calls.row[at[ended]], every[ended])


def _all_of(gpu: GpuWork, row: np.ndarray, every: np.ndarray) -> Causes:
    """Causes of calls that wait for a piece on each stream, `every`, shape (calls, lanes)."""
    return _causes(np.repeat(row, len(gpu.lanes)), every.ravel(), Edge.SYNC)


def _own_stream(gpu: GpuWork, calls: RuntimeCalls, at: np.ndarray) -> Causes:
    """What the calls at these places, which wait for a stream and found it idle, would have waited for.

    The stream is likely to be that to which the thread launched last.
    """
    last = gpu.by_thread.last(gpu.events.thread[calls.row[at]], calls.start[at])
    last = np.where(_in_time(gpu.end_of(last), calls.end[at]), last, -1)
    return _causes(calls.row[at], last, Edge.BY_TIME)


def _of_events(gpu: GpuWork, calls: RuntimeCalls, at: np.ndarray) -> Causes:
    """What the calls at these places, which wait for an event, waited for, where that is the same event each time.

    A script that keeps n steps in flight waits in each for the event that it recorded n before the latest. n is the number
    for which most of the calls that took long returned as what was launched before that event ended, if those are more than
    half.
    """
    events, records = gpu.events, gpu.event_records
    thread, start, end = events.thread[calls.row[at]], calls.start[at], calls.end[at]
    long = calls.is_long[at]
    by_thread = Sequences(events.thread[records], events.start[records], gpu.origin)
    record, best, most = by_thread.last(thread, start), np.full(len(at), -1), 0.5 * int(long.sum())
    for _ in range(_MAX_STEPS_IN_FLIGHT):
        since = entries(events.start, entries(records, record, -1), 0)
        piece = np.where(record >= 0, gpu.by_thread.last(thread, since), -1)
        over = _in_time(gpu.end_of(piece), end)
        hits = int((long & (piece >= 0) & _just_before(gpu.end_of(piece), end)).sum())
        if hits > most:
            best, most = np.where(over, piece, -1), hits
        record = np.where(record >= 0, by_thread.last(thread, since - 1), -1)
    return _causes(calls.row[at], best, Edge.BY_TIME)


def _likely(gpu: GpuWork, calls: RuntimeCalls, at: np.ndarray) -> Causes:
    """What the long calls at these places, which have no record, waited for.

    Of the last work on each stream that was launched before a call, the cause is the piece that ended as the call returned;
    else any piece that did, since what is waited for may have work queued behind it. Where there is none, it is the only
    piece of the former that ended inside the call.
    """
    if not len(at):
        return _NO_CAUSES
    start, end = calls.start[at], calls.end[at]
    # A line for each call, a column for each stream.
    last = gpu.last_per_stream(start)
    ends = gpu.end_of(last)
    ended = (ends > start[:, None]) & _in_time(ends, end[:, None])
    near = _least(last, np.where(ended, _distance(ends, end), _NO_CAUSE_NS))
    near = np.where(near >= 0, near, _ending_at(gpu, start, end))
    only = _least(last, np.where(ended & (ended.sum(axis=1) == 1)[:, None], -ends, _NO_CAUSE_NS))
    return _causes(calls.row[at], np.where(near >= 0, near, only), Edge.BY_TIME)


def hidden_causes(gpu: GpuWork, calls: RuntimeCalls) -> Causes:
    """The GPU work whose end may have ended a silence before calls that hide a wait (docs/explanation/replay.md §1.5)."""
    at = np.flatnonzero(calls.traits["hides_wait"])
    start = calls.start[at]
    last = gpu.last_per_stream(start)
    near = _least(last, _distance(gpu.end_of(last), start))
    near = np.where(near >= 0, near, _ending_at(gpu, start, start))
    return _causes(calls.row[at], near, Edge.BY_TIME)


def _ending_at(gpu: GpuWork, since: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Of all pieces launched by `since`, the one that ended nearest to each `moment` and just before it; -1 for none. ns."""
    if not len(gpu):
        return np.full(len(moment), -1)
    by_end = np.argsort(gpu.end, kind="stable")
    ended = np.searchsorted(gpu.end[by_end], moment + rules.MAX_SYNC_EARLY, side="right")
    # A line for each moment, a column for each piece that ended up to then, from the last one backwards.
    back = ended[:, None] - 1 - np.arange(_MAX_SEARCHED)
    piece = by_end[np.maximum(back, 0)]
    usable = (back >= 0) & (gpu.launched[piece] <= since[:, None])
    return _least(piece, np.where(usable, _distance(gpu.end[piece], moment), _NO_CAUSE_NS))


def _distance(ends: np.ndarray, until: np.ndarray) -> np.ndarray:
    """From each of the `ends` in a line to the moment `until` of that line, ns; _NO_CAUSE_NS for an end too far from it.

    Shapes: `ends` (calls, streams), `until` (calls,).
    """
    return np.where(_just_before(ends, until[:, None]), np.abs(until[:, None] - ends), _NO_CAUSE_NS)


def _least(work: np.ndarray, measure: np.ndarray) -> np.ndarray:
    """Of the `work` in each line the piece with the least `measure`; -1 where all measure `_NO_CAUSE_NS`.

    Both have the shape (calls, streams).
    """
    if not work.size:
        return np.full(len(work), -1)
    line, column = np.arange(len(work)), np.argmin(measure, axis=1)
    return np.where(measure[line, column] < _NO_CAUSE_NS, work[line, column], -1)


def _in_time(moment: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Whether something that ended at `moment` can have been over when a call returned at `until`."""
    over: np.ndarray = moment <= until + rules.MAX_SYNC_EARLY
    return over


def _just_before(moment: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Whether something that ended at `moment` can be what a call that returned at `until` waited for."""
    near: np.ndarray = _in_time(moment, until) & (until - moment <= rules.MAX_SYNC_LATE)
    return near


def own_ns(gpu: GpuWork, calls: RuntimeCalls, causes: Causes) -> np.ndarray:
    """How much of each call is its own work, ns: of one that waited, what lies behind the end of what it waited for.

    That is no more than BLOCKING_OWN, but for `cudaFree`, which takes long by itself. A call that waited for something
    unknown keeps BLOCKING_OWN.
    """
    ended = _ended(gpu, calls, causes)
    took = calls.end - calls.start
    own = np.where(ended > calls.start, np.maximum(calls.end - ended, 0), took)
    most = np.where(calls.is_long, rules.MAX_BLOCKING_OWN, took)
    remaining: np.ndarray = np.where(calls.traits["frees"], own, np.minimum(own, most))
    return remaining


def _ended(gpu: GpuWork, calls: RuntimeCalls, causes: Causes) -> np.ndarray:
    """When the last of the causes of each call ended, ns; 0 for a call without."""
    of_row = np.zeros(len(gpu.events.start), np.int64)
    np.maximum.at(of_row, causes.row, gpu.end_of(causes.work))
    ended: np.ndarray = of_row[calls.row]
    return ended


def sync_edges(gpu: GpuWork, calls: RuntimeCalls, causes: Causes, chains: Chains) -> np.ndarray:
    """Edges from what calls waited for to the return of the calls.

    By the recorded clocks a call may return a little before or after what it waited for: the lag keeps that. Whatever else
    the call would have waited for lets it go on as soon.
    """
    ended, node = _ended(gpu, calls, causes), chains.node_of[calls.row]
    waited = np.clip(chains.start_of(node) - ended, -rules.MAX_SYNC_EARLY, rules.MAX_SYNC_LATE)
    lag = np.zeros(len(gpu.events.start), np.int64)
    lag[calls.row] = np.where(ended > calls.start, waited, 0)
    return edges_of(gpu.last[causes.work], chains.node_of[causes.row], causes.kind, lag[causes.row])


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


def coverage(calls: RuntimeCalls, causes: Causes, chains: Chains) -> BuildCounts:
    """How many long calls waited, and for how many of them the cause was recorded, or found by time."""
    waits = calls.row[calls.waits(causes) & calls.is_long & (chains.node_of[calls.row] >= 0)]
    by_time = causes.kind == Edge.BY_TIME
    return BuildCounts(
        waits=len(waits),
        waits_recorded=int(np.isin(waits, causes.row[~by_time]).sum()),
        waits_inferred=int(np.isin(waits, causes.row[by_time]).sum()),
    )
