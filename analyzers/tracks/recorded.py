"""Tracks of what was recorded: the events of each rank by thread and stream, as torch.profiler names them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.tracks.event_args import event_args, trace_category
from esprof.analyzers.tracks.track import ArrowEnd, ArrowEnds, ArrowKind, CounterTrack, Slices, Track, TrackProcess
from esprof.core.types import Ns, Rank
from esprof.replay.building.lookup import entries, position
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.replayed import Replayed
from esprof.run.kineto.categories import ESPROF
from esprof.run.schema import Table

_FIRST_ID = 1
_ON_GPU = ("kernel", "memcpy", "memset", "collective", "annotation")
_COUNTERS = {
    "allocated": "CUDA memory allocated",
    "reserved": "CUDA memory reserved",
    "rss": "resident set size",
}
"""Columns of `schema.MEMORY` and what they are called."""
BATCH, STAGE = f"{ESPROF}batch", f"{ESPROF}stage"
"""Categories of events that torch.profiler does not have."""


@dataclass(frozen=True)
class CollectiveEnds:
    """Ends of arrows at the events of matched collectives, by rank: an arrow passes all ranks in order of their arrival."""

    by_rank: Mapping[Rank, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """(row in the event table, id of the arrow, `ArrowEnd`)."""
    ids: int
    """The first id that is free."""

    @classmethod
    def of(cls, replayed: Replayed) -> "CollectiveEnds":
        dfg = replayed.built.dfg
        nodes = np.flatnonzero((dfg.collective >= 0) & (dfg.event >= 0) & dfg.of(Cls.COMMUNICATION))
        arrived = np.zeros(len(nodes), np.int64)
        for rank, mine in _by_rank(dfg, nodes).items():
            start = replayed.run.events(rank).ints("start_ns")[dfg.event[nodes[mine]]]
            arrived[mine] = replayed.built.clocks.apply(rank, start)
        nodes = nodes[np.lexsort((arrived, dfg.collective[nodes]))]
        number = dfg.collective[nodes].astype(np.int64)
        is_first, is_last = np.diff(number, prepend=-1) != 0, np.diff(number, append=-1) != 0
        end = np.select([is_first, is_last], [ArrowEnd.SOURCE, ArrowEnd.TARGET], ArrowEnd.PASSED)
        several = ~(is_first & is_last)
        nodes, ids, end = nodes[several], _FIRST_ID + number[several], end[several]
        by_rank = {rank: (dfg.event[nodes[mine]], ids[mine], end[mine]) for rank, mine in _by_rank(dfg, nodes).items()}
        return cls(by_rank, _FIRST_ID + int(dfg.collective.max(initial=-1)) + 1)


def _by_rank(dfg: Dfg, nodes: np.ndarray) -> dict[Rank, np.ndarray]:
    """The indices in `nodes` of the nodes of each rank of the job."""
    order = np.argsort(dfg.rank[nodes], kind="stable")
    first = np.searchsorted(dfg.rank[nodes][order], np.array(dfg.marks.ranks))
    # The first piece of the split is empty: no rank is smaller.
    return dict(zip(dfg.marks.ranks, np.split(order, first)[1:], strict=True))


@dataclass(frozen=True)
class RecordedTracks:
    """The recorded events of a run that ran in `steps` or were launched in them."""

    replayed: Replayed
    steps: Sequence[int]
    collectives: CollectiveEnds

    @classmethod
    def of(cls, replayed: Replayed, steps: Sequence[int]) -> "RecordedTracks":
        return cls(replayed, steps, CollectiveEnds.of(replayed))

    def process(self, rank: Rank, first_id: int) -> tuple[TrackProcess, int]:
        """(the events, batches and memory of a rank, the first free id); arrows of launches have ids from `first_id` on."""
        meta = self.replayed.run.rank(rank)
        about = ", ".join(filter(None, (meta.host, meta.device)))
        tracks, free_id = self._events(rank, first_id)
        tracks += self._stages(rank)
        counters = self._counters(rank)
        return TrackProcess(f"rank {rank}", about, recorded=True, tracks=tracks, counters=counters), free_id

    def _span(self, rank: Rank) -> tuple[Ns, Ns]:
        """When the rank begins the first and ends the last of the steps, ns on its own clock."""
        bounds = self.replayed.steps.boundaries[rank]
        return bounds[self.steps[0]][0], bounds[self.steps[-1]][1]

    def _on_job_clock(self, rank: Rank, times_ns: np.ndarray) -> np.ndarray:
        return self.replayed.built.clocks.apply(rank, times_ns)

    def _events(self, rank: Rank, first_id: int) -> tuple[list[Track], int]:
        events, (begin, end) = self.replayed.run.events(rank), self._span(rank)
        start = events.ints("start_ns")
        until = start + events.ints("dur_ns")
        rows = np.flatnonzero(np.isin(events.ints("step"), self.steps) | ((start < end) & (until > begin)))
        chosen = events.where(rows)
        start, until = self._on_job_clock(rank, start[rows]), self._on_job_clock(rank, until[rows])
        names, texts = _texts(chosen, "name")
        categories, kinds = trace_category(chosen)
        args = event_args(chosen)
        arrows, free_id = _launches(chosen, first_id)
        arrows.append((*_rows_in(rows, self.collectives.by_rank[rank]), ArrowKind.COLLECTIVE))
        tracks = []
        for name, mine in _lanes(chosen):
            mine = mine[np.lexsort((-until[mine], start[mine]))]
            slices = Slices(
                start[mine], until[mine], names[mine], texts, categories[mine], kinds,
                {key: [values[row] for row in mine.tolist()] for key, values in args.items()},
            )  # fmt: skip
            tracks.append(Track(name, slices, _on_track(mine, len(rows), arrows)))
        return tracks, free_id

    def _stages(self, rank: Rank) -> list[Track]:
        """Batches by loader worker, and the stages that the job marks."""
        stages, (begin, end) = self.replayed.run.stages(rank), self._span(rank)
        start, until = stages.ints("start_ns"), stages.ints("end_ns")
        inside = (start < end) & (until > begin)
        tracks = []
        fetched = inside & stages.is_kind("fetch")
        worker, batch = stages.ints("worker"), stages.ints("batch")
        for number in np.unique(worker[fetched]).tolist():
            mine = np.flatnonzero(fetched & (worker == number))
            texts = [f"batch {one}" for one in batch[mine].tolist()]
            tracks.append(self._stage_track(f"loader worker {number}", BATCH, rank, texts, start[mine], until[mine]))
        marked = np.flatnonzero(inside & stages.is_kind("stage", "background"))
        if len(marked):
            texts = [name or "stage" for name in stages.where(marked).texts("name")]
            tracks.append(self._stage_track("stages", STAGE, rank, texts, start[marked], until[marked]))
        return tracks

    def _stage_track(
        self, name: str, category: str, rank: Rank, texts: Sequence[str], start: np.ndarray, until: np.ndarray
    ) -> Track:
        order = np.lexsort((-until, start))
        slices = Slices(
            start_ns=self._on_job_clock(rank, start[order]),
            end_ns=self._on_job_clock(rank, until[order]),
            name=order,
            names=texts,
            category=np.zeros(len(order), np.int64),
            categories=[category],
            args={},
        )
        return Track(name, slices, ArrowEnds.none())

    def _counters(self, rank: Rank) -> list[CounterTrack]:
        memory, (begin, end) = self.replayed.run.memory(rank), self._span(rank)
        at = memory.ints("at_ns")
        inside = np.flatnonzero((at >= begin) & (at <= end))
        counters = []
        for column, name in _COUNTERS.items():
            values = memory.ints(column)
            known = inside[values[inside] >= 0]
            if len(known):
                counters.append(CounterTrack(name, self._on_job_clock(rank, at[known]), values[known]))
        return counters


def _texts(table: Table, column: str) -> tuple[np.ndarray, list[str]]:
    """(index of each row's text, the texts); rows without one have an empty text."""
    codes, texts = table.codes(column)
    return codes, [*texts, ""]  # Code -1 reads the last one.


def _lanes(events: Table) -> list[tuple[str, np.ndarray]]:
    """(name, rows) of each thread and stream: the main thread, other threads, then streams with their synchronisations."""
    stream, device, tid = events.ints("stream"), events.ints("device"), events.ints("tid")
    on_gpu, is_sync = stream >= 0, events.is_kind("sync")
    roles, names = _texts(events, "thread_role")
    is_main = np.array([name == "main" for name in names], bool)[roles]
    several = len(np.unique(device[on_gpu])) > 1
    keys = np.stack(
        [on_gpu, ~(is_main & ~on_gpu), np.where(on_gpu, device, -1), np.where(on_gpu, stream, tid), is_sync & on_gpu]
    )
    lanes, lane = np.unique(keys, axis=1, return_inverse=True)
    order = np.argsort(lane.reshape(-1), kind="stable")
    first = np.searchsorted(lane.reshape(-1)[order], np.arange(lanes.shape[1] + 1))
    found = []
    for number, (gpu, _, of_device, at, sync) in enumerate(lanes.T.tolist()):
        rows = order[first[number] : first[number + 1]]
        if gpu:
            name = f"{f'device {of_device} ' if several else ''}stream {at}{' synchronisation' if sync else ''}"
        else:
            name = f"{names[roles[rows[0]]] or 'other'} (thread {at})" if at >= 0 else "unknown thread"
        found.append((name, rows))
    return found


_Ends = tuple[np.ndarray, np.ndarray, np.ndarray, ArrowKind]
"""(row, id, `ArrowEnd`, the kind of all of them) of ends of arrows."""


def _launches(events: Table, first_id: int) -> tuple[list[_Ends], int]:
    """Arrows from calls of the GPU runtime to the work that they launched, and the first free id."""
    correlation = events.ints("correlation")
    calls = np.flatnonzero(events.is_kind("runtime") & (correlation > 0))
    work = np.flatnonzero(events.is_kind(*_ON_GPU) & (events.ints("stream") >= 0) & (correlation > 0))
    call = entries(calls, position(correlation[calls], correlation[work]), -1)
    source, target = call[call >= 0], work[call >= 0]
    ids = first_id + np.arange(len(target))
    ends = [
        (source, ids, np.full(len(ids), ArrowEnd.SOURCE), ArrowKind.LAUNCH),
        (target, ids, np.full(len(ids), ArrowEnd.TARGET), ArrowKind.LAUNCH),
    ]
    return ends, first_id + len(ids)


def _rows_in(
    rows: np.ndarray, ends: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ends at events of `rows` (ascending), with positions in `rows` for rows of the table."""
    row, ids, end = ends
    at = np.minimum(np.searchsorted(rows, row), max(len(rows) - 1, 0))
    known = rows[at] == row if len(rows) else np.zeros(len(row), bool)
    return at[known], ids[known], end[known]


def _on_track(mine: np.ndarray, rows: int, ends: Sequence[_Ends]) -> ArrowEnds:
    """The ends at the slices of a track, whose rows are `mine`; `rows` is the number of all rows."""
    place = np.full(rows, -1, np.int64)
    place[mine] = np.arange(len(mine))
    here = [place[row] >= 0 for row, _, _, _ in ends]
    kinds = [kind for (_, _, _, kind), at in zip(ends, here, strict=True) for _ in range(int(at.sum()))]
    return ArrowEnds(
        slice=np.concatenate([place[row][at] for (row, _, _, _), at in zip(ends, here, strict=True)]),
        id=np.concatenate([ids[at] for (_, ids, _, _), at in zip(ends, here, strict=True)]),
        end=np.concatenate([end[at] for (_, _, end, _), at in zip(ends, here, strict=True)]),
        kind=kinds,
    )
