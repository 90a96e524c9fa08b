"""What a rank waits for while its DataLoader gives it no batch: what the worker of that batch does meanwhile."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.whatif.loading.batches import making_times
from esprof.run.run import Run
from esprof.run.schema import Table
from esprof.run.step_rows import step_at

RUNS, BLOCKED, STARVED = "on a CPU", "blocked (reads, locks, sleeps)", "waiting for a CPU"
PINNED, PASSED, IDLE = "pinning the batch", "passing the batch to the rank", "not requested yet"
UNKNOWN = "unknown"

UNSPLIT = ""
"""Stands for what no part covers of the making of a batch, and for what is not making."""

SLOW_TIMES_MEDIAN = 2.0
"""A batch is slow if it takes more than so many times as long as the median batch: twice the time uses up the lead of a
worker that makes two batches ahead, the default of PyTorch."""

_OUT_OF_ORDER = 0
"""Value of `in_order` of a loader that delivers whichever batch is ready."""


@dataclass
class BatchWaits:
    """The waits of a rank for batches, ns in a mean step."""

    spent: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """(part of the making of a batch or UNSPLIT, kind of time) -> how long. They sum to the waits."""
    start_up_ns: float = 0.0
    """In waits for the first batch of a pass over the loader: until the worker begins with it."""
    slow_ns: float = 0.0
    """While the worker made a slow batch (`SLOW_TIMES_MEDIAN`)."""
    overtaken_ns: float = 0.0
    """While a later batch, of another worker, was ready."""
    batches: float = 0.0
    """How many batches a mean step takes."""

    @property
    def total_ns(self) -> float:
        return sum(self.spent.values())

    @property
    def by_kind(self) -> dict[str, float]:
        """Kind -> how long, longest first; only kinds that occur."""
        return _longest_first((kind, took) for (_, kind), took in self.spent.items())

    @property
    def by_part(self) -> dict[str, float]:
        """Part -> how long, longest first."""
        return _longest_first((part, took) for (part, _), took in self.spent.items() if part != UNSPLIT)

    def share(self, *kinds: str, part: str | None = None) -> float:
        """Share of the waits that is time of these kinds, of one part or of all; all kinds if none is given."""
        some = sum(
            took
            for (of, kind), took in self.spent.items()
            if (not kinds or kind in kinds) and (part is None or of == part)
        )
        return some / max(self.total_ns, 1.0)


def _longest_first(items: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for key, took in items:
        found[key] += took
    return {key: found[key] for key in sorted(found, key=lambda key: -found[key]) if found[key] > 0}


class _Making(NamedTuple):
    """The making of a batch by a worker."""

    end_ns: Ns
    start_ns: Ns
    batch: int
    shares: dict[tuple[str, str], float]
    """(part, kind) -> share of the time; they sum to 1."""
    is_slow: bool


class _Call(NamedTuple):
    """A call of `next` in the rank."""

    loader: int
    worker: int
    batch: int
    start_ns: Ns
    end_ns: Ns
    workers: int
    prefetch: int
    in_order: int


def waits(run: Run, rank: Rank, steps: tuple[int, ...]) -> BatchWaits:
    """What the waits for batches that end in `steps` consist of. Nothing if the run has no stages.

    A wait is divided by the time line of the worker that makes the batch: while it makes this batch or one before it, by
    what the making consists of; before, the batch was not requested; after, it is pinned and passed on. Without
    workers, the rank makes the batch itself. The time off the CPU in a part is blocked or starved as in its batch. The
    wait for a batch is unknown if its worker is, as may be if batches come in any order.
    """
    stages = run.stages(rank)
    nexts = stages.where(stages.is_kind("next"))
    nexts = nexts.where(np.isin(step_at(run.steps(rank), nexts.ints("end_ns")), steps))
    parts, own = _parts(stages), nexts.ints("workers") <= 0
    by_rank = iter(_makings(nexts.where(own), parts))
    fetches = stages.where(stages.is_kind("fetch"))
    by_worker: dict[tuple[int, int], list[_Making]] = defaultdict(list)
    ready: dict[tuple[int, int], Ns] = {}
    columns = (fetches.ints(name).tolist() for name in ("loader", "worker"))
    for loader, worker, making in zip(*columns, _makings(fetches, parts), strict=True):
        by_worker[loader, worker].append(making)
        ready[loader, making.batch] = making.end_ns
    for made in by_worker.values():
        made.sort(key=lambda one: one.end_ns)
    pins = stages.where(stages.is_kind("pin"))
    pinned = np.stack([pins.ints("start_ns"), pins.ints("end_ns")])
    found = BatchWaits()
    for call in _calls(nexts):
        found.batches += 1
        if call.workers <= 0:
            _count(found, next(by_rank), call.end_ns - call.start_ns)
        elif call.worker < 0:
            found.spent[UNSPLIT, UNKNOWN] += call.end_ns - call.start_ns
        else:
            until = _count_making(found, call, by_worker[call.loader, call.worker])
            found.overtaken_ns += _overtaken_ns(call, until, ready)
            _count_passing(found, until, call.end_ns, pinned)
    return _in_mean_step(found, len(steps))


def _calls(nexts: Table) -> Iterable[_Call]:
    return map(_Call._make, zip(*(nexts.ints(name).tolist() for name in _Call._fields), strict=True))


def _parts(stages: Table) -> dict[tuple[int, int], list[tuple[str, int, int]]]:
    """(loader, batch) -> name, time and CPU time of each part of its making, ns."""
    rows = stages.where(stages.is_kind("part"))
    found: dict[tuple[int, int], list[tuple[str, int, int]]] = defaultdict(list)
    columns = (rows.ints(name).tolist() for name in ("loader", "batch", "took_ns", "cpu_ns"))
    for loader, batch, took, ran, name in zip(*columns, rows.texts("name"), strict=True):
        found[loader, batch].append((name or UNSPLIT, max(took, 0), max(ran, 0)))
    return found


def _makings(made: Table, parts: dict[tuple[int, int], list[tuple[str, int, int]]]) -> list[_Making]:
    """The makings of the batches in the rows of `made`."""
    times = making_times(made)
    took = np.maximum(sum(times), 1)
    is_slow = took > SLOW_TIMES_MEDIAN * np.median(took) if len(took) else took > 0
    columns = [made.ints(name).tolist() for name in ("end_ns", "start_ns", "batch", "loader")]
    rows = zip(*columns, *(of.tolist() for of in (*times, is_slow)), strict=True)
    return [
        _Making(end, start, batch, _shares(ran, ready, blocked, parts.get((loader, batch), [])), slow)
        for end, start, batch, loader, ran, ready, blocked, slow in rows
    ]


def _shares(
    ran: float, ready: float, blocked: float, parts: list[tuple[str, int, int]]
) -> dict[tuple[str, str], float]:
    """Share of each (part, kind) in a batch that ran, was ready and was blocked for so long, ns."""
    total, off = max(ran + ready + blocked, 1.0), ready + blocked
    starved = ready / off if off else 0.0
    found: dict[tuple[str, str], float] = defaultdict(float)
    for name, took_part, ran_part in parts:
        on_cpu = min(ran_part, ran)
        off_cpu = min(max(0, took_part - ran_part), off)
        ran, off = ran - on_cpu, off - off_cpu
        _split(found, name, on_cpu, off_cpu, starved)
    _split(found, UNSPLIT, ran, off, starved)
    return {key: took / total for key, took in found.items() if took > 0}


def _split(found: dict[tuple[str, str], float], part: str, on_cpu: float, off_cpu: float, starved: float) -> None:
    found[part, RUNS] += on_cpu
    found[part, STARVED] += starved * off_cpu
    found[part, BLOCKED] += (1 - starved) * off_cpu


def _count(found: BatchWaits, making: _Making, took_ns: float) -> None:
    for key, share in making.shares.items():
        found.spent[key] += share * took_ns
    found.slow_ns += took_ns if making.is_slow else 0.0


def _count_making(found: BatchWaits, call: _Call, made: list[_Making]) -> Ns:
    """Count the wait until the batch is made; return when that is."""
    start, end = call.start_ns, call.end_ns
    until = next((min(max(one.end_ns, start), end) for one in made if one.batch == call.batch), end)
    busy = 0
    for one in made[bisect_right(made, start, key=lambda one: one.end_ns) :]:
        overlap = min(one.end_ns, until) - max(one.start_ns, start)
        if overlap <= 0:
            break
        busy += overlap
        _count(found, one, overlap)
    found.spent[UNSPLIT, IDLE] += until - start - busy
    found.start_up_ns += until - start - busy if call.batch == 0 else 0
    return until


def _count_passing(found: BatchWaits, start_ns: Ns, end_ns: Ns, pinned: np.ndarray) -> None:
    """Count the wait from when the batch is made. `pinned` are intervals in which a batch was pinned, int64[2, n]."""
    overlap = np.minimum(pinned[1], end_ns) - np.maximum(pinned[0], start_ns)
    pinning = min(float(np.maximum(overlap, 0).sum()), end_ns - start_ns)
    found.spent[UNSPLIT, PINNED] += pinning
    found.spent[UNSPLIT, PASSED] += end_ns - start_ns - pinning


def _overtaken_ns(call: _Call, until_ns: Ns, ready: dict[tuple[int, int], Ns]) -> float:
    """How long before `until_ns` another batch was ready, which a loader that keeps the order does not deliver."""
    if call.in_order == _OUT_OF_ORDER:
        return 0.0
    ahead = call.workers * max(1, call.prefetch)
    later = (ready.get((call.loader, call.batch + more), until_ns) for more in range(1, ahead + 1))
    return max(0, until_ns - max(call.start_ns, min(later)))


def _in_mean_step(found: BatchWaits, steps: int) -> BatchWaits:
    spent = {key: took / steps for key, took in found.spent.items()}
    others = (found.start_up_ns, found.slow_ns, found.overtaken_ns, found.batches)
    return BatchWaits(spent, *(of / steps for of in others))
