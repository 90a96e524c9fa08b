"""Nesting of calls: compiled sweeps over the calls of all threads of a rank.

Calls are arrays sorted by thread, then by start; of calls that start together, the outer one is first.
"""

import numpy as np

from esprof.core.compiled import compiled


@compiled
def nested(
    thread: np.ndarray, start: np.ndarray, end: np.ndarray, key: np.ndarray, keys: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(own time, row of the enclosing call, whether it is the outermost of its key, time added to its key) of each call.

    Own time is the time in which no later call of the thread is open. The own times of a thread sum to the time in which
    any call is open, even if calls overlap without being nested. The enclosing call is -1 if there is none. `key` is in
    0..`keys` - 1. A call is the outermost of its key if no enclosing call has that key. The time added is the time in which
    no earlier call of its key was open on the thread. For nested calls this is all of the call's time if it is the
    outermost, else 0.
    """
    calls = len(start)
    own, enclosing = np.zeros(calls, np.int64), np.full(calls, -1, np.int64)
    outermost, is_open = np.zeros(calls, np.bool_), np.zeros(keys, np.int32)
    adds, until = np.zeros(calls, np.int64), np.zeros(keys, np.int64)
    stack, depth, cursor = np.empty(calls + 1, np.int64), 0, 0
    for i in range(calls + 1):
        leaves_thread = i == calls or (i > 0 and thread[i] != thread[i - 1])
        while depth and (leaves_thread or end[stack[depth - 1]] <= start[i]):
            top = stack[depth - 1]
            if end[top] > cursor:
                own[top] += end[top] - cursor
                cursor = end[top]
            is_open[key[top]] -= 1
            depth -= 1
        if i == calls:
            break
        if depth:
            top = stack[depth - 1]
            own[top] += start[i] - cursor
            enclosing[i] = top
        cursor = start[i]
        outermost[i] = is_open[key[i]] == 0
        open_until = start[i] if outermost[i] else max(start[i], until[key[i]])
        adds[i] = max(end[i] - open_until, 0)
        until[key[i]] = max(end[i], open_until)
        is_open[key[i]] += 1
        stack[depth] = i
        depth += 1
    return own, enclosing, outermost, adds


@compiled
def with_inner(enclosing: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Sum of `own` over each call and all calls nested in it; `enclosing` is as returned by `nested`."""
    total = own.copy()
    for i in range(len(enclosing) - 1, -1, -1):
        if enclosing[i] >= 0:
            total[enclosing[i]] += total[i]
    return total


@compiled
def nearest(enclosing: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Row of each call if it is `wanted`, else of the innermost wanted call that encloses it; -1 if there is none."""
    found = np.full(len(enclosing), -1, np.int64)
    for i in range(len(enclosing)):
        if wanted[i]:
            found[i] = i
        elif enclosing[i] >= 0:
            found[i] = found[enclosing[i]]
    return found
