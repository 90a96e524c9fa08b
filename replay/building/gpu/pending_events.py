"""Infer the work that a stream waits for where only the call was recorded, without its event or streams."""

from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled
from esprof.replay import rules
from esprof.replay.building.gpu.kernels import GpuWork
from esprof.replay.building.lookup import Sequences, entries

_MAX_PENDING = 256
"""Number of latest pending events that are searched; an event that nothing ever waits for would stay pending forever."""

_MAX_FOLLOWING_PAUSE, _MAX_WAIT_OVERLAP = rules.MAX_FOLLOWING_PAUSE, rules.MAX_WAIT_OVERLAP
_LAUNCH, _RECORD, _WAIT = 1, 2, 3


def likely_waits(gpu: GpuWork, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(source, target) pieces of GPU work of the waits that the calls `rows` set up; -1 where there is none.

    A wait inside a collective's call and before its launch makes the collective wait for the thread's last launched work.
    Any other wait holds back the next non-collective work of the thread until an event completes. If the thread recorded an
    event just before the call, that is the event. Otherwise it is a pending event, one that nothing has waited for yet;
    every collective ends with an event. The oldest pending event is taken, unless another completed just when the held
    piece began.
    """
    events = gpu.events
    thread, moment = events.thread[rows], events.start[rows]
    # Collectives belong to no sequence here: only compute and copies can be held back.
    computing = Sequences(np.where(gpu.is_collective, -1, gpu.thread), gpu.launched, gpu.origin)
    is_collectives = events.inside_comms(rows) >= 0
    target = np.where(is_collectives, gpu.by_thread.next(thread, moment), computing.next(thread, moment))
    own, other = computing.last(thread, moment), gpu.last_on_another(entries(gpu.lane, target, -1), moment)
    pending = _pending(gpu, rows[~is_collectives], target[~is_collectives], other[~is_collectives])
    source = own.copy()
    source[~is_collectives] = pending
    return source, target


class _Calls(NamedTuple):
    """Launches, event records and waits of a rank, in order of time."""

    what: np.ndarray
    """_LAUNCH, _RECORD or _WAIT."""
    thread: np.ndarray
    piece: np.ndarray
    """The piece that was launched, or that is held back until the event completes."""
    other: np.ndarray
    """The piece that a wait is for if no pending event fits; -1 for none."""


def _pending(gpu: GpuWork, waits: np.ndarray, target: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The piece that each of the calls `waits` waits for; -1 where none fits."""
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
    """The piece of work that each call waits for; -1 for calls other than waits, and where no piece fits."""
    found = np.full(len(calls.what), -1)
    # Per thread: the last launched piece, and the piece of the last event if recording it was the thread's last call.
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
            # Earlier events of the same stream have completed as well.
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
    """The pending piece, on a stream other than that of the piece `held`, that held it back; -1 for none."""
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
