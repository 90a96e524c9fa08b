"""Events of one rank as input to the graph builder: columns of its table, and the rows that the graph needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.building.lookup import Sequences, entries, numbered, position
from esprof.replay.building.node_names import TEXTS
from esprof.run.run import Run
from esprof.run.schema import Table

_NO_GPU_WORK = ("runtime", "sync", "annotation", "step", "python")
"""Kinds that are not GPU work, although their rows may have a stream."""

_MAX_NESTED_CALLS = 3
"""Maximum nesting depth of calls that describe collectives."""


@dataclass(frozen=True)
class Threads:
    """Rows on the threads that ran operations of the job, sorted by thread and start.

    Threads without operations, such as the NCCL watchdog, are left out; gloo's threads are not CPU lanes.
    """

    row: np.ndarray
    ptr: np.ndarray
    """The rows of thread t are `row[ptr[t]:ptr[t + 1]]`."""
    roles: tuple[str, ...]
    main: int
    """Number of the main thread."""
    autograd: int
    """Number of the thread that the main thread hands over to for the backward pass; -1 if there is none."""


@dataclass(frozen=True)
class Collectives:
    """Rows of collective calls, sorted by start; one entry per call in each column."""

    row: np.ndarray
    group: np.ndarray
    """Process group of each call, int32, index into `groups`; -1, the index of the last, if the trace names none."""
    groups: tuple[str | None, ...]
    """Names of the groups; the last is None, for calls whose group the trace does not name."""
    word: np.ndarray
    """Kind of each call, such as `all_reduce`: int32, index into `words`; -1, the index of the last, if unknown."""
    words: tuple[str | None, ...]
    """Kinds of calls; the last is None, for calls of unknown kind."""
    launch: np.ndarray
    """Row of the runtime call that launched each; -1 if unknown."""
    sequence: np.ndarray
    """Sequence number of each call in its group; -1 if not recorded."""
    peer: np.ndarray
    """Other rank of a send or receive, or root of a collective; -1 if unknown or without a root."""
    channel: np.ndarray
    """Channel of each message over gloo, int32, index into `channels`; -1, the index of the last, for other calls."""
    channels: tuple[str | None, ...]
    """Process groups and tags, which both ends of a message share; the last is None."""
    bytes: np.ndarray
    """Larger of the bytes sent and received by each call; -1 if unknown."""


@dataclass(frozen=True)
class RankEvents:
    """The events of one rank over the chosen steps; times in ns on the rank's own clock.

    Unless stated otherwise, arrays have one entry per row of the event table.
    """

    rank: Rank
    table: Table
    stages: Table
    steps: np.ndarray
    """Numbers of the chosen steps, ascending; they follow each other in time."""
    step_start: np.ndarray
    """Start of each chosen step, ns, shape (steps,)."""
    step_end: np.ndarray
    """End of each chosen step, ns, shape (steps,)."""
    start: np.ndarray
    end: np.ndarray
    name: np.ndarray
    """Name of each event, int32, index into `texts`."""
    texts: tuple[str, ...]
    """Texts of the builder (`node_names.TEXTS`), then names of events, and last an empty text for events without a name."""
    kind: np.ndarray
    """Kind of each event, int32, index into `kinds`."""
    kinds: tuple[str, ...]
    thread: np.ndarray
    """Number of each event's thread, int32; `threads` have the lowest numbers. -1 outside the steps or without a thread."""
    threads: Threads
    runtime: np.ndarray
    """Rows of runtime calls that start within the steps."""
    gpu: np.ndarray
    """Rows of work on GPU streams, sorted by start."""
    launch: np.ndarray
    """Row of the runtime call that launched each of `gpu`; -1 if not recorded."""
    sync: np.ndarray
    """Rows of the profiler's synchronization records that start within the steps."""
    collectives: Collectives
    may_wait_inside: bool
    """Whether operations of the job may wait for other ranks inside, without a recorded call."""
    recorded: int
    """Number of recorded rows of `table`; rows of inferred work follow."""
    works_before: bool
    """Whether GPU work was recorded that ended before the steps."""

    @property
    def begin(self) -> Ns:
        return int(self.step_start[0])

    @property
    def finish(self) -> Ns:
        return int(self.step_end[-1])

    def ints(self, column: str, rows: np.ndarray) -> np.ndarray:
        """Values of an integer column of the table; -1 for null."""
        values: np.ndarray = self.table.ints(column)[rows]
        return values

    def of_kind(self, rows: np.ndarray, kind: str) -> np.ndarray:
        """Mask of the rows of this kind."""
        mask: np.ndarray = self.kind[rows] == (self.kinds.index(kind) if kind in self.kinds else len(self.kinds))
        return mask

    @cached_property
    def record_of(self) -> np.ndarray:
        """Row of the profiler's synchronization record of each row's call; -1 for none."""
        call = self.runtime_of(self.ints("correlation", self.sync))
        records = np.full(len(self.start), -1, np.int32)
        records[call[call >= 0]] = self.sync[call >= 0]
        return records

    @cached_property
    def comms(self) -> np.ndarray:
        """Rows of the CPU calls that describe collectives, sorted by thread."""
        rows: np.ndarray = self.threads.row[self.by_name(self.threads.row, "record_param_comms".__eq__)]
        return rows

    def inside_comms(self, rows: np.ndarray) -> np.ndarray:
        """Row of the outermost of `comms` in which each of `rows` begins; -1 for none."""
        calls, thread, moment = self.comms, self.thread[rows], self.start[rows]
        last = Sequences(self.thread[calls], self.start[calls], self.begin).last(thread, moment)
        outermost = np.full(len(rows), -1)
        # Backwards from the call that began last: the earliest call that is still open is the outermost, and is set last.
        for back in range(_MAX_NESTED_CALLS):
            call = entries(calls, np.maximum(last - back, -1), -1)
            is_open = (call >= 0) & (self.thread[call] == thread) & (self.end[call] >= moment)
            outermost = np.where(is_open, call, outermost)
        return outermost

    @cached_property
    def is_batched_p2p(self) -> np.ndarray:
        """Mask of the collectives that are several sends and receives in one kernel (`batch_isend_irecv`).

        The kernel is launched after the calls that describe the sends and receives, so their peers are unknown
        (pytorch #194693).
        """
        rows = self.collectives
        word = np.array([word == "send_recv" for word in rows.words])[rows.word]
        undescribed = self.inside_comms(np.maximum(rows.launch, 0)) < 0
        found: np.ndarray = word & (rows.launch >= 0) & undescribed & (len(self.comms) > 0)
        return found

    def launched_in(self, rows: np.ndarray) -> np.ndarray:
        """Step that launched each of `rows`, from the table; -1 if it is not one of the chosen steps."""
        step = self.ints("step", rows)
        return np.where((step >= self.steps[0]) & (step <= self.steps[-1]), step, -1)

    def step_at(self, moment: np.ndarray) -> np.ndarray:
        """Step during which each moment (ns) lies: the last to begin at or before it; -1 before the first."""
        return entries(self.steps, np.searchsorted(self.step_start, moment, side="right") - 1, -1)

    def runtime_of(self, correlation: np.ndarray) -> np.ndarray:
        """Rows of the runtime calls with these correlation ids; -1 if there is none."""
        at = position(self.ints("correlation", self.runtime), correlation)
        return entries(self.runtime, at, -1)

    def by_text(
        self, rows: np.ndarray, classify: Callable[[str], Any], dtype: np.dtype[Any] | type = bool
    ) -> np.ndarray:
        """Result of `classify` for each of `texts`; 0 or False for texts that are the name of none of `rows`.

        `classify` is called once per text, however many rows have it.
        """
        found = np.zeros(len(self.texts), dtype)
        for code in np.flatnonzero(np.bincount(self.name[rows])).tolist():
            found[code] = classify(self.texts[code])
        return found

    def by_name(
        self, rows: np.ndarray, classify: Callable[[str], Any], dtype: np.dtype[Any] | type = bool
    ) -> np.ndarray:
        """Result of `classify` for the name of each of `rows`."""
        found: np.ndarray = self.by_text(rows, classify, dtype)[self.name[rows]]
        return found


