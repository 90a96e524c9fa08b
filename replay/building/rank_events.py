"""One rank's events as the graph builder reads them: the columns of its table, and which rows matter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from esprof.core.errors import InputError
from esprof.core.types import Ns, Rank
from esprof.replay.building.lookup import Sequences, entries, numbered, position
from esprof.replay.building.node_names import TEXTS
from esprof.run.run import Run
from esprof.run.schema import Table

_NO_GPU_WORK = ("runtime", "sync", "annotation", "step", "python")
"""Kinds that are no work of a GPU, although a stream may stand in their row."""

_MAX_NESTED_CALLS = 3
"""How deep calls that describe collectives stand in one another, at most."""


@dataclass(frozen=True)
class Threads:
    """What ran on the threads that ran operations of the job: rows, thread by thread, those of a thread in order of start.

    A thread without operations, such as the NCCL watchdog polling its events, is left out; gloo's threads are not CPU lanes.
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
    """Rows of collective calls, by start; each column holds one entry for each of them."""

    row: np.ndarray
    group: np.ndarray
    """Process group of each call, int32, index into `groups`; -1, the last of these, where the trace names none."""
    groups: tuple[str | None, ...]
    """Names of the groups; the last is None, for calls whose group the trace does not name."""
    word: np.ndarray
    """What each call is, such as `all_reduce`: int32, index into `words`; -1, the last of these, where that is not known."""
    words: tuple[str | None, ...]
    """What a call can be; the last is None, for calls of which it is not known."""
    launch: np.ndarray
    """Row of the runtime call that launched each; -1 where none is known."""
    sequence: np.ndarray
    """Sequence number of each call in its group; -1 where that was not recorded."""
    peer: np.ndarray
    """The other rank of a point-to-point transfer, the root of a collective that has one; -1 where that is not known."""
    bytes: np.ndarray
    """Bytes that each call sent or received, whichever is more; -1 where unknown."""


