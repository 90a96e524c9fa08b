"""The lines of the job's own code that operations were called from."""

import numpy as np

from esprof.analyzers.ops.calls import RankCalls, SteadyTime, by_pair
from esprof.analyzers.ops.nesting import nearest, nested
from esprof.analyzers.samples.job_samples import StackSamples
from esprof.replay.building.lookup import entries
from esprof.replay.cpu.frames import frame
from esprof.run.schema import Table


def call_sites_of(
    events: Table, samples: StackSamples, calls: RankCalls, steady: SteadyTime
) -> dict[tuple[int, str], int]:
    """Time by (key of calls, frame of the job's own code), ns, from frames that the profiler recorded, else from samples.

    A recorded frame has the first line of its function, a sampled one the line that was running.
    """
    return _by_frames(events, calls) or _by_samples(events, samples, calls, steady)


def _by_frames(events: Table, calls: RankCalls) -> dict[tuple[int, str], int]:
    name, names = events.codes("name")
    own = events.matches("name", lambda text: frame(text).origin == "job")
    frames = np.flatnonzero(own & events.is_kind("python") & (events.ints("tid") >= 0))
    if not len(frames):
        return {}
    row = np.concatenate([frames, calls.row])
    tid, start, dur = (events.ints(column)[row] for column in ("tid", "start_ns", "dur_ns"))
    order = np.lexsort((-dur, start, tid))
    is_frame = order < len(frames)
    same_key = np.zeros(len(order), np.int64)
    _, enclosing, _, _ = nested(tid[order], start[order], (start + dur)[order], same_key, 1)
    at = nearest(enclosing, is_frame)
    found = np.flatnonzero(~is_frame & (at >= 0))
    call, site = order[found] - len(frames), name[row[order[at[found]]]]
    return by_pair(calls.key[call], site, names, calls.total_ns[call])


def _by_samples(
    events: Table, samples: StackSamples, calls: RankCalls, steady: SteadyTime
) -> dict[tuple[int, str], int]:
    moment, weight = samples.at_ns, np.maximum(samples.dur_ns, 0)
    names, frame_of_stack = _innermost(samples.stacks)
    site = entries(frame_of_stack, samples.code, -1)
    main = np.flatnonzero(events.matches("thread_role", "main".__eq__)[calls.row])
    used = np.flatnonzero(steady.holds(moment) & (site >= 0))
    if not len(used) or not len(main):
        return {}
    moment, weight, site = moment[used], weight[used], site[used]
    start = events.ints("start_ns")[calls.row]
    end = start + events.ints("dur_ns")[calls.row]
    # Calls are sorted by thread: start from the last one that began before the sample and go up to its enclosing calls.
    before = np.searchsorted(start[main], moment, side="right") - 1
    at = entries(main, before, -1)
    key, where, ns = [], [], []
    while (at >= 0).any():
        is_open = (at >= 0) & (end[at] > moment) & calls.outermost[at]
        key.append(calls.key[at[is_open]])
        where.append(site[is_open])
        ns.append(weight[is_open])
        at = entries(calls.enclosing, at, -1)
    return by_pair(np.concatenate(key), np.concatenate(where), names, np.concatenate(ns))


def _innermost(stacks: list[str]) -> tuple[list[str], np.ndarray]:
    """The job's innermost frames in `stacks`: (their texts, for each stack the index of its own or -1)."""
    index: dict[str, int] = {}
    site = np.full(len(stacks), -1, np.int64)
    for number, stack in enumerate(stacks):
        own = next((line for line in reversed(stack.splitlines()) if frame(line).origin == "job"), None)
        if own is not None:
            site[number] = index.setdefault(own, len(index))
    return list(index), site
