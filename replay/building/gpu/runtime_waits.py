"""Find the GPU work that runtime calls waited for: from the profiler's records, the launch queue, or matching times."""

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
"""Largest number of events between recording an event and waiting for it in a script that keeps steps in flight."""

_MAX_SEARCHED = 16
"""How many of the pieces that ended last before a call returned are searched for its cause."""

_NO_CAUSE_NS = np.iinfo(np.int64).max
"""Distance of a piece of work that cannot be the cause (`_least`)."""


@dataclass(frozen=True)
class Causes:
    """Pairs of a call and the GPU work that it waited for: row of the call, piece of work, kind of evidence (`Edge`).

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
    """Calls of the GPU runtime on the threads that are lanes; one entry per call."""

    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    launched: np.ndarray
    """First piece of GPU work that each call launched; -1 for none."""
    traits: np.ndarray
    """Traits of each call (`CALL_TRAITS`)."""

    @property
    def is_long(self) -> np.ndarray:
        long: np.ndarray = self.end - self.start > rules.MIN_WAITING_CALL
        return long

    def waits(self, causes: Causes) -> np.ndarray:
        """Mask of the calls that waited: those with one of `causes`, and long synchronizing ones of unknown cause."""
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
    """GPU work that calls waited for, or would have waited for had it ended later; none where the cause is unknown."""
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
    """Mask of the calls whose record identifies the awaited work; an event recorded before the window does not."""
    events, record = gpu.events, gpu.events.record_of[calls.row]
    event = np.where(record >= 0, events.ints("sync_correlation", record), -1)
    is_recorded: np.ndarray = (record >= 0) & ((event < 0) | (events.runtime_of(event) >= 0))
    return is_recorded


def _recorded(gpu: GpuWork, row: np.ndarray) -> Causes:
    """Causes of recorded synchronizations: an event's last kernel, a stream's last one, or the last of every stream."""
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
    """Causes of the calls at positions `at`, which by definition wait for all streams: the last piece on each.

    A call that returned before one of these pieces ended gets no cause, because the records contradict each other.
    """
    every = gpu.last_per_stream(calls.start[at])
    ended = _in_time(gpu.end_of(every), calls.end[at][:, None]).all(axis=1)
    return _all_of(gpu, calls.row[at[ended]], every[ended])


def _all_of(gpu: GpuWork, row: np.ndarray, every: np.ndarray) -> Causes:
    """Causes of calls that wait for a piece on each stream, `every`, shape (calls, lanes)."""
    return _causes(np.repeat(row, len(gpu.lanes)), every.ravel(), Edge.SYNC)


def _own_stream(gpu: GpuWork, calls: RuntimeCalls, at: np.ndarray) -> Causes:
    """Causes of the calls at positions `at`, which wait for a stream and found it idle.

    The stream is assumed to be the one to which the thread launched last.
    """
    last = gpu.by_thread.last(gpu.events.thread[calls.row[at]], calls.start[at])
    last = np.where(_in_time(gpu.end_of(last), calls.end[at]), last, -1)
    return _causes(calls.row[at], last, Edge.BY_TIME)


def _of_events(gpu: GpuWork, calls: RuntimeCalls, at: np.ndarray) -> Causes:
    """Causes of the calls at positions `at`, each of which waits for an event recorded a fixed number of events earlier.

    A script that keeps n steps in flight waits in each step for the event recorded n before the latest. n is the number for
    which most long calls returned just as the work launched before that event ended; it must explain more than half of them.
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
    """Causes of the long calls at positions `at`, which have no record.

    Candidates are the last pieces launched to each stream before the call. The cause is the candidate that ended as the
    call returned; failing that, any piece that did, since later work may be queued after the awaited piece; failing that,
    the only candidate that ended during the call.
    """
    if not len(at):
        return _NO_CAUSES
    start, end = calls.start[at], calls.end[at]
    # Rows are calls, columns are streams.
    last = gpu.last_per_stream(start)
    ends = gpu.end_of(last)
    ended = (ends > start[:, None]) & _in_time(ends, end[:, None])
    near = _least(last, np.where(ended, _distance(ends, end), _NO_CAUSE_NS))
    near = np.where(near >= 0, near, _ending_at(gpu, start, end))
    only = _least(last, np.where(ended & (ended.sum(axis=1) == 1)[:, None], -ends, _NO_CAUSE_NS))
    return _causes(calls.row[at], np.where(near >= 0, near, only), Edge.BY_TIME)


def hidden_causes(gpu: GpuWork, calls: RuntimeCalls) -> Causes:
    """GPU work whose end may have ended the silence before calls that hide a wait (docs/explanation/replay.md §1.5)."""
    at = np.flatnonzero(calls.traits["hides_wait"])
    start = calls.start[at]
    last = gpu.last_per_stream(start)
    near = _least(last, _distance(gpu.end_of(last), start))
    near = np.where(near >= 0, near, _ending_at(gpu, start, start))
    return _causes(calls.row[at], near, Edge.BY_TIME)


