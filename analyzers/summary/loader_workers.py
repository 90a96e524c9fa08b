"""What each worker of the DataLoaders spends its time on: the table of input stages in the report."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec
import numpy as np

from esprof.core.types import Rank, us
from esprof.replay.whatif.loading.batches import making_times
from esprof.run.run import Run
from esprof.run.schema import Table

MAX_WORKERS = 32
"""Most rows; those of the busiest workers."""
MAX_PARTS = 3
"""Most parts of the making of a batch that are named for a worker, longest first."""


class WorkerPart(msgspec.Struct, frozen=True):
    """A part of the making of a batch, and its time in a mean batch."""

    name: str
    us: float


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """One loader worker of one rank over the whole run; times are of a mean batch."""

    rank: Rank
    worker: int | None
    """None if the rank makes its batches itself."""
    batches: int
    making_us: float
    cpu_us: float
    ready_us: float
    """Waiting for a CPU."""
    blocked_us: float
    """Neither running nor waiting for a CPU: reads, locks, sleeps."""
    busy_pct: float
    """Share of the time from its first to its last batch in which the worker makes batches."""
    parts: tuple[WorkerPart, ...]


class InputStages(msgspec.Struct, frozen=True, kw_only=True):
    workers: tuple[WorkerUse, ...]
    """Busiest first, at most `MAX_WORKERS`."""
    found: int


def input_stages(run: Run) -> InputStages | None:
    """Times of the makings of batches, by worker; None if the run records none."""
    found = [worker for rank in run.ranks for worker in _of_rank(rank, run.stages(rank))]
    if not found:
        return None
    found.sort(key=lambda one: (-one.busy_pct, one.rank, one.worker or 0))
    return InputStages(workers=tuple(found[:MAX_WORKERS]), found=len(found))


def _of_rank(rank: Rank, stages: Table) -> Iterator[WorkerUse]:
    made = stages.where(stages.is_kind("fetch"))
    if not len(made):
        made = stages.where(stages.is_kind("next"))
        made = made.where(made.ints("workers") <= 0)
    if not len(made):
        return
    worker = made.ints("worker")
    parts = _parts(stages, dict(zip(_batches(made), worker.tolist(), strict=True)))
    cpu, ready, blocked = making_times(made)
    begin, end = made.ints("start_ns"), made.ints("end_ns")
    for number in np.unique(worker).tolist():
        mine = worker == number
        batches, making = int(mine.sum()), float((end - begin)[mine].sum())
        span = int(end[mine].max() - begin[mine].min())
        longest = sorted(parts[number].items(), key=lambda item: -item[1])[:MAX_PARTS]
        yield WorkerUse(
            rank=rank,
            worker=number if number >= 0 else None,
            batches=batches,
            making_us=us(making / batches),
            cpu_us=us(float(cpu[mine].mean())),
            ready_us=us(float(ready[mine].mean())),
            blocked_us=us(float(blocked[mine].mean())),
            busy_pct=round(min(100.0, 100 * making / span), 1) if span else 100.0,
            parts=tuple(WorkerPart(name, us(took / batches)) for name, took in longest),
        )


def _batches(rows: Table) -> list[tuple[int, int]]:
    return list(zip(rows.ints("loader").tolist(), rows.ints("batch").tolist(), strict=True))


def _parts(stages: Table, worker_of: dict[tuple[int, int], int]) -> dict[int, dict[str, int]]:
    """Worker -> name of each part of its batches -> time, ns."""
    rows = stages.where(stages.is_kind("part"))
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for batch, name, took in zip(_batches(rows), rows.texts("name"), rows.ints("took_ns").tolist(), strict=True):
        if batch in worker_of and name:
            found[worker_of[batch]][name] += max(0, took)
    return found
