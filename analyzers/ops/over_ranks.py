"""The table of operations over all ranks of a run."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.ops.answer import CallSite, Kernel, Op, OpsAnswer, RankOp, Shapes
from esprof.analyzers.ops.attention import attention
from esprof.analyzers.ops.backward import backward_ns
from esprof.analyzers.ops.call_sites import call_sites_of
from esprof.analyzers.ops.calls import (
    Key,
    LaunchedWork,
    RankCalls,
    SteadyTime,
    by_pair,
    calls_of,
    known,
    launched_by,
    total_gpu_ns,
)
from esprof.analyzers.ops.collective_rates import collective_rates
from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.ops.sort import By, Sort
from esprof.analyzers.ops.utilisation import RankUtilisation, rank_utilisation, utilisation
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core import readable
from esprof.core.errors import InputError, UsageError
from esprof.core.types import Rank, us
from esprof.replay.building.lookup import numbered
from esprof.replay.steps import RecordedSteps, steps_of
from esprof.run.run import Run
from esprof.run.schema import Table

MAX_DETAILS_NAMED = 4
"""Most kernels, shapes and source locations listed for one operation."""

MIN_DIFFERENCE_FROM_MEDIAN = 0.25
"""A rank differs if its distance from the median of the ranks exceeds this share of the median …"""

MIN_DIFFERENCE_OF_TOTAL = 0.005
"""… and this share of the own time of all operations."""

_SUMS = ("calls", "own_cpu", "total_cpu", "own_gpu", "total_gpu", "backward_cpu", "backward_gpu")


_DEFAULT_SORT: dict[tuple[By, bool], Sort] = {
    ("operation", True): "own-gpu",
    ("operation", False): "own-cpu",
    ("module", True): "total-gpu",
    ("module", False): "total-cpu",
}
"""By the kind of rows, and whether a GPU is used. Nearly all time of a module is that of the operations in it."""


@dataclass(frozen=True)
class Asked:
    """Options of the table. If `sort` is None, rows are sorted by their time on the GPU, or on the CPU if no GPU is used:
    operations by own time, modules by total time."""

    sort: Sort | None = None
    top: int = 20
    rank: Rank | None = None
    by_shape: bool = False
    pattern: re.Pattern[str] | None = None
    by: By = "operation"


@dataclass(frozen=True)
class _RankOps:
    """Sums over the steady-state steps of one rank, ns and calls; arrays have one entry for each of `keys`."""

    keys: tuple[Key, ...]
    sums: np.ndarray
    """int64[len(_SUMS), keys]"""
    kernels: dict[tuple[int, str], tuple[int, int]]
    """(calls, ns) by key and name."""
    shapes: dict[tuple[int, str], int]
    """Calls by key and shapes."""
    call_sites: dict[tuple[int, str], int]
    """ns by key and frame."""
    gpu_ns: int
    outside_ns: int
    step_ns: float
    gpu_calls: GpuCalls
    utilisation: RankUtilisation


def ops_run(run: Run, asked: Asked = Asked()) -> OpsAnswer:
    """The operations of `run`. Raises InputError if it has no recorded step, UsageError for a rank that it lacks."""
    if not any(len(run.events(rank)) for rank in run.ranks):
        raise InputError(
            "no window was recorded; operations are recorded in windows only",
            path=run.path,
            remedy="Record it without --flight, or with --every or --attach.",
        )
    steps = steps_of(run)
    return ops(steps, JobSamples(JobSteps(steps.run)), asked)


def ops(steps: RecordedSteps, samples: JobSamples, asked: Asked = Asked()) -> OpsAnswer:
    """The operations of the steady-state steps; `samples` belong to the same run."""
    run = steps.run
    if asked.rank is not None:
        check_rank(run, asked.rank)
    ranks = run.ranks if asked.rank is None else [asked.rank]
    found = [_of_rank(samples, rank, steps, asked.by_shape) for rank in ranks]
    has_gpu = any(one.gpu_ns for one in found)
    if not has_gpu and asked.sort in ("own-gpu", "total-gpu"):
        raise UsageError("these steps launched no work on a GPU", remedy="Sort by own-cpu or total-cpu.")
    table = _Table(ranks, found, len(steps.steady), asked.sort or _DEFAULT_SORT[asked.by, has_gpu])
    chosen, rates = table.chosen(asked), collective_rates(steps, ranks)
    return OpsAnswer(
        world_size=run.world_size,
        ranks=tuple(ranks),
        missing_ranks=run.missing_ranks,
        unit=run.unit,
        steps=steps.steady,
        step_us=us(float(np.mean([one.step_ns for one in found]))),
        has_gpu=has_gpu,
        sort=table.sort,
        by=asked.by,
        by_shape=asked.by_shape,
        pattern=asked.pattern.pattern if asked.pattern else None,
        cpu_us=table.mean_us(sum(int(one.sums[1].sum()) for one in found)),
        gpu_us=table.mean_us(sum(one.gpu_ns for one in found)),
        gpu_outside_us=table.mean_us(sum(one.outside_ns for one in found)),
        utilisation=utilisation([one.utilisation for one in found]),
        attention=attention([one.gpu_calls for one in found]),
        collectives=rates.known,
        collectives_unknown=rates.unknown_share,
        shapes_recorded=any(one.shapes for one in found),
        modules_recorded=any(key.kind == "module" for one in found for key in one.keys),
        found=len(chosen),
        ops=tuple(table.op(key) for key in chosen[: asked.top]),
        warnings=run.warnings,
    )


def check_rank(run: Run, rank: Rank) -> None:
    """Raise UsageError if `run` has no such rank."""
    if rank not in run.ranks:
        raise UsageError(f"the run has no rank {rank}", remedy=f"It has {readable.ranks(run.ranks)}.")


def _of_rank(samples: JobSamples, rank: Rank, steps: RecordedSteps, by_shape: bool) -> _RankOps:
    events = samples.run.events(rank)
    steady = SteadyTime([steps.boundaries[rank][step] for step in steps.steady])
    calls = calls_of(events, steady, by_shape)
    launched = launched_by(events, calls, steady, is_window=steps.run.unit == "window")
    own_gpu, total_gpu = total_gpu_ns(calls, launched)
    gpu_calls = GpuCalls(events, calls, launched, len(steps.steady), steady.total_ns)

    def summed(values: np.ndarray) -> np.ndarray:
        # Sums of ns stay exact: a double holds integers up to 2^53, which are 104 days.
        return np.bincount(calls.key, weights=values, minlength=len(calls.keys)).astype(np.int64)

    backward = backward_ns(events, calls, (calls.total_ns, total_gpu))
    of_calls = [calls.counts, calls.own_ns, calls.adds_ns, own_gpu]
    of_calls += [total * calls.outermost for total in (total_gpu, *backward)]
    kernels, of_kernels = _without_launch(events, launched)
    return _RankOps(
        keys=(*calls.keys, *kernels),
        sums=np.concatenate([np.stack([summed(values) for values in of_calls]), of_kernels], axis=1),
        kernels=_kernels(events, calls, launched),
        shapes=_shapes(events, calls),
        call_sites=call_sites_of(events, samples.of(rank), calls, steady),
        gpu_ns=int(launched.dur_ns.sum()),
        outside_ns=int(launched.dur_ns[launched.has_launch & (launched.by < 0)].sum()),
        step_ns=steady.total_ns / len(steps.steady),
        gpu_calls=gpu_calls,
        utilisation=rank_utilisation(gpu_calls, samples.run.rank(rank).device),
    )


def _without_launch(events: Table, launched: LaunchedWork) -> tuple[list[Key], np.ndarray]:
    """GPU work without a recorded launch as rows of the table: (a key for each name, sums as in `_RankOps`)."""
    unknown = ~launched.has_launch
    name, names = events.codes("name")
    number, codes = numbered(name[launched.row[unknown]])
    sums = np.zeros((len(_SUMS), len(codes)), np.int64)
    sums[_SUMS.index("calls")] = np.bincount(number, minlength=len(codes))
    took = np.bincount(number, weights=launched.dur_ns[unknown], minlength=len(codes))
    sums[_SUMS.index("own_gpu")] = sums[_SUMS.index("total_gpu")] = took
    return [Key("kernel", [*names, ""][code], None) for code in codes.tolist()], sums


def _kernels(events: Table, calls: RankCalls, launched: LaunchedWork) -> dict[tuple[int, str], tuple[int, int]]:
    mine = launched.by >= 0
    key, name, dur = calls.key[launched.by[mine]], launched.row[mine], launched.dur_ns[mine]
    codes, names = events.codes("name")
    took, launches = by_pair(key, codes[name], names, dur), by_pair(key, codes[name], names, np.ones_like(dur))
    return {pair: (launches[pair], took[pair]) for pair in took}


def _shapes(events: Table, calls: RankCalls) -> dict[tuple[int, str], int]:
    codes, texts = events.codes("shapes")
    shape = codes[calls.row]
    found = by_pair(calls.key, shape, texts, calls.counts)
    return {(key, text): n for (key, text), n in found.items() if n and known(text) is not None}


def _is_wanted(key: Key, asked: Asked) -> bool:
    is_kind = asked.by == "operation" or key.kind == "module"
    return is_kind and (asked.pattern is None or asked.pattern.search(key.name) is not None)


class _Table:
    """The rows of all ranks, joined by key."""

    def __init__(self, ranks: Sequence[Rank], found: Sequence[_RankOps], steps: int, sort: Sort) -> None:
        self.sort: Sort = sort
        self._ranks = ranks
        self._found = found
        self._per = steps * len(ranks)
        self._steps = steps
        index: dict[Key, int] = {}
        self._key_of = [np.array([index.setdefault(key, len(index)) for key in one.keys], int) for one in found]
        self.keys = list(index)
        self._sums = np.zeros((len(_SUMS), len(ranks), len(index)), np.int64)
        for column, (one, keys) in enumerate(zip(found, self._key_of, strict=True)):
            self._sums[:, column, keys] = one.sums
        self._kernels = self._joined([{at: ns for at, (_, ns) in one.kernels.items()} for one in found])
        self._launches = self._joined([{at: n for at, (n, _) in one.kernels.items()} for one in found])
        self._shapes = self._joined([one.shapes for one in found])
        self._call_sites = self._joined([one.call_sites for one in found])

    def _joined(self, by_rank: Sequence[dict[tuple[int, str], int]]) -> dict[int, Counter[str]]:
        """Sums over the ranks, by key and text."""
        joined: dict[int, Counter[str]] = {}
        for keys, sums in zip(self._key_of, by_rank, strict=True):
            for (key, text), value in sums.items():
                joined.setdefault(int(keys[key]), Counter())[text] += value
        return joined

    def mean_us(self, total_ns: float) -> float:
        """Per mean step and rank, µs."""
        return us(total_ns / self._per)

    def _sorted_by(self) -> np.ndarray:
        column: np.ndarray = self._sums[_SUMS.index(self.sort.replace("own-", "own_").replace("total-", "total_"))]
        return column

    def chosen(self, asked: Asked) -> list[int]:
        """The keys of the wanted kind and with a matching name, sorted."""
        by, total = self._sorted_by().sum(axis=0), self._sums[4 if self._on_gpu else 2].sum(axis=0)
        wanted = [number for number, key in enumerate(self.keys) if _is_wanted(key, asked)]
        return sorted(wanted, key=lambda key: (-by[key], -total[key], self.keys[key].name))

    def op(self, key: int) -> Op:
        of = self.keys[key]
        kernels, launches = self._kernels.get(key, Counter()), self._launches.get(key, Counter())
        inputs, call_sites = self._shapes.get(key, Counter()), self._call_sites.get(key, Counter())
        calls, *times = (float(column.sum()) for column in self._sums[:, :, key])
        own_cpu, total_cpu, own_gpu, total_gpu, backward_cpu, backward_gpu = map(self.mean_us, times)
        return Op(
            name=of.name,
            kind=of.kind,
            shapes=of.shapes,
            calls=round(calls / self._per, 3),
            own_cpu_us=own_cpu,
            total_cpu_us=total_cpu,
            own_gpu_us=own_gpu,
            total_gpu_us=total_gpu,
            backward_cpu_us=backward_cpu,
            backward_gpu_us=backward_gpu,
            share_pct=round(100 * times[2 * self._on_gpu] / (self._own_of_all() or 1), 3),
            differs=self._differs(key),
            by_rank=tuple(self._rank_op(column, key) for column in range(len(self._ranks))),
            kernels=tuple(
                Kernel(name=name, calls=round(launches[name] / self._per, 3), us=self.mean_us(ns))
                for name, ns in kernels.most_common(MAX_DETAILS_NAMED)
            ),
            kernels_found=len(kernels),
            inputs=tuple(
                Shapes(shapes=text, calls=round(n / self._per, 3)) for text, n in inputs.most_common(MAX_DETAILS_NAMED)
            ),
            inputs_found=len(inputs),
            places=tuple(
                CallSite(frame=text, share_pct=round(100 * ns / (call_sites.total() or 1), 3))
                for text, ns in call_sites.most_common(MAX_DETAILS_NAMED)
            ),
        )

    @property
    def _on_gpu(self) -> bool:
        return self.sort.endswith("gpu")

    def _own_of_all(self) -> int:
        """Own time on the device by which rows are sorted, over all ranks and steps, ns; on GPUs, all of their work."""
        return sum(one.gpu_ns for one in self._found) if self._on_gpu else int(self._sums[1].sum())

    def _differs(self, key: int) -> Rank | None:
        """The rank that differs from the others in the sort column. Of two equally far from the median, the larger."""
        mine = self._sorted_by()[:, key].astype(float)
        middle = float(np.median(mine))
        away = np.abs(mine - middle)
        furthest = max(range(len(mine)), key=lambda column: (away[column], mine[column]))
        least = MIN_DIFFERENCE_OF_TOTAL * self._own_of_all() / len(mine) if self.sort != "calls" else 0
        return self._ranks[furthest] if away[furthest] > max(MIN_DIFFERENCE_FROM_MEDIAN * middle, least) else None

    def _rank_op(self, column: int, key: int) -> RankOp:
        calls, own_cpu, total_cpu, own_gpu, total_gpu = (self._sums[:5, column, key] / self._steps).tolist()
        return RankOp(
            rank=self._ranks[column],
            calls=round(calls, 3),
            own_cpu_us=us(own_cpu),
            total_cpu_us=us(total_cpu),
            own_gpu_us=us(own_gpu),
            total_gpu_us=us(total_gpu),
        )
