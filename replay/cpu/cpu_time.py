"""Operations that did not run: threads with less CPU time than the duration of their operations in the graph."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import Piece
from esprof.run.run import Run, RunWarning

MIN_NOTED_SHARE_OF_STEP = 0.05
"""Share of a step from which on operations that did not run are reported: the least error of any what-if."""

_OPERATIONS = (Cls.COMPUTE, Cls.CPU)
"""Classes of operations. Gaps are excluded: nobody mistakes them for compute."""


@dataclass(frozen=True)
class NotRun:
    """Operations of a rank that computes on CPUs, and how long they did not run; one entry per step of S steps.

    The duration of operations on the main thread, without waits and gaps, is compared with the time that the thread ran, or
    was ready to run while something else had its CPU. In the rest it slept, or waited for something that the graph does not
    contain. This is a lower bound, since the thread also ran in gaps.
    """

    rank: Rank
    lane: int
    """Lane of the main thread."""
    operations_ns: np.ndarray
    """Duration of the operations on that thread, ns, shape (S,)."""
    idle_ns: np.ndarray
    """Time of `operations_ns` in which they did not run, ns, shape (S,); 0 if the thread's CPU time is unknown."""
    throttled_ns: float
    """Time per step for which the rank's control groups were throttled by their CPU quota, ns, summed over CPUs."""
    longest: str
    """Name of the operation with the largest total duration on the thread."""


def not_run(run: Run, dfg: Dfg) -> tuple[NotRun, ...]:
    """Operations that did not run, for each rank of `run` without a GPU; `dfg` is its graph."""
    found = []
    for rank in dfg.marks.ranks:
        lane = dfg.main_lane(rank)
        nodes = np.flatnonzero((dfg.lane == lane) & dfg.of(*_OPERATIONS) & np.isin(dfg.step, dfg.marks.steps))
        if len(nodes) and not dfg.has_gpu(rank):
            found.append(_of_rank(run, dfg, rank, lane, nodes))
    return tuple(found)


def _of_rank(run: Run, dfg: Dfg, rank: Rank, lane: int, nodes: np.ndarray) -> NotRun:
    """`nodes` are the operations on the rank's main thread."""
    steps, dur = np.array(dfg.marks.steps), dfg.dur_ns[nodes]
    operations = np.bincount(np.searchsorted(steps, dfg.step[nodes]), dur, len(steps))
    noted = run.steps(rank).where(np.isin(run.steps(rank).ints("step"), steps))
    idle, throttled = np.zeros(len(steps)), np.maximum(noted.ints("throttled_ns"), 0)
    ran, ready = noted.ints("cpu_ns"), np.maximum(noted.ints("ready_ns"), 0)
    at = np.searchsorted(steps, noted.ints("step"))[ran >= 0]
    idle[at] = np.maximum(operations[at] - (ran + ready)[ran >= 0], 0)
    longest = int(np.bincount(dfg.name[nodes], dur).argmax())
    return NotRun(rank, lane, operations, idle, float(throttled.sum() / len(steps)), dfg.names[longest])


def on_path_ns(found: Iterable[NotRun], dfg: Dfg, path: Sequence[Piece]) -> float:
    """Time in which the operations on a path did not run, ns, assuming each rank's share of idle time in each step."""
    works = [piece for piece in path if piece.cls in _OPERATIONS]
    node = np.array([piece.node for piece in works], np.int64)
    took = np.array([piece.end_ns - piece.start_ns for piece in works], np.int64)
    total = 0.0
    for one in found:
        share = one.idle_ns / np.maximum(one.operations_ns, 1)
        mine = (dfg.lane[node] == one.lane) & np.isin(dfg.step[node], dfg.marks.steps)
        total += float((share[np.searchsorted(dfg.marks.steps, dfg.step[node[mine]])] * took[mine]).sum())
    return total


def warnings_of(found: Iterable[NotRun], steady_at: np.ndarray, step_ns: float) -> tuple[RunWarning, ...]:
    """Warnings for ranks whose operations did not run for much of a steady-state step of `step_ns`."""
    warnings = []
    for one in found:
        operations, idle = (float(each[steady_at].mean()) for each in (one.operations_ns, one.idle_ns))
        if idle <= MIN_NOTED_SHARE_OF_STEP * step_ns:
            continue
        text = (
            f"rank {one.rank}: {readable.duration(idle)} a step of {readable.duration(operations)} in operations did not "
            f"run: waited or was preempted; most time is spent in {one.longest}"
        )
        if one.throttled_ns:
            text += f"; its CPU quota stopped it for {readable.duration(one.throttled_ns)} a step"
        warnings.append(RunWarning("operations-not-run", text, (one.rank,)))
    return tuple(warnings)
