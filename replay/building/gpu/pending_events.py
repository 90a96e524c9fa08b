"""Which work a stream waits for, where of the wait only the call was recorded, and not the event or the streams."""

from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled
from esprof.replay import rules
from esprof.replay.building.gpu.kernels import GpuWork
from esprof.replay.building.lookup import Sequences, entries

_MAX_PENDING = 256
"""How many of the latest events that nothing has waited for yet are looked at: one that is never waited for stays."""

_MAX_FOLLOWING_PAUSE, _MAX_WAIT_OVERLAP = rules.MAX_FOLLOWING_PAUSE, rules.MAX_WAIT_OVERLAP
_LAUNCH, _RECORD, _WAIT = 1, 2, 3


def likely_waits(gpu: GpuWork, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(source, target) of the waits that the calls `rows` set up, pieces of GPU work; -1 where there is none.

    A wait inside the call of a collective, before its launch, is the collective's: for what the thread had launched. Any
    other holds back what the thread launches next that is no collective, until an event is done. If the call follows that
    which recorded an event, it is for that one. Else it is for one of the events that nothing has waited for yet: every
    collective ends with one. The first recorded is the first waited for, unless another was done just when the held piece
    began.
    """
    events = gpu.events
    thread, moment = events.thread[rows], events.start[rows]
    # Collectives are in no sequence here: what threads compute with.
    computing = Sequences(np.where(gpu.is_collective, -1, gpu.thread), gpu.launched, gpu.origin)
    is_collectives = events.inside_comms(rows) >= 0
    target = np.where(is_collectives, gpu.by_thread.next(thread, moment), computing.next(thread, moment))
    own, other = computing.last(thread, moment), gpu.last_on_another(entries(gpu.lane, target, -1), moment)
    pending = _pending(gpu, rows[~is_collectives], target[~is_collectives], other[~is_collectives])
    source = own.copy()
    source[~is_collectives] = pending
    return source, target


class _Calls(NamedTuple):
    """Launches, records of events and waits of a rank, in order of time."""

    what: np.ndarray
    """_LAUNCH, _RECORD or _WAIT."""
    thread: np.ndarray
    piece: np.ndarray
    """The piece that was launched, or that is held back until the event is done."""
    other: np.ndarray
    """What a wait is for if nothing pending can be it: a piece, or -1."""


def _pending(gpu: GpuWork, waits: np.ndarray, target: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The piece that each of the calls `waits` is for; -1 where nothing can be it."""
    events, records = gpu.events, gpu.event_records
    launches = events.runtime[gpu.launched_by[events.runtime] >= 0]
    row = np.concatenate([launches, records, waits])
    nothing = np.full(len(records), -1)
    calls = _Calls(
        what=np.repeat([_LAUNCH, _RECORD, _WAIT], [len(launches), len(records), len(waits)]),
        thread=events.thread[row],
        piece=np.concatenate([gpu.launched_by[launches], nothing, target]),
        other=np.concatenate([np.full(len(launches), -1), nothing, other]),
    )
    order = np.lexsort((row, events.start[row]))
    found = np.full(len(row), -1)
    threads = int(events.thread.max(initial=0)) + 1
    found[order] = _follow(
        _Calls(*(column[order] for column in calls)), gpu.lane, gpu.start, gpu.end, gpu.is_collective, threads
    )
    return found[len(launches) + len(records) :]


@compiled
def _follow(
    calls: _Calls, lane: np.ndarray, start: np.ndarray, end: np.ndarray, is_collective: np.ndarray, threads: int
) -> np.ndarray:
    """What each call waits for, a piece of work; -1 for calls that are no waits, and where nothing can be it."""
    found = np.full(len(calls.what), -1)
    # Of each thread, what it launched last, and what it recorded last if that was its last call (-1: it was not).
    launched, recorded = np.full(threads, -1), np.full(threads, -1)
    pending, count, first = np.full(len(calls.what), -1), 0, 0
    for n in range(len(calls.what)):
        thread, piece = calls.thread[n], calls.piece[n]
        if thread < 0:
            continue
        if calls.what[n] == _LAUNCH:
            launched[thread], recorded[thread] = piece, -1
            if is_collective[piece]:
                pending[count] = piece
                count += 1
        elif calls.what[n] == _RECORD:
            recorded[thread] = launched[thread]
            if launched[thread] >= 0 and not is_collective[launched[thread]]:
                pending[count] = launched[thread]
                count += 1
        elif piece >= 0:
            first = max(first, count - _MAX_PENDING)
            source = recorded[thread]
            if source >= 0 and lane[source] == lane[piece]:
                source = calls.other[n]
            if source < 0:
                source = _chosen(pending, first, count, piece, lane, start, end)
            # On one stream, what was recorded before is done, too.
            for at in range(first, count):
                if source >= 0 and pending[at] >= 0 and lane[pending[at]] == lane[source]:
                    done = pending[at] == source
                    if end[pending[at]] <= end[source]:
                        pending[at] = -1
                    if done:
                        break
            while first < count and pending[first] < 0:
                first += 1
            found[n] = source if source >= 0 else calls.other[n]
    return found


@compiled
def _chosen(
    pending: np.ndarray, begin: int, until: int, held: int, lane: np.ndarray, start: np.ndarray, end: np.ndarray
) -> int:
    """Of the pending pieces on other streams than that of the piece `held` the one that held it; -1 for none."""
    oldest = latest = -1
    for at in range(begin, until):
        piece = pending[at]
        if piece < 0 or lane[piece] == lane[held] or end[piece] > start[held] + _MAX_WAIT_OVERLAP:
            continue
        if oldest < 0:
            oldest = piece
        if end[piece] >= start[held] - _MAX_FOLLOWING_PAUSE and (latest < 0 or end[piece] > end[latest]):
            latest = piece
    return latest if latest >= 0 else oldest