@dataclass(frozen=True)
class RankEvents:
    """The events of one rank over the chosen steps; times in ns on the rank's own clock.

    Arrays of which nothing else is said hold an entry for each row of the event table.
    """

    rank: Rank
    table: Table
    stages: Table
    steps: np.ndarray
    """Numbers of the chosen steps, consecutive."""
    step_start: np.ndarray
    """When each chosen step starts, shape (steps,)."""
    step_end: np.ndarray
    """When each chosen step ends, shape (steps,)."""
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
    """Number of each event's thread, int32; those of `threads` come first. -1 for rows of other times or of no thread."""
    threads: Threads
    runtime: np.ndarray
    """Rows of runtime calls that start within the steps."""
    gpu: np.ndarray
    """Rows of work on a GPU stream, by start."""
    launch: np.ndarray
    """Row of the runtime call that launched each of `gpu`; -1 where that was not recorded."""
    sync: np.ndarray
    """Rows of the profiler's own records of synchronisation that start within the steps."""
    collectives: Collectives
    may_wait_inside: bool
    """Whether an operation may wait for others inside."""

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
        """Mask of those of `rows` that are of this kind."""
        mask: np.ndarray = self.kind[rows] == (self.kinds.index(kind) if kind in self.kinds else len(self.kinds))
        return mask

    @cached_property
    def record_of(self) -> np.ndarray:
        """For each row of the table, the row of the profiler's own record of what this call synchronises; -1 for none."""
        call = self.runtime_of(self.ints("correlation", self.sync))
        records = np.full(len(self.start), -1, np.int32)
        records[call[call >= 0]] = self.sync[call >= 0]
        return records

    @cached_property
    def comms(self) -> np.ndarray:
        """Rows of the CPU calls that describe collectives, thread by thread."""
        rows: np.ndarray = self.threads.row[self.by_name(self.threads.row, "record_param_comms".__eq__)]
        return rows

    def inside_comms(self, rows: np.ndarray) -> np.ndarray:
        """Row of the outermost of `comms` that each of `rows` begins in; -1 for none."""
        calls, thread, moment = self.comms, self.thread[rows], self.start[rows]
        last = Sequences(self.thread[calls], self.start[calls], self.begin).last(thread, moment)
        outermost = np.full(len(rows), -1)
        # From the call that began last backwards: of those that are still open, the earliest is the outermost, and stays.
        for back in range(_MAX_NESTED_CALLS):
            call = entries(calls, np.maximum(last - back, -1), -1)
            is_open = (call >= 0) & (self.thread[call] == thread) & (self.end[call] >= moment)
            outermost = np.where(is_open, call, outermost)
        return outermost

    @cached_property
    def is_batched_p2p(self) -> np.ndarray:
        """Mask of the collectives that are several point-to-point transfers in one kernel (`batch_isend_irecv`).

        The kernel is launched behind the calls that describe its parts, so that nothing tells between whom they were
        (pytorch #194693).
        """
        rows = self.collectives
        word = np.array([word == "send_recv" for word in rows.words])[rows.word]
        undescribed = self.inside_comms(np.maximum(rows.launch, 0)) < 0
        found: np.ndarray = word & (rows.launch >= 0) & undescribed & (len(self.comms) > 0)
        return found

    def launched_in(self, rows: np.ndarray) -> np.ndarray:
        """The step that launched each of `rows`, as the table has it; -1 where it is none of the chosen ones."""
        step = self.ints("step", rows)
        return np.where((step >= self.steps[0]) & (step <= self.steps[-1]), step, -1)

    def step_at(self, moment: np.ndarray) -> np.ndarray:
        """The step that began last at or before each of these moments (ns); -1 before the first."""
        return entries(self.steps, np.searchsorted(self.step_start, moment, side="right") - 1, -1)

    def runtime_of(self, correlation: np.ndarray) -> np.ndarray:
        """Rows of the runtime calls with these correlations; -1 where there is none."""
        at = position(self.ints("correlation", self.runtime), correlation)
        return entries(self.runtime, at, -1)

    def by_text(
        self, rows: np.ndarray, classify: Callable[[str], Any], dtype: np.dtype[Any] | type = bool
    ) -> np.ndarray:
        """What `classify` says of each of `texts`, 0 or False for those that none of `rows` has as its name.

        `classify` is called once for each text, however many rows have it.
        """
        found = np.zeros(len(self.texts), dtype)
        for code in np.flatnonzero(np.bincount(self.name[rows])).tolist():
            found[code] = classify(self.texts[code])
        return found

    def by_name(
        self, rows: np.ndarray, classify: Callable[[str], Any], dtype: np.dtype[Any] | type = bool
    ) -> np.ndarray:
        """What `classify` says of the name of each of `rows`."""
        found: np.ndarray = self.by_text(rows, classify, dtype)[self.name[rows]]
        return found


def members_of(run: Run, group: str | None) -> tuple[Rank, ...]:
    """Ranks of the group of this name, those that the run lacks among them; all ranks where the group is not known."""
    return next((known.ranks for known in run.meta.groups if known.name == group), tuple(range(run.world_size)))


def read_rank(run: Run, rank: Rank, boundaries: Mapping[int, tuple[Ns, Ns]], steps: Sequence[int]) -> RankEvents:
    """Read what the builder needs of `rank` for these consecutive steps.

    `boundaries` are start and end of each step on the rank's clock, ns. Raises InputError where the rank has no CPU
    operation.
    """
    table, spans = run.events(rank), np.array([boundaries[step] for step in steps], np.int64)
    begin, finish = int(spans[0, 0]), int(spans[-1, 1])
    start = table.ints("start_ns")
    end = start + table.ints("dur_ns")
    codes, texts = table.codes("name")
    rows = _KindRows(table)
    # CPU calls must start inside: what the profiler itself does after the last step is no work of the job.
    first, behind = np.searchsorted(start, [begin, finish]).tolist()
    inside = slice(first, behind)
    gpu = rows.on_stream()
    gpu = gpu[end[gpu] > begin]
    launch = _launches(table, gpu, rows.of(slice(first, None), "runtime"))
    # A kernel belongs here unless it was launched after the last step: what still runs when the window opens holds its
    # stream.
    ours = launch < behind
    collectives = rows.collectives(gpu[ours], inside)
    called, working = (
        _off_gloo_threads(table, some, collectives)
        for some in (rows.of(inside, "op", "runtime", "loader"), rows.of(inside, "op", "loader"))
    )
    thread, threads = _threads(table, rank, called, working)
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
        return np.array([kind in kinds for kind in self.kinds] + [False])  # the last is that of code -1, null


