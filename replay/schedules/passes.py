"""The passes of one rank of a recorded pipeline job, from their marks (`run.raw.passes`), and the CPU time of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.engine.timeline import worked_ns
from esprof.replay.schedules.pipeline import PipelineTask, StagePass
from esprof.run.raw.passes import pass_of
from esprof.run.run import Run
from esprof.run.schema import Table


@dataclass(frozen=True)
class RankMarks:
    """The marks of the passes of one rank in order. P passes."""

    rank: Rank
    tasks: list[PipelineTask]
    row: np.ndarray
    """int64[P], row of each mark."""
    step: np.ndarray

    @property
    def stages(self) -> list[int]:
        return [task.stage for task in self.tasks]

    def order(self, step: int) -> list[PipelineTask]:
        return [self.tasks[at] for at in np.flatnonzero(self.step == step).tolist()]


@dataclass(frozen=True)
class RankPasses(RankMarks):
    """The passes of one rank in order, and the CPU time of each: from the last call for a message before it up to that
    before the next one; the last one of a step ends with its mark. P passes; times are on the rank's own clock."""

    took_ns: np.ndarray
    before_ns: dict[int, Ns]
    """By step: CPU time before the first pass."""
    after_ns: dict[int, Ns]
    _work_at_ns: np.ndarray = field(repr=False)
    """Begin of each piece of work on the rank's CPU threads, ascending."""
    _work_ns: np.ndarray = field(repr=False)
    """How long each piece takes."""

    @classmethod
    def of(cls, run: Run, dfg: Dfg, rank: Rank) -> "RankPasses":
        """Those of the steps of `dfg`."""
        events = run.events(rank)
        marks = rank_marks(events, rank, dfg.marks.steps)
        rows, step = marks.row, marks.step
        nodes = dfg.nodes_of(rank)
        nodes = nodes[dfg.on(LaneKind.CPU)[nodes] & (dfg.step[nodes] >= 0)]
        nodes = nodes[np.argsort(dfg.recorded_ns[nodes], kind="stable")]
        offset_ns = dfg.clock_offset_ns(events.ints("start_ns"), nodes[dfg.event[nodes] >= 0])
        end = (events.ints("start_ns") + events.ints("dur_ns"))[rows]
        start = _begins(events, rows)
        moment, took = dfg.recorded_ns[nodes] + offset_ns, dfg.dur_ns[nodes] + dfg.residual_ns[nodes]
        at = np.searchsorted(start, moment, side="right") - 1
        inside = (at >= 0) & (np.append(step, -1)[at] == dfg.step[nodes])
        is_last = np.append(step[1:] != step[:-1], True) if len(step) else np.zeros(0, bool)
        behind = inside & np.append(is_last, False)[at] & (moment >= np.append(end, 0)[at])
        own = inside & ~behind

        def by_step(mask: np.ndarray) -> dict[int, Ns]:
            return {one: int(took[mask & (dfg.step[nodes] == one)].sum()) for one in dfg.marks.steps}

        took_ns = np.bincount(at[own], took[own], len(rows))
        return cls(rank, marks.tasks, rows, step, took_ns, by_step(~inside), by_step(behind), moment, took)

    def times(self, step: int) -> dict[PipelineTask, Ns]:
        return {self.tasks[at]: int(self.took_ns[at]) for at in np.flatnonzero(self.step == step).tolist()}

    def worked_ns(self, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """How long the rank's CPU threads work in each of these ranges, ns."""
        return worked_ns(self._work_at_ns, self._work_ns, begin_ns, end_ns)


def rank_marks(events: Table, rank: Rank, steps: Sequence[int]) -> RankMarks:
    """The marks of a rank in these steps. A pass that torch marks, too, counts once."""
    codes, names = events.codes("name")
    tasks = {
        code: PipelineTask(StagePass(found.kind), found.stage, found.microbatch)
        for code, name in enumerate(names)
        if (found := pass_of(name)) is not None
    }
    rows = np.flatnonzero(np.isin(codes, list(tasks)) & np.isin(events.ints("step"), steps))
    _, first = np.unique(np.stack([codes[rows], events.ints("step")[rows]]), axis=1, return_index=True)
    rows = rows[np.sort(first)]
    return RankMarks(rank, [tasks[code] for code in codes[rows].tolist()], rows, events.ints("step")[rows])


def _begins(events: Table, rows: np.ndarray) -> np.ndarray:
    """When each pass (row of its mark) begins, ns: after the last call for a message since the pass before it in its step.

    What a rank does between its call and the pass, it does after it has waited.
    """
    calls = np.flatnonzero(events.matches("name", lambda name: name.startswith("c10d::")))
    start, step = events.ints("start_ns"), events.ints("step")
    begin: np.ndarray = start[rows]
    ended = np.append(np.iinfo(np.int64).min, (start + events.ints("dur_ns"))[rows])[:-1]
    if len(calls):
        at = np.searchsorted(start[calls], begin) - 1
        last = calls[at]
        is_between = (at >= 0) & (step[last] == step[rows]) & (start[last] >= ended)
        begin = np.where(is_between, start[last] + 1, begin)
    return begin
