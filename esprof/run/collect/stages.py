"""The table of stages of a rank, and the data loading of each step."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from esprof.core.types import Ns
from esprof.run.collect.notes import RankNotes, Workers
from esprof.run.collect.rolled_rows import Fetch, MarkedStage, Next, NotedStep, RankRows
from esprof.run.raw.paced import PacedBy
from esprof.run.raw.stages import PINNING
from esprof.run.schema import STAGES, StageKind, Table, table

Pass = tuple[int, int]
"""(iterator, epoch): one pass over a DataLoader. `loader` in the table numbers the passes of a rank from 0."""


def stages_of(notes: RankNotes, rows: RankRows) -> Table:
    """Return the `stages` table of one rank, by start, without fetches of unknown passes."""
    loaders = passes(rows)
    pid = notes.identity.pid
    found = [_row(row, kind="next", loader=loaders[row.iterator, row.epoch], pid=pid) for row in rows.nexts]
    found += [
        _row(row, kind="fetch", loader=loaders[key]) for key, row in fetches_by_pass(notes, rows) if key in loaders
    ]
    found += [part for row in found for part in _parts(row)]
    found += [_row(row, kind=_kind_of(row), pid=pid) for row in rows.stages]
    worker = {pid: number for start in notes.workers for number, pid in enumerate(start.pids)}
    for pid, stages in rows.worker_stages.items():
        # An unknown worker gets a unique number: without one, the stage would count as the rank's own.
        number = worker.setdefault(pid, len(worker))
        found += [_row(row, kind="stage", pid=pid, worker=number) for row in stages]
    found.sort(key=lambda row: row["start_ns"])
    return table({name: [row.get(name) for row in found] for name in STAGES.names}, STAGES)


def passes(rows: RankRows) -> dict[Pass, int]:
    """Return the number of each pass, in the order of their first batches."""
    return {key: i for i, key in enumerate(dict.fromkeys((row.iterator, row.epoch) for row in rows.nexts))}


def _row(noted: Next | Fetch | MarkedStage, *, kind: StageKind, **more: object) -> dict[str, Any]:
    return msgspec.structs.asdict(noted) | {"kind": kind} | more


def _kind_of(row: MarkedStage) -> StageKind:
    """The kind of what a rank has noted as a stage."""
    if row.is_background:
        return "background"
    return "pin" if row.name == PINNING else "stage"


def _parts(made: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a batch as rows of their own, at the time of the batch."""
    return [
        made | {"kind": "part", "name": name, "took_ns": took_ns, "cpu_ns": cpu_ns} | dict.fromkeys(_OF_BATCHES)
        for name, (took_ns, cpu_ns) in made["parts"].items()
    ]


_OF_BATCHES = ("samples", "workers", "prefetch", "in_order", "batches", "ready_ns", "read_bytes", "read_chars")
"""Columns that only whole batches have."""


def loads_of_steps(notes: RankNotes, rows: RankRows) -> dict[str, list[int | None]]:
    """Return samples, tokens, padding and pairs of tokens of the batches of each step in `rows.steps`, and its time in
    `next`, ns.

    In a training job, a batch taken with gradients off (validation) counts for the waiting time, but not for the samples.
    """
    no_optimizer = notes.paced is not None and notes.paced.by is not PacedBy.OPTIMIZER
    evaluates = no_optimizer and not any(row.training for row in rows.nexts)
    fetched = {(*key, row.batch): row for key, row in fetches_by_pass(notes, rows)}
    loads: dict[str, list[int | None]] = {name: [None] * len(rows.steps) for name in _LOADS}
    waits: list[int | None] = [0 if rows.nexts else None] * len(rows.steps)
    for row, i in zip(rows.nexts, _steps_at(rows.steps, [row.end_ns for row in rows.nexts]), strict=True):
        if i is None:
            continue
        waits[i] = _sum(waits[i], row.end_ns - row.start_ns)
        if row.training or evaluates:
            for name, more in zip(_LOADS, _load(row, fetched.get((row.iterator, row.epoch, row.batch))), strict=True):
                loads[name][i] = _sum(loads[name][i], more)
    return loads | {"loader_wait_ns": waits}


_LOADS = ("samples", "tokens", "padding", "pairs", "padding_pairs")


def _load(taken: Next, fetched: Fetch | None) -> tuple[int | None, ...]:
    """The columns `_LOADS` of a batch. The worker that made it knows the exact number of samples, which the rank infers from
    the shape of the batch; the rank sees its masks and ids, and the worker the sequences that it has put together."""
    samples = (fetched.samples if fetched else None) or taken.samples
    padding = taken.padding or (fetched.padding if fetched else None)
    if padding is None:
        return samples, taken.tokens, None, None, None
    return samples, padding.tokens, padding.padding, padding.pairs, padding.padding_pairs


def fetches_by_pass(notes: RankNotes, rows: RankRows) -> list[tuple[Pass, Fetch]]:
    """Return each fetch with its pass. Process ids are reused, so the latest iterator with the worker's id counts."""
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
    """Return for each time the index of the step that contains it, or None."""
    found = np.searchsorted([step.start_ns for step in steps], times, side="right") - 1
    ends = [step.start_ns + step.dur_ns for step in steps]
    return [i if i >= 0 and time < ends[i] else None for i, time in zip(found.tolist(), times, strict=True)]


def _sum(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
