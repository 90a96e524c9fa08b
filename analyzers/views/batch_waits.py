"""What a rank waits for while its DataLoader gives it no batch: what the worker of that batch does meanwhile."""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.whatif.loading.batches import making_times
from esprof.run.run import Run
from esprof.run.schema import Table
from esprof.run.step_rows import step_at

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
    nexts = stages.where(stages.is_kind("next"))
    nexts = nexts.where(np.isin(step_at(run.steps(rank), nexts.ints("end_ns")), steps))
    makings = _by_worker(stages.where(stages.is_kind("fetch")))
    found = dict.fromkeys((RUNS, BLOCKED, STARVED, PASSED, IDLE), 0.0)
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
        found[PASSED] += end - ready
        found[IDLE] += ready - start - busy
    return {kind: found[kind] / len(steps) for kind in sorted(found, key=lambda kind: -found[kind]) if found[kind] > 0}


def _by_worker(fetches: Table) -> dict[tuple[int, int], list[_Making]]:
    """The batches that each (loader, worker) made, by time."""
    found: dict[tuple[int, int], list[_Making]] = {}
    columns = ("loader", "worker", "end_ns", "start_ns", "batch")
    rows = zip(*(fetches.ints(name).tolist() for name in columns), strict=True)
    for (loader, worker, end, start, batch), kinds in zip(rows, _kinds(fetches), strict=True):
        found.setdefault((loader, worker), []).append(_Making(end, start, batch, kinds))
    return {key: sorted(made, key=lambda one: one.end_ns) for key, made in found.items()}


def _kinds(made: Table) -> list[dict[str, float]]:
    """The share of each kind of time in the making of each batch."""
    times = making_times(made)
    took = np.maximum(sum(times), 1)
    columns = zip(*((of / took).tolist() for of in times), strict=True)
    return [{RUNS: ran, STARVED: ready, BLOCKED: blocked} for ran, ready, blocked in columns]


def _add(found: dict[str, float], kinds: dict[str, float], took: float) -> None:
    for kind, share in kinds.items():
        found[kind] += share * took
