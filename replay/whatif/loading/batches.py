"""The batches that DataLoaders made in a run: how long each took, and what for."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from esprof.core.types import NS_PER_S, Rank
from esprof.replay.whatif.loading.caches import ReadCache, cache_that_is_there
from esprof.replay.whatif.loading.hit_curve import HitRate
from esprof.replay.whatif.loading.orders import ReadOrder
from esprof.replay.whatif.loading.passes import training_passes
from esprof.replay.whatif.loading.recorded_reads import RecordedReads, recorded_reads
from esprof.replay.whatif.scenario import Declined
from esprof.run.raw.stages import COLLATE, DECODE
from esprof.run.run import Run
from esprof.run.schema import Table
from esprof.run.step_rows import step_at

MIN_BATCHES = 8
"""Least number of recorded batches from which a loader is replayed."""

_MIN_BLOCKED_SHARE = 0.02
"""Least share of the time to make batches that is blocked, from which on the batches wait for reads."""

MIN_DISK_RATE = 2e5
"""Least bytes per second of blocked time from a local disk: with fewer, the batches wait for other storage."""


@dataclass(frozen=True)
class RecordedBatches:
    """K batches of the DataLoader of one rank, in the order in which the loader returned them. Times are ns, float64[K]."""

    workers: int
    """Number of worker processes; 0 if the rank makes its batches itself."""
    prefetch: int
    """Number of batches that each worker makes ahead."""
    per_step: float
    """Mean number of batches in a step."""
    cpu_ns: np.ndarray
    """CPU time to make each batch, at most the time that it took."""
    ready_ns: np.ndarray
    """Time that the thread waited for a CPU meanwhile; 0 where unknown."""
    blocked_ns: np.ndarray
    """Rest of the time to make each batch with the recorded hits: reads, locks, sleeps."""
    decode_ns: np.ndarray
    """CPU time of the part `decode`; 0 where none was recorded."""
    collate_ns: np.ndarray
    """CPU time of the part `collate`; 0 where none was recorded."""
    samples: float
    """Mean number of samples in a batch; inf where unknown."""
    missed: float
    """Share of the bytes read that came from storage: all that are not from a local disk, which only counts its own."""
    recorded_reads: Callable[[], RecordedReads | None] = lambda: None
    """Returns the samples that the ranks of its host read; None if their keys were not recorded."""
    hosts: int = 1
    """Number of hosts of the job."""
    cache: ReadCache | None = None
    """Cache that a term adds to what is there."""
    order: ReadOrder | None = None
    """Order in which a term reads the samples of each pass."""
    in_order: bool = True
    """Whether batches are delivered in the order in which they were requested, and not as soon as one is made."""

    def __len__(self) -> int:
        return len(self.cpu_ns)

    @property
    def took_ns(self) -> np.ndarray:
        """Time to make each batch. Raises Declined as `hits`."""
        took: np.ndarray = self.cpu_ns + self.ready_ns + self.blocked_ns * self._reads_left
        return took

    @cached_property
    def starved(self) -> float:
        """Share of the time to make batches in which the thread waited for a CPU."""
        return float(self.ready_ns.sum() / max(1.0, self.took_ns.sum()))

    def faster(self, factor: float) -> "RecordedBatches":
        """The same batches, each made in `1 / factor` of its time."""
        names = ("cpu_ns", "ready_ns", "blocked_ns", "decode_ns", "collate_ns")
        return replace(self, **{name: getattr(self, name) / factor for name in names})

    def with_ready_samples(self, share: float) -> "RecordedBatches":
        """The same batches, of whose samples this share is there already and only has to be collated."""
        left = 1 - share
        return replace(
            self,
            cpu_ns=self.collate_ns + (self.cpu_ns - self.collate_ns) * left,
            **{name: getattr(self, name) * left for name in ("ready_ns", "blocked_ns", "decode_ns")},
        )

    def shared_by(self, jobs: int) -> "RecordedBatches":
        """The same batches, each sample of which is prepared by one of these jobs, that are equally fast.

        A job that finds all remaining samples begun waits for them: at most (J - 1) / J of a sample (Graham, Bounds on
        multiprocessing timing anomalies, 1969), and half of that on average.
        """
        shared = self.with_ready_samples(1 - 1 / jobs)
        sample_ns = (self.took_ns - self.collate_ns) / self.samples
        return replace(shared, blocked_ns=shared.blocked_ns + sample_ns * (jobs - 1) / (2 * jobs))

    def with_workers(self, workers: int) -> "RecordedBatches":
        """The same batches, made by this number of worker processes."""
        return replace(self, workers=workers)

    def with_prefetch(self, batches: int) -> "RecordedBatches":
        """The same batches, with so many made ahead by each worker. Raises Declined without workers."""
        if not self.workers:
            raise Declined("the ranks make their batches themselves, so none is made ahead: add loader.workers=1")
        return replace(self, prefetch=batches)

    def with_storage(self, speed_up: float) -> "RecordedBatches":
        """The same batches from faster storage: what blocks a worker takes less time. Raises Declined if nothing does."""
        self._require_reads()
        return replace(self, blocked_ns=self.blocked_ns / speed_up)

    def with_decoder(self, speed_up: float) -> "RecordedBatches":
        """The same batches, decoded faster. Raises Declined if no decoding was recorded."""
        if not self.decode_ns.any():
            raise Declined('no decoding was recognised: mark it in the dataset with esprof.stage("decode")')
        saved = self.decode_ns * (1 - 1 / speed_up)
        return replace(self, cpu_ns=self.cpu_ns - saved, decode_ns=self.decode_ns - saved)

    def with_cache(self, cache: ReadCache) -> "RecordedBatches":
        """The same batches with this cache. Raises Declined if it holds what is read, and nothing is read."""
        if cache.holds_prepared:
            hits = cache.hits(self.recorded_reads(), self.hosts)
            return replace(self.with_ready_samples(hits.rate), cache=cache)
        self._require_reads()
        return replace(self, cache=cache)

    def as_they_come(self) -> "RecordedBatches":
        """The same batches, delivered as soon as one is made. Raises Declined with fewer than two workers."""
        if self.workers < 2:
            raise Declined("with fewer than two workers, batches are made in order anyway")
        return replace(self, in_order=False)

    def with_order(self, order: ReadOrder) -> "RecordedBatches":
        """The same samples, read in another order. Raises Declined if nothing is read, or samples are cached."""
        if self.cache is not None and self.cache.holds_prepared:
            raise Declined("an order changes the hits of a cache of reads: leave out cache[samples]")
        self._require_reads()
        return replace(self, order=order)

    @cached_property
    def hits(self) -> HitRate | None:
        """Share of hits of the added cache or, in another order, of the one that is there; None without such a term.

        Raises Declined if the run does not show it.
        """
        if self.cache is None and self.order is None:
            return None
        reads = self.recorded_reads()
        if self.order is None:
            assert self.cache is not None
            return self.cache.hits(reads, self.hosts)
        if reads is None:
            raise Declined("the keys of samples were not recorded: record a map-style dataset with --sample-keys")
        cache = self.cache or cache_that_is_there(reads, self.hosts, 1 - self.missed)
        return cache.hits(reads.ordered(self.order), self.hosts)

    @property
    def _reads_left(self) -> float:
        """How many reads come from storage, relative to those recorded. An added cache never adds to them."""
        if self.hits is None or (self.cache is not None and self.cache.holds_prepared):
            return 1.0
        left = (1 - self.hits.rate) / self.missed
        return left if self.order else min(1.0, left)

    def _require_reads(self) -> None:
        blocked, took = self.blocked_ns.sum(), (self.cpu_ns + self.ready_ns + self.blocked_ns).sum()
        if blocked < _MIN_BLOCKED_SHARE * took:
            raise Declined("making a batch never waits for reads: its time is CPU time")


def batches_of(run: Run, rank: Rank, steps: tuple[int, ...]) -> RecordedBatches | None:
    """The batches of `rank` in its training passes; None without a DataLoader in `steps`.

    Raises Declined if several loaders feed these steps, or too few batches were recorded.
    """
    stages, table = run.stages(rank), run.steps(rank)
    nexts = stages.where(stages.is_kind("next"))
    step = step_at(table, nexts.ints("end_ns"))
    training = training_passes(nexts, step)
    inside = np.isin(step, steps)
    if not (training & inside).any():
        return None
    passes = nexts.ints("loader")[training & inside]
    # One pass follows the other, unless two loaders take turns.
    if np.count_nonzero(np.diff(passes)) >= len(np.unique(passes)):
        raise Declined(f"several DataLoaders feed the steps of rank {rank}")
    workers = int(nexts.ints("workers")[training & inside].max())
    made = stages.where(stages.is_kind("fetch")) if workers > 0 else nexts.where(training)
    made = made.where(np.isin(made.ints("loader"), np.unique(nexts.ints("loader")[training])))
    made = made.where(np.lexsort((made.ints("batch"), made.ints("loader"))))
    if len(made) < MIN_BATCHES:
        raise Declined(f"only {len(made)} batches of rank {rank} were recorded, fewer than {MIN_BATCHES}")
    times = making_times(made)
    return RecordedBatches(
        workers=max(workers, 0),
        prefetch=max(1, int(nexts.ints("prefetch")[training & inside].max())),
        per_step=float(np.count_nonzero(training & inside)) / len(steps),
        decode_ns=_part_ns(stages, made, DECODE),
        collate_ns=np.clip(_part_ns(stages, made, COLLATE), 0, times.cpu_ns),
        samples=float(samples.mean()) if (samples := made.ints("samples")).min() > 0 else np.inf,
        missed=_missed(made, times.blocked_ns),
        recorded_reads=partial(recorded_reads, run, rank),
        hosts=len({meta.host for meta in run.meta.ranks}),
        **times._asdict(),
    )


class MakingTimes(NamedTuple):
    """What the time to make each of K batches was spent on, ns, float64[K]."""

    cpu_ns: np.ndarray
    """CPU time, at most the time that the batch took; all of that if it is unknown."""
    ready_ns: np.ndarray
    """Time that the thread waited for a CPU meanwhile; 0 where unknown."""
    blocked_ns: np.ndarray
    """Rest of the time: reads, locks, sleeps."""


def making_times(made: Table) -> MakingTimes:
    """The times of `made`, rows of the table `stages`."""
    took = (made.ints("end_ns") - made.ints("start_ns")).astype(np.float64)
    # Several threads of a worker may run at once, and an unknown time is -1.
    cpu = np.where(made.ints("cpu_ns") < 0, took, np.minimum(made.ints("cpu_ns"), took))
    ready = np.clip(made.ints("ready_ns"), 0, took - cpu)
    return MakingTimes(cpu, ready, took - cpu - ready)


def _part_ns(stages: Table, made: Table, part: str) -> np.ndarray:
    """CPU time of this part of each batch of `made`, ns; 0 where it has none."""
    parts = stages.where(stages.is_kind("part") & stages.matches("name", part.__eq__))
    key = {
        batch: row
        for row, batch in enumerate(zip(made.ints("loader").tolist(), made.ints("batch").tolist(), strict=True))
    }
    cpu = np.zeros(len(made))
    columns = (parts.ints(name).tolist() for name in ("loader", "batch", "cpu_ns"))
    for loader, batch, ran in zip(*columns, strict=True):
        if (loader, batch) in key:
            cpu[key[loader, batch]] = ran
    return cpu


def _missed(made: Table, blocked_ns: np.ndarray) -> float:
    """Share of the bytes read that came from storage; 1 if the batches wait for no local disk, or if that is unknown."""
    asked, read = made.ints("read_chars"), made.ints("read_bytes")
    known = (asked > 0) & (read >= 0)
    if read[known].sum() < MIN_DISK_RATE * blocked_ns[known].sum() / NS_PER_S:
        return 1.0
    return float(min(1.0, read[known].sum() / asked[known].sum())) if known.any() else 1.0
