"""The DataLoaders' share of a rank: the table of stages, and what each step took from them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from esprof.core.types import Ns
from esprof.run.collect.notes import Fetch, MarkedStage, Next, NotedStep, RankNotes, RankRows, Workers
from esprof.run.raw.paced import PacedBy
from esprof.run.schema import STAGES, StageKind, Table, table

_Pass = tuple[int, int]
"""(iterator, epoch): one pass over one DataLoader. The table numbers the passes of a rank from 0, as `loader`."""


def stages_of(notes: RankNotes, rows: RankRows) -> Table:
    """The `stages` table of one rank, by start. A fetch that belongs to none of the rank's passes is left out."""
    loaders = {key: i for i, key in enumerate(dict.fromkeys((row.iterator, row.epoch) for row in rows.nexts))}
    pid = notes.identity.pid
    found = [_row(row, kind="next", loader=loaders[row.iterator, row.epoch], pid=pid) for row in rows.nexts]
    found += [
        _row(row, kind="fetch", loader=loaders[key]) for key, row in _fetches_by_pass(notes, rows) if key in loaders
    ]
    found += [_row(row, kind="stage", pid=pid) for row in rows.stages]
    worker = {pid: number for start in notes.workers for number, pid in enumerate(start.pids)}
    for pid, stages in rows.worker_stages.items():
        # A worker that nobody noted has a number that no other has: without one the stage would be the rank's own.
        number = worker.setdefault(pid, len(worker))
        found += [_row(row, kind="stage", pid=pid, worker=number) for row in stages]
    found.sort(key=lambda row: row["start_ns"])
    return table({name: [row.get(name) for row in found] for name in STAGES.names}, STAGES)


def _row(noted: Next | Fetch | MarkedStage, *, kind: StageKind, **more: object) -> dict[str, Any]:
    return msgspec.structs.asdict(noted) | {"kind": kind} | more


def loads_of_steps(notes: RankNotes, rows: RankRows) -> dict[str, list[int | None]]:
    """Per step of `rows.steps`: samples, tokens and padding of the batches taken in it, and ns spent in `next`.

    In a job that trains, a batch taken with gradients off (a validation pass) adds to the wait, but not to the samples.
    """
    no_optimizer = notes.paced is not None and notes.paced.by is not PacedBy.OPTIMIZER
    evaluates = no_optimizer and not any(row.training for row in rows.nexts)
    exact = {(*key, row.batch): row.samples for key, row in _fetches_by_pass(notes, rows)}
    samples: list[int | None] = [None] * len(rows.steps)
    tokens: list[int | None] = [None] * len(rows.steps)
    padding: list[int | None] = [None] * len(rows.steps)
    waits: list[int | None] = [0 if rows.nexts else None] * len(rows.steps)
    for row, i in zip(rows.nexts, _steps_at(rows.steps, [row.end_ns for row in rows.nexts]), strict=True):
        if i is None:
            continue
        waits[i] = _sum(waits[i], row.end_ns - row.start_ns)
        if row.training or evaluates:
            # The worker knows how many samples it was asked for; the rank has only the batch's shape to go by.
            samples[i] = _sum(samples[i], exact.get((row.iterator, row.epoch, row.batch)) or row.samples)
            tokens[i] = _sum(tokens[i], row.tokens)
            padding[i] = _sum(padding[i], row.padding)
    return {"samples": samples, "tokens": tokens, "padding": padding, "loader_wait_ns": waits}


def _fetches_by_pass(notes: RankNotes, rows: RankRows) -> list[tuple[_Pass, Fetch]]:
    """Each fetch with the pass it was made for. Process ids are reused: the latest iterator with the fetch's id counts."""
    owners: dict[int, list[Workers]] = defaultdict(list)
    for row in notes.workers:
        for pid in row.pids:
            owners[pid].append(row)
    found = []
    for fetch in rows.fetches:
        iterators = [row.iterator for row in owners[fetch.pid] if row.start_ns <= fetch.start_ns]
        if iterators:
            found.append(((iterators[-1], fetch.epoch), fetch))
    return found


def _steps_at(steps: Sequence[NotedStep], times: Sequence[Ns]) -> list[int | None]:
    """For each time the index of the step that it lies in, if any."""
    found = np.searchsorted([step.start_ns for step in steps], times, side="right") - 1
    ends = [step.start_ns + step.dur_ns for step in steps]
    return [i if i >= 0 and time < ends[i] else None for i, time in zip(found.tolist(), times, strict=True)]


def _sum(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
