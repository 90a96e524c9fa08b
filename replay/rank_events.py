"""One rank's events as the graph builder reads them: plain lists, one entry a row, on the job's aligned clock."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from esprof.trace.run import Run
from esprof.trace.schema import Table
from esprof.types import Bytes, Ns, Rank


@dataclass
class RankEvents:
    """Rows of the event table between `begin` and `finish`, the borders of the rank's chosen steps."""

    rank: Rank
    begin: Ns
    finish: Ns
    steps: dict[int, tuple[Ns, Ns]]
    """Step number -> (start, end) on this rank."""
    name: list[str]
    kind: list[str]
    start: list[Ns]
    end: list[Ns]
    tid: list[int]
    role: list[str | None]
    stream: list[int]
    correlation: list[int]
    step: list[int]
    group: list[str | None]
    coll_seq: list[int]
    collective: list[str | None]
    p2p: list[bool]
    bytes: list[Bytes]
    sync_stream: list[int]
    sync_correlation: list[int]
    stages: Table
    shared: set[int]
    """Rows of collectives with other members than this rank: without their times, waiting and transfer are one."""
    clock_shift: Ns = 0
    """What was added to this rank's clock to align it."""
    runtime_of: dict[int, int] = field(default_factory=dict)
    """Correlation -> row of the runtime call."""
    gpu_rows: list[int] = field(default_factory=list)
    """Rows on a stream, by start."""

    def __post_init__(self) -> None:
        for row, kind in enumerate(self.kind):
            if kind == "runtime":
                self.runtime_of[self.correlation[row]] = row
            elif self.stream[row] >= 0 and kind != "sync":
                self.gpu_rows.append(row)

    def step_at(self, moment: Ns) -> int:
        """The step that began last before `moment`; -1 before the first."""
        at = bisect_right(self._step_starts, moment)
        return self._step_numbers[at - 1] if at else -1

    @cached_property
    def _step_starts(self) -> list[Ns]:
        return [start for start, _ in self.steps.values()]

    @cached_property
    def _step_numbers(self) -> list[int]:
        return list(self.steps)

    def launch_row(self, row: int) -> int | None:
        """The runtime call that launched GPU row `row`; None where it was not recorded."""
        return self.runtime_of.get(self.correlation[row]) if self.correlation[row] >= 0 else None


def read_rank(run: Run, rank: Rank, steps: list[int]) -> RankEvents:
    """Read what the builder needs of `rank` for these consecutive steps (numbers present on the rank)."""
    events, borders = run.events(rank), step_borders(run, rank)
    begin, finish = borders[steps[0]][0], borders[steps[-1]][1]
    starts = events.ints("start_ns")
    ends = starts + events.ints("dur_ns")
    on_gpu = (events.ints("stream") >= 0) & ~events.is_kind("sync")
    # A kernel belongs here unless it was launched after the last step: what still runs when the window opens holds its
    # stream. CPU calls must start inside; what the profiler itself does after the last step is no work of the job.
    kept = np.where(on_gpu, (ends > begin) & ~_launched_after(events, finish), (starts >= begin) & (starts < finish))
    kept &= ~events.is_kind("annotation", "step", "python")
    rows = events.where(np.flatnonzero(kept))
    in_bytes = rows.ints("in_bytes")
    return RankEvents(
        rank=rank,
        begin=begin,
        finish=finish,
        steps={step: borders[step] for step in steps},
        name=[name or "" for name in rows.texts("name")],
        kind=[kind or "" for kind in rows.texts("kind")],
        start=starts[kept].tolist(),
        end=ends[kept].tolist(),
        tid=rows.ints("tid").tolist(),
        role=rows.texts("thread_role"),
        stream=rows.ints("stream").tolist(),
        correlation=rows.ints("correlation").tolist(),
        step=np.where(np.isin(rows.ints("step"), steps), rows.ints("step"), -1).tolist(),
        group=rows.texts("group"),
        coll_seq=rows.ints("coll_seq").tolist(),
        collective=rows.texts("collective"),
        p2p=(rows.ints("is_p2p", missing=0) > 0).tolist(),
        bytes=np.maximum(in_bytes, rows.ints("out_bytes")).tolist(),
        sync_stream=rows.ints("sync_stream").tolist(),
        sync_correlation=rows.ints("sync_correlation").tolist(),
        stages=run.stages(rank),
        shared=_shared(run, rows),
    )


def members_of(run: Run, group: str | None) -> tuple[Rank, ...]:
    """Ranks of the group of this name, those that the run lacks among them; all ranks where it is not known."""
    return next((known.ranks for known in run.meta.groups if known.name == group), tuple(range(run.world_size)))


def _shared(run: Run, rows: Table) -> set[int]:
    several = {name for name in {None, *rows.codes("group")[1]} if len(members_of(run, name)) > 1}
    collectives = np.flatnonzero(rows.is_kind("collective")).tolist()
    groups = rows.texts("group")
    return {row for row in collectives if groups[row] in several}


def _launched_after(events: Table, finish: Ns) -> np.ndarray:
    late = events.is_kind("runtime") & (events.ints("start_ns") >= finish)
    return np.isin(events.ints("correlation"), events.ints("correlation")[late])


def step_borders(run: Run, rank: Rank) -> dict[int, tuple[Ns, Ns]]:
    """Step number -> (start, end) of the steps that the profiler recorded on `rank`."""
    table = run.steps(rank)
    timed = [phase == "timed" for phase in table.texts("phase")]
    starts, durations = table.ints("start_ns").tolist(), table.ints("dur_ns").tolist()
    found: dict[int, tuple[Ns, Ns]] = {}
    for step, start, dur, is_timed in zip(table.ints("step").tolist(), starts, durations, timed, strict=True):
        if is_timed:
            found[step] = (start, start + dur)
    return found


def by_thread(events: RankEvents) -> dict[int, list[int]]:
    """CPU rows by thread, of the threads that ran operations of the job.

    A thread without any, such as the NCCL watchdog polling its events, is left out; gloo's threads are not CPU lanes.
    """
    rows: dict[int, list[int]] = defaultdict(list)
    for row, kind in enumerate(events.kind):
        if kind in ("op", "runtime", "loader") and events.tid[row] >= 0:
            rows[events.tid[row]].append(row)
    return {tid: mine for tid, mine in rows.items() if any(events.kind[row] != "runtime" for row in mine)}