def members_of(run: Run, group: str | None) -> tuple[Rank, ...]:
    """Ranks of the group of this name, including ranks that the run lacks; all ranks if the group is unknown."""
    return next((known.ranks for known in run.meta.groups if known.name == group), tuple(range(run.world_size)))


def read_rank(run: Run, rank: Rank, boundaries: Mapping[int, tuple[Ns, Ns]], steps: Sequence[int]) -> RankEvents:
    """Read the events of `rank` in these steps, which follow each other.

    `boundaries` are start and end of each step on the rank's clock, ns. A rank without CPU operations has no threads.
    """
    table, spans = run.events(rank), np.array([boundaries[step] for step in steps], np.int64)
    begin, finish = int(spans[0, 0]), int(spans[-1, 1])
    start = table.ints("start_ns")
    end = start + table.ints("dur_ns")
    codes, texts = table.codes("name")
    rows = _KindRows(table)
    # CPU calls must start inside the steps: after the last step the profiler's own work follows.
    first, behind = np.searchsorted(start, [begin, finish]).tolist()
    inside = slice(first, behind)
    gpu = rows.on_stream()
    works_before = bool((end[gpu] <= begin).any())
    gpu = gpu[end[gpu] > begin]
    launch = _launches(table, gpu, rows.of(slice(first, None), "runtime"))
    # All kernels launched by the end of the last step are included: those still running when the window begins occupy
    # their stream.
    ours = launch < behind
    collectives = rows.collectives(gpu[ours], inside)
    called, working = (
        _off_gloo_threads(table, some, collectives)
        for some in (rows.of(inside, "op", "runtime", "loader"), rows.of(inside, "op", "loader"))
    )
    if not len(working) and not table.is_kind("op", "loader").any():  # As other profilers record it.
        working = launch[launch >= 0]
    thread, threads = _threads(table, called, working)
    return RankEvents(
        rank=rank,
        table=table,
        stages=run.stages(rank),
        steps=np.array(steps),
        step_start=spans[:, 0],
        step_end=spans[:, 1],
        start=start,
        end=end,
        name=np.where(codes >= 0, codes, len(texts)).astype(np.int32) + np.int32(len(TEXTS)),
        texts=(*TEXTS, *texts, ""),
        thread=thread,
        threads=threads,
        kind=rows.codes,
        kinds=rows.kinds,
        runtime=rows.of(inside, "runtime"),
        gpu=gpu[ours],
        launch=launch[ours],
        sync=rows.of(inside, "sync"),
        collectives=_collectives(table, collectives, gpu, launch),
        may_wait_inside=run.may_wait_inside,
        recorded=len(table),
        works_before=works_before,
    )