def _ending_at(gpu: GpuWork, since: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """The piece launched by `since` (ns) that ended closest to `moment` (ns), and just before it; -1 for none."""
    if not len(gpu):
        return np.full(len(moment), -1)
    by_end = np.argsort(gpu.end, kind="stable")
    ended = np.searchsorted(gpu.end[by_end], moment + rules.MAX_SYNC_EARLY, side="right")
    # Rows are moments, columns the pieces that ended by then, latest first.
    back = ended[:, None] - 1 - np.arange(_MAX_SEARCHED)
    piece = by_end[np.maximum(back, 0)]
    usable = (back >= 0) & (gpu.launched[piece] <= since[:, None])
    return _least(piece, np.where(usable, _distance(gpu.end[piece], moment), _NO_CAUSE_NS))


def _distance(ends: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Distance in time from each of the `ends` to `until` of its row, ns; `_NO_CAUSE_NS` if too far apart.

    Shapes: `ends` (calls, streams), `until` (calls,).
    """
    return np.where(_just_before(ends, until[:, None]), np.abs(until[:, None] - ends), _NO_CAUSE_NS)


def _least(work: np.ndarray, measure: np.ndarray) -> np.ndarray:
    """The piece of `work` with the least `measure` in each row; -1 where all are `_NO_CAUSE_NS`.

    Both have the shape (calls, streams).
    """
    if not work.size:
        return np.full(len(work), -1)
    line, column = np.arange(len(work)), np.argmin(measure, axis=1)
    return np.where(measure[line, column] < _NO_CAUSE_NS, work[line, column], -1)


def _in_time(moment: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Whether work that ended at `moment` may have been complete when a call returned at `until`; both ns."""
    over: np.ndarray = moment <= until + rules.MAX_SYNC_EARLY
    return over


def _just_before(moment: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Whether a call that returned at `until` may have waited for work that ended at `moment`; both ns."""
    near: np.ndarray = _in_time(moment, until) & (until - moment <= rules.MAX_SYNC_LATE)
    return near


def own_ns(gpu: GpuWork, calls: RuntimeCalls, causes: Causes) -> np.ndarray:
    """Own work of each call, ns. For a call that waited, this is the time after the awaited work ended.

    Own work of a long call is capped at `MAX_BLOCKING_OWN`, except for `cudaFree`, which is slow by itself. A long call of
    unknown cause gets `MAX_BLOCKING_OWN`.
    """
    ended = _ended(gpu, calls, causes)
    took = calls.end - calls.start
    own = np.where(ended > calls.start, np.maximum(calls.end - ended, 0), took)
    most = np.where(calls.is_long, rules.MAX_BLOCKING_OWN, took)
    remaining: np.ndarray = np.where(calls.traits["frees"], own, np.minimum(own, most))
    return remaining


def _ended(gpu: GpuWork, calls: RuntimeCalls, causes: Causes) -> np.ndarray:
    """End of the last cause of each call, ns; 0 for a call without causes."""
    of_row = np.zeros(len(gpu.events.start), np.int64)
    np.maximum.at(of_row, causes.row, gpu.end_of(causes.work))
    ended: np.ndarray = of_row[calls.row]
    return ended


def sync_edges(gpu: GpuWork, calls: RuntimeCalls, causes: Causes, chains: Chains) -> np.ndarray:
    """Edges from the awaited GPU work to the return of the calls.

    By the recorded clocks a call may return slightly before or after the awaited work ends; the lag preserves that. Edges
    from work that the call did not have to wait for have no lag.
    """
    ended, node = _ended(gpu, calls, causes), chains.node_of[calls.row]
    waited = np.clip(chains.start_of(node) - ended, -rules.MAX_SYNC_EARLY, rules.MAX_SYNC_LATE)
    lag = np.zeros(len(gpu.events.start), np.int64)
    lag[calls.row] = np.where(ended > calls.start, waited, 0)
    return edges_of(gpu.last[causes.work], chains.node_of[causes.row], causes.kind, lag[causes.row])


def hidden_edges(gpu: GpuWork, causes: Causes, chains: Chains) -> np.ndarray:
    """Edges from GPU work to the hidden waits that it ended; a hidden wait is the node before its call."""
    wait = chains.before(chains.node_of[causes.row])
    wait = np.where(chains.is_named(wait, Text.HIDDEN_WAIT), wait, -1)
    return edges_of(gpu.last[causes.work], wait, Edge.BY_TIME, chains.start_of(wait) - gpu.end_of(causes.work))


def queue_edges(gpu: GpuWork, row: np.ndarray, chains: Chains) -> np.ndarray:
    """Edges from the work that frees a slot in the launch queue to the launches `row`, which found room without waiting.

    Without these edges, a slower GPU would not make the launches wait.
    """
    row = row[gpu.makes_room[row] >= 0]
    room, node = gpu.makes_room[row], chains.node_of[row]
    return edges_of(gpu.last[room], node, Edge.WAIT, np.minimum(chains.start_of(node) - gpu.end[room], 0))


def coverage(calls: RuntimeCalls, causes: Causes, chains: Chains) -> BuildCounts:
    """Count the long calls that waited, those whose cause was recorded, and those whose cause was inferred from times."""
    waits = calls.row[calls.waits(causes) & calls.is_long & (chains.node_of[calls.row] >= 0)]
    by_time = causes.kind == Edge.BY_TIME
    return BuildCounts(
        waits=len(waits),
        waits_recorded=int(np.isin(waits, causes.row[~by_time]).sum()),
        waits_inferred=int(np.isin(waits, causes.row[by_time]).sum()),
    )
