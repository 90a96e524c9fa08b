"""What a rank waits for while its DataLoader gives it no batch: what the worker of that batch does meanwhile."""

from bisect import bisect_right
from collections import Counter
from typing import NamedTuple

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.run.run import Run
from esprof.run.schema import Table

RUNS, BLOCKED, STARVED = "on a CPU", "blocked (reads, locks, sleeps)", "waiting for a CPU"
PASSED, IDLE = "passing the batch to the rank", "not requested yet"


class _Making(NamedTuple):
    """The making of a batch by a worker."""

    end_ns: Ns
    start_ns: Ns
    batch: int
    kinds: dict[str, float]
    """Share of each kind of time; they sum to 1."""


def waits(run: Run, rank: Rank, steps: tuple[int, ...]) -> dict[str, float]:
    """What the waits for batches that end in `steps` consist of, ns in a mean step, by kind, longest first.

    They sum to the waits. A wait is divided by the time line of the worker that makes the batch: while it makes this batch
    or one before it, by what the making consists of; before, the batch was not requested; after, it is passed on. Without
    workers, the rank makes the batch itself. Empty if the run has no stages.
    """
    stages = run.stages(rank)
    nexts = _within(stages.where(stages.is_kind("next")), run.steps(rank), steps)
    makings = _by_worker(stages.where(stages.is_kind("fetch")))
    found: Counter[str] = Counter()
    columns = ("loader", "worker", "batch", "start_ns", "end_ns")
    rows = zip(*(nexts.ints(name).tolist() for name in columns), strict=True)
    for (loader, worker, batch, start, end), kinds in zip(rows, _kinds(nexts), strict=True):
        if worker < 0:
            _add(found, kinds, end - start)
            continue
        made = makings.get((loader, worker), [])
        ready = next((min(max(one.end_ns, start), end) for one in made if one.batch == batch), end)
        busy = 0
        for one in made[bisect_right(made, start, key=lambda one: one.end_ns) :]:
            overlap = min(one.end_ns, ready) - max(one.start_ns, start)
            if overlap <= 0:
                break
            busy += overlap
            _add(found, one.kinds, overlap)
        found.update({PASSED: end - ready, IDLE: ready - start - busy})
    return {kind: took / max(1, len(steps)) for kind, took in found.most_common() if took > 0}


def _within(nexts: Table, table: Table, steps: tuple[int, ...]) -> Table:
    """The calls that end in one of `steps`."""
    row = np.flatnonzero(np.isin(table.ints("step"), steps))
    row = row[np.argsort(table.ints("start_ns")[row])]
    begin = table.ints("start_ns")[row]
    end = np.append(begin + table.ints("dur_ns")[row], 0)
    ends = nexts.ints("end_ns")
    # Before the first step the index is -1, for which `end` is 0.
    return nexts.where(ends < end[np.searchsorted(begin, ends, side="right") - 1])


def _by_worker(fetches: Table) -> dict[tuple[int, int], list[_Making]]:
    """The batches that each (loader, worker) made, by time."""
    found: dict[tuple[int, int], list[_Making]] = {}
    columns = ("loader", "worker", "end_ns", "start_ns", "batch")
    rows = zip(*(fetches.ints(name).tolist() for name in columns), strict=True)
    for (loader, worker, end, start, batch), kinds in zip(rows, _kinds(fetches), strict=True):
        found.setdefault((loader, worker), []).append(_Making(end, start, batch, kinds))
    return {key: sorted(made, key=lambda one: one.end_ns) for key, made in found.items()}


def _kinds(made: Table) -> list[dict[str, float]]:
    """The share of each kind of time in the making of each batch. An unknown CPU time counts as blocked."""
    took = np.maximum(made.ints("end_ns") - made.ints("start_ns"), 1).astype(np.float64)
    ran = np.clip(made.ints("cpu_ns") / took, 0, 1)
    starved = np.clip(made.ints("ready_ns") / took, 0, 1 - ran)
    columns = zip(ran.tolist(), starved.tolist(), strict=True)
    return [{RUNS: one, STARVED: two, BLOCKED: 1 - one - two} for one, two in columns]


def _add(found: Counter[str], kinds: dict[str, float], took: float) -> None:
    for kind, share in kinds.items():
        found[kind] += share * took  # type: ignore[assignment]