class _KindRows:
    """Rows of a table by kind."""

    def __init__(self, table: Table) -> None:
        self.codes, kinds = table.codes("kind")
        self.kinds = tuple(kinds)
        self._stream = table.ints("stream")

    def of(self, where: slice, *kinds: str) -> np.ndarray:
        """Rows of these kinds within `where`."""
        found: np.ndarray = np.flatnonzero(self._mask(kinds)[self.codes[where]]) + where.start
        return found

    def on_stream(self) -> np.ndarray:
        """Rows of work on a GPU."""
        found = np.flatnonzero(self._stream >= 0)
        work: np.ndarray = found[~self._mask(_NO_GPU_WORK)[self.codes[found]]]
        return work

    def collectives(self, gpu: np.ndarray, where: slice) -> np.ndarray:
        """Rows of collectives: those among `gpu`, and those on threads within `where`."""
        on_threads = self.of(where, "collective")
        on_gpu = gpu[self._mask(("collective",))[self.codes[gpu]]]
        return np.union1d(on_threads[self._stream[on_threads] < 0], on_gpu)

    def _mask(self, kinds: tuple[str, ...]) -> np.ndarray:
        return np.array([kind in kinds for kind in self.kinds] + [False])  # the last entry is for code -1, null


def _launches(table: Table, gpu: np.ndarray, runtime: np.ndarray) -> np.ndarray:
    """The row among `runtime` with the same correlation id as each row of `gpu`; -1 if there is none."""
    correlation = table.ints("correlation")
    return entries(runtime, position(correlation[runtime], correlation[gpu]), -1)


