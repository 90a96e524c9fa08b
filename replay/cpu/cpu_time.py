"""Operations that did not run: where a thread had less CPU time than the graph holds work of its operations."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import Piece
from esprof.run.run import Run, RunWarning

MIN_NOTED_SHARE_OF_STEP = 0.05
"""Share of a step from which on it is told that operations did not run: the least error that any what-if is given."""

_OPERATIONS = (Cls.COMPUTE, Cls.CPU)
"""Not gaps, which have a name of their own, and which nobody takes for computing."""


@dataclass(frozen=True)
class NotRun:
    """The operations of a rank that computes on CPUs, and how long they did not run; an entry for each of S steps.

    What operations take on the main thread, without their waits and without all gaps, is compared with how long that thread
    ran, or was ready to run while something else had its CPU. What goes beyond that it slept, or waited for something
    that the graph does not hold. This is the least that is so, since the thread also ran in gaps.
    """

    rank: Rank
    lane: int
    """Lane of the main thread."""
    operations_ns: np.ndarray
    """What the operations on that thread take, ns, shape (S,)."""
    idle_ns: np.ndarray
    """How long of that they did not run, ns; 0 where the thread's CPU time is not known. Shape (S,)."""
    throttled_ns: float
    """How long the rank's control groups were stopped at their CPU quota, ns a step, summed over CPUs."""
    longest: str
    """Name of the operation that the thread spends most time in."""


def not_run(run: Run, dfg: Dfg) -> tuple[NotRun, ...]:
    """What did not run of each rank of `run` without a GPU; `dfg` is its graph."""
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
    """How long the operations on a path did not run, ns: of each rank and step the share that it is of all operations."""
    node = np.array([piece.node for piece in path], np.int64)
    took = np.array([piece.end_ns - piece.start_ns for piece in path], np.int64)
    works = np.isin([piece.cls for piece in path], _OPERATIONS)
    total = 0.0
    for one in found:
        share = one.idle_ns / np.maximum(one.operations_ns, 1)
        mine = works & (dfg.lane[node] == one.lane) & np.isin(dfg.step[node], dfg.marks.steps)
        total += float((share[np.searchsorted(dfg.marks.steps, dfg.step[node[mine]])] * took[mine]).sum())
    return total


def warnings_of(found: Iterable[NotRun], steady_at: np.ndarray, step_ns: float) -> tuple[RunWarning, ...]:
    """A warning for each rank whose operations did not run for much of a steady-state step, which takes `step_ns`."""
    warnings = []
    for one in found:
        operations, idle = (float(each[steady_at].mean()) for each in (one.operations_ns, one.idle_ns))
        if idle <= MIN_NOTED_SHARE_OF_STEP * step_ns:
            continue
        text = (
            f"rank {one.rank}: {readable.duration(idle)} a step of {readable.duration(operations)} in operations did not "
            f"run: waited or was preempted; most time goes to {one.longest}"
        )
        if one.throttled_ns:
            text += f"; its CPU quota stopped it for {readable.duration(one.throttled_ns)} a step"
        warnings.append(RunWarning("operations-not-run", text, (one.rank,)))
    return tuple(warnings)
