"""Work that differs: operations and modules of the recorded steps, and functions of the job in all others."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.comparison.answer import CodeChange, OperatorChange
from esprof.analyzers.comparison.intervals import changes, largest
from esprof.analyzers.comparison.pair import RunPair
from esprof.analyzers.comparison.path_time import place_of
from esprof.analyzers.comparison.side import ComparedSide
from esprof.analyzers.ops.calls import Key, total_gpu_ns
from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.core.types import Rank, us
from esprof.replay.cpu.python_time import text_of
from esprof.run.stacks import location_of

MAX_ROWS = 20

MIN_SHARE_OF_STEP = 0.002
"""Least change of an operation, as a share of the step, that is listed where its number of calls is the same."""

MIN_SAMPLES = 8
"""Fewest samples of a function in a run from which its time is estimated."""


@dataclass(frozen=True)
class _Operation:
    """Time of one operation in each recorded step, ns, float64[steps], and its calls in a mean step; means over ranks."""

    took_ns: np.ndarray
    calls: float


def operators_that_differ(pair: RunPair) -> tuple[OperatorChange, ...]:
    """Operations and modules with another number of calls, or whose time differs beyond noise; largest change first."""
    on_gpu = any(_works_on_gpu(side) for side in pair.sides)
    of = {id(side): _operations(side, on_gpu) for side in pair.sides}
    keys = sorted({key for some in of.values() for key in some}, key=lambda key: (key.kind, key.name))
    if not all(any(key.kind == "module" for key in some) for some in of.values()):  # Recorded in one run only.
        keys = [key for key in keys if key.kind != "module"]

    def operations(side: ComparedSide) -> list[_Operation]:
        return [of[id(side)].get(key, _Operation(np.zeros(len(side.recorded_ns)), 0.0)) for key in keys]

    found = pair.changes(lambda side: [one.took_ns for one in operations(side)], MAX_ROWS)
    calls = [[round(one.calls, 3) for one in operations(side)] for side in pair.sides]
    rows = [
        OperatorChange(
            name=keys[at].name,
            kind=keys[at].kind,
            calls_before=calls[0][at],
            calls_after=calls[1][at],
            **found[at],
        )
        for at in largest(found)
    ]
    least_us = us(MIN_SHARE_OF_STEP * float(pair.before.recorded_ns.mean()))
    is_listed = [
        abs(row.change_us) >= least_us and not (row.noise and row.calls_before == row.calls_after) for row in rows
    ]
    return tuple(row for row, listed in zip(rows, is_listed, strict=True) if listed)[:MAX_ROWS]


def _works_on_gpu(side: ComparedSide) -> bool:
    return any(len(calls.work.row) for calls in side.case.gpu_calls.values())


def _operations(side: ComparedSide, on_gpu: bool) -> dict[Key, _Operation]:
    """The operations of a run: own time, of modules total time, on GPU or CPU."""
    steps, ranks = side.case.replayed.steps, len(side.case.gpu_calls)
    took: dict[Key, np.ndarray] = defaultdict(lambda: np.zeros(len(steps.steady)))
    number: dict[Key, float] = defaultdict(float)
    for rank, calls in side.case.gpu_calls.items():
        begin = np.array([steps.boundaries[rank][step][0] for step in steps.steady], np.int64)
        row = np.clip(np.searchsorted(begin, calls.start_ns, side="right") - 1, 0, len(begin) - 1)
        time = _time(calls, on_gpu)
        table_ns = np.zeros((len(begin), len(calls.calls.keys)))
        np.add.at(table_ns, (row, calls.calls.key), time)
        counted = np.bincount(calls.calls.key, calls.calls.counts, len(calls.calls.keys))
        for at, key in enumerate(calls.calls.keys):
            took[key] += table_ns[:, at] / ranks
            number[key] += float(counted[at]) / ranks / len(begin)
    return {key: _Operation(took[key], number[key]) for key in took}


def _time(calls: GpuCalls, on_gpu: bool) -> np.ndarray:
    """Time of each call that its row counts, ns."""
    is_module = calls.calls.of(lambda key: key.kind == "module")
    if not on_gpu:
        return np.where(is_module, calls.calls.adds_ns, calls.calls.own_ns)
    own, total = total_gpu_ns(calls.calls, calls.work)
    return np.where(is_module, total * calls.calls.outermost, own)


def code_that_differs(pair: RunPair) -> tuple[CodeChange, ...]:
    """Places in the job's code whose time in steps without profiler differs beyond noise, largest change first."""
    sides = [_Sampled(side) for side in pair.sides]
    places = sorted({name for side in sides for name, count in side.samples.items() if count >= MIN_SAMPLES})
    if not places or not all(side.is_sampled for side in sides):
        return ()
    before, after = (np.stack([side.took_ns[name] for name in places], axis=1) for side in sides)
    found = changes(before, after, len(places), pair.correlated)
    rows = []
    for at in largest(found):
        longer = sides[found[at]["change_us"] > 0]
        rows.append(CodeChange(place=places[at], line=longer.line(places[at]), **found[at]))
    return tuple(row for row in rows if not row.noise)[:MAX_ROWS]


class _Sampled:
    """Time of the places in which the stacks of a run's steps without profiler end; means over ranks."""

    def __init__(self, side: ComparedSide) -> None:
        self._side = side
        self.steps = side.case.job.steps.numbers("plain")
        self.samples: dict[str, int] = defaultdict(int)
        self.took_ns: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(self.steps)))
        self._lines: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for rank in side.run.ranks:
            self._add(rank)

    @property
    def is_sampled(self) -> bool:
        return bool(self.samples)

    def line(self, place: str) -> str:
        lines = self._lines[place]
        return max(lines, key=lambda line: lines[line])

    def _add(self, rank: Rank) -> None:
        of_rank = self._side.case.job.samples.of(rank)
        inside = (of_rank.code >= 0) & np.isin(of_rank.step, self.steps)
        at, code, took = np.searchsorted(self.steps, of_rank.step[inside]), of_rank.code[inside], of_rank.dur_ns[inside]
        for number in np.unique(code).tolist():
            location = location_of(of_rank.stacks[number])
            mine, place = code == number, place_of(location)
            self.samples[place] += int(mine.sum())
            self.took_ns[place] += np.bincount(at[mine], took[mine], len(self.steps)) / len(self._side.run.ranks)
            self._lines[place][text_of(location)] += float(took[mine].sum())