def _launches(table: Table, gpu: np.ndarray, runtime: np.ndarray) -> np.ndarray:
    """For each of the rows `gpu`, the one of `runtime` with its correlation; -1 where there is none."""
    correlation = table.ints("correlation")
    return entries(runtime, position(correlation[runtime], correlation[gpu]), -1)


def _off_gloo_threads(table: Table, rows: np.ndarray, collectives: np.ndarray) -> np.ndarray:
    """Those of `rows` that are not on threads that gloo transfers in: what it computes there is part of its transfers.

    An all-gather of one tensor copies its parts, a mean divides. Such a thread is idle between two transfers, and as a chain
    of calls would seem to have something to do all the time.
    """
    tid = table.ints("tid")
    roles, names = table.codes("thread_role")
    is_other = np.array([name not in ("main", "autograd") for name in names] + [True])[roles]
    gloo_rows = collectives[is_other[collectives] & (table.ints("stream")[collectives] < 0)]
    return rows[~np.isin(tid[rows], tid[gloo_rows])]


def _threads(table: Table, rank: Rank, rows: np.ndarray, working: np.ndarray) -> tuple[np.ndarray, Threads]:
    """Number the threads of `rows`, first those that have rows among `working`.

    Returns (int32 number for each row of the table, -1 for others; the threads that work). Raises InputError where none
    does.
    """
    tid = table.ints("tid")
    rows, working = rows[tid[rows] >= 0], working[tid[working] >= 0]
    if not len(working):
        raise InputError(
            f"rank {rank} holds no CPU operation in these steps", remedy="Record with ProfilerActivity.CPU."
        )
    number, tids = numbered(tid[rows])
    idle = ~np.isin(tids, tid[working])
    thread = np.full(len(table), -1, np.int32)
    # The first argsort is the order of the threads, the idle ones last; the second its inverse, the place of each thread.
    thread[rows] = np.argsort(np.argsort(idle, kind="stable"))[number]
    count = int((~idle).sum())
    mine = rows[thread[rows] < count]
    mine = mine[np.argsort(thread[mine], kind="stable")]
    # Rows stand thread by thread now: where each thread begins, and where the last one ends.
    ptr = np.searchsorted(thread[mine], np.arange(count + 1))
    codes, names = table.codes("thread_role")
    roles = tuple([*names, "other"][code] for code in codes[mine[ptr[:-1]]].tolist())
    main = roles.index("main") if "main" in roles else int(np.argmax(np.diff(ptr)))
    autograd = next((t for t, role in enumerate(roles) if role == "autograd" and t != main), -1)
    return thread, Threads(mine, ptr, roles, main, autograd)


def _collectives(table: Table, rows: np.ndarray, gpu: np.ndarray, launch: np.ndarray) -> Collectives:
    group, groups = table.codes("group")
    word, words = table.codes("collective")
    return Collectives(
        row=rows,
        group=group[rows],
        groups=(*groups, None),
        word=word[rows],
        words=(*words, None),
        launch=entries(launch, position(gpu, rows), -1),
        sequence=table.ints("coll_seq")[rows],
        peer=table.ints("peer")[rows],
        bytes=np.maximum(table.ints("in_bytes")[rows], table.ints("out_bytes")[rows]),
    )
