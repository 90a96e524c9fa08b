"""Which call stands in which: compiled sweeps over the calls of all threads of a rank.

Calls come as arrays, thread by thread, those of a thread by start, and of those that start together the outer one first.
"""

import numpy as np

from esprof.core.compiled import compiled


@compiled
def nested(
    thread: np.ndarray, start: np.ndarray, end: np.ndarray, key: np.ndarray, keys: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(own time, row of the call around it, whether it is the outermost of its key, what it adds to its key) of each call.

    Own time is when no call that began later on the thread is open, so that the own times of a thread sum to the time in
    which anything is open, even where calls overlap without standing in each other. The call around is -1 for none. `key`
    goes from 0 to below `keys`; a call is the outermost of its key where none of those around it has that key. What it adds
    is its time in which no earlier call of its key was open on the thread: all of it, or none where it is not the outermost,
    unless calls overlap without standing in each other.
    """
    calls = len(start)
    own, around = np.zeros(calls, np.int64), np.full(calls, -1, np.int64)
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
            around[i] = top
        cursor = start[i]
        outermost[i] = is_open[key[i]] == 0
        open_until = start[i] if outermost[i] else max(start[i], until[key[i]])
        adds[i] = max(end[i] - open_until, 0)
        until[key[i]] = max(end[i], open_until)
        is_open[key[i]] += 1
        stack[depth] = i
        depth += 1
    return own, around, outermost, adds


@compiled
def with_inner(around: np.ndarray, own: np.ndarray) -> np.ndarray:
    """`own` of each call and of all that stand in it; `around` is as `nested` gives it."""
    total = own.copy()
    for i in range(len(around) - 1, -1, -1):
        if around[i] >= 0:
            total[around[i]] += total[i]
    return total


@compiled
def nearest(around: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The call itself where it is `wanted`, else the innermost wanted one around it; -1 for none."""
    found = np.full(len(around), -1, np.int64)
    for i in range(len(around)):
        if wanted[i]:
            found[i] = i
        elif around[i] >= 0:
            found[i] = found[around[i]]
    return found