def _off_gloo_threads(table: Table, rows: np.ndarray, collectives: np.ndarray) -> np.ndarray:
    """The rows that are not on gloo's communication threads.

    Operations on these threads belong to the collective: an all-gather of one tensor copies its chunks, a mean divides. As
    a chain of calls, such a thread would seem busy between two collectives, when it is idle.
    """
    tid = table.ints("tid")
    roles, names = table.codes("thread_role")
    is_other = np.array([name not in ("main", "autograd") for name in names] + [True])[roles]
    # A message is on the thread that asked for it.
    on_its_thread = (table.ints("stream")[collectives] < 0) & (table.ints("is_p2p")[collectives] != 1)
    gloo_rows = collectives[is_other[collectives] & on_its_thread]
    return rows[~np.isin(tid[rows], tid[gloo_rows])]


def _threads(table: Table, rows: np.ndarray, working: np.ndarray) -> tuple[np.ndarray, Threads]:
    """Number the threads of `rows`, beginning with those that have rows among `working`.

    Returns (int32 number of each row's thread, -1 for other rows; the threads that work).
    """
    tid = table.ints("tid")
    rows, working = rows[tid[rows] >= 0], working[tid[working] >= 0]
    if not len(working):
        return np.full(len(table), -1, np.int32), Threads(rows[:0], np.zeros(1, np.int64), (), -1, -1)
    number, tids = numbered(tid[rows])
    idle = ~np.isin(tids, tid[working])
    thread = np.full(len(table), -1, np.int32)
    # The first argsort orders the threads, idle ones last; the second is its inverse, the new number of each thread.
    thread[rows] = np.argsort(np.argsort(idle, kind="stable"))[number]
    count = int((~idle).sum())
    mine = rows[thread[rows] < count]
    mine = mine[np.argsort(thread[mine], kind="stable")]
    ptr = np.searchsorted(thread[mine], np.arange(count + 1))
    codes, names = table.codes("thread_role")
    roles = tuple([*names, "other"][code] for code in codes[mine[ptr[:-1]]].tolist())
    main = roles.index("main") if "main" in roles else int(np.argmax(np.diff(ptr)))
    autograd = next((t for t, role in enumerate(roles) if role == "autograd" and t != main), -1)
    return thread, Threads(mine, ptr, roles, main, autograd)


def _collectives(table: Table, rows: np.ndarray, gpu: np.ndarray, launch: np.ndarray) -> Collectives:
    group, groups = table.codes("group")
    word, words = table.codes("collective")
    channel, channels = table.codes("channel")
    return Collectives(
        row=rows,
        group=group[rows],
        groups=(*groups, None),
        word=word[rows],
        words=(*words, None),
        launch=entries(launch, position(gpu, rows), -1),
        sequence=table.ints("coll_seq")[rows],
        peer=table.ints("peer")[rows],
        channel=channel[rows],
        channels=(*channels, None),
        bytes=np.maximum(table.ints("in_bytes")[rows], table.ints("out_bytes")[rows]),
    )
