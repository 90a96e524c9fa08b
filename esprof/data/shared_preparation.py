"""Preparation of samples that several jobs of a host share (coordinated preparation; CoorDL, VLDB 2021, §6.3)."""

import os
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from esprof.core.errors import UsageError
from esprof.core.processes import LONGEST_PAUSE_S, Patience
from esprof.data.preparation.entries import EpochItem
from esprof.data.preparation.store import PreparedStore, Turn
from esprof.data.sample_codec import decode, encode
from esprof.data.tally import Tally
from esprof.data.wrapped_dataset import Indexed, WrappedDataset

_MAX_JOB_BYTES = 255


class SharedPreparation(WrappedDataset):
    """A map-style data set whose samples are prepared once an epoch for all jobs of this host.

    Jobs that name the same `folder` read the samples in the order of `order()`, with the same seed. Their loader workers
    share out the samples that they are about to use: one prepares a sample, that is, reads, decodes and transforms it, and
    the others take it from the folder. It is removed when all jobs have used it. Random transforms therefore have the same
    result in all jobs; from epoch to epoch they differ.

    Whatever happens to other jobs or to the folder, each job gets each sample once an epoch: a sample that has no room, or
    whose preparation takes another process longer than `timeout_s`, is prepared by whoever needs it. What only a killed job
    needed is removed within seconds.
    """

    def __init__(
        self,
        dataset: Indexed,
        bytes: int,
        folder: str | os.PathLike[str],
        *,
        job: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """`bytes` bound the folder. `job` names the job: all its ranks on this host pass the same name; the default is
        the address of the job's master, or this process if it is the job's only rank. Raises UsageError if `dataset` has
        no length or items by number, OutputError if the folder has no room, and what `SharedDatabase` raises."""
        super().__init__(dataset)
        self._job = job or _name_of_job()
        if len(self._job.encode()) > _MAX_JOB_BYTES:
            raise UsageError("the name of the job is too long", remedy=f"Use at most {_MAX_JOB_BYTES} bytes.")
        self._timeout_s = timeout_s
        self._store = PreparedStore(bytes, len(dataset), folder)
        self._tally = Tally(self._store.folder / "counts", ("prepared", "shared"))
        self._rank = self._store.join(self._job)
        weakref.finalize(self, _leave, self._store, self._rank, os.getpid())

    @property
    def prepared(self) -> int:
        """Number of samples that the jobs of this folder have prepared so far."""
        return self._tally.read()["prepared"]

    @property
    def shared(self) -> int:
        """Number of samples that jobs took from others so far."""
        return self._tally.read()["shared"]

    @property
    def held(self) -> int:
        """Number of samples in the folder, which some job has still to use."""
        return self._store.held

    def order(
        self, *, seed: int = 0, shuffle: bool = True, rank: int | None = None, world: int | None = None
    ) -> "SharedOrder":
        """A sampler for the DataLoader. All jobs use the same arguments; `rank` and `world` are by default those of the
        job's launcher."""
        rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
        return SharedOrder(self, seed=seed, shuffle=shuffle, rank=rank, world=world)

    def wait_for_jobs(self, jobs: int, timeout_s: float = 60.0) -> bool:
        """Wait until so many jobs use the folder, this one included: what is prepared before is not held for those that
        come later. Returns whether they came in time."""
        deadline_s = time.monotonic() + timeout_s
        while len(self._store.jobs()) < jobs:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(LONGEST_PAUSE_S)
        return True

    def leave(self) -> None:
        """Hold no more samples for this job, which goes on without them. A job that ends has left."""
        self._store.leave(self._rank)

    def begin(self, epoch: int) -> None:
        """Note that this rank begins `epoch`; `order()` calls it."""
        self._store.begin(self._rank, epoch)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Samples of a batch, in whose preparation several jobs may take part. Raises UsageError for items that are not of
        `order()`."""
        if not all(isinstance(item, EpochItem) for item in indices):
            raise UsageError(
                "samples are shared in the order of `order()` only",
                remedy="Pass it to the DataLoader: `DataLoader(prepared, sampler=prepared.order())`.",
            )
        samples: dict[int, Any] = {}
        prepared = 0
        waiting, patience = list(enumerate(indices)), Patience(self._timeout_s)
        while waiting:
            left = []
            for place, item in waiting:
                answer = self._store.take(self._job, item, insist=patience.is_over)
                if answer is Turn.WAIT:  # Meanwhile this process prepares others of the batch.
                    left.append((place, item))
                elif answer is Turn.PREPARE:
                    samples[place] = self._prepare(item)
                    prepared += 1
                else:
                    samples[place] = decode(answer)
            if len(left) == len(waiting):
                patience.pause()
            elif left:
                patience = Patience(self._timeout_s)
            waiting = left
        self._tally.add(prepared=prepared, shared=len(indices) - prepared)
        return [samples[place] for place in range(len(indices))]

    def _prepare(self, item: EpochItem) -> Any:
        try:
            sample = self.dataset[item.number]
            data = encode(sample) if self._store.is_needed(item, besides=self._job) else None
        except BaseException:
            self._store.give_up(item)
            raise
        self._store.finish(self._job, item, data)
        return sample


class SharedOrder:
    """A sampler of `SharedPreparation`: all jobs get the same order, which differs from epoch to epoch.

    Each iteration is the next epoch. As with `DistributedSampler`, each of `world` ranks gets every `world`-th sample, and
    the first are repeated until all have equally many.
    """

    def __init__(self, prepared: SharedPreparation, *, seed: int, shuffle: bool, rank: int, world: int) -> None:
        self._prepared, self._seed, self._shuffle = prepared, seed, shuffle
        self._rank, self._world = rank, world
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one, in a job that goes on from a checkpoint. Jobs share samples of equal epochs."""
        self._epoch = epoch
        self._prepared.begin(epoch)

    def __len__(self) -> int:
        return -(-len(self._prepared) // self._world)

    def __iter__(self) -> Iterator[EpochItem]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        self._prepared.begin(epoch)
        items = len(self._prepared)
        order = np.random.default_rng((self._seed, epoch)).permutation(items) if self._shuffle else np.arange(items)
        for index in np.resize(order, len(self) * self._world)[self._rank :: self._world].tolist():
            yield EpochItem(epoch, index)


def _name_of_job() -> str:
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and "MASTER_PORT" in os.environ:
        return f"{os.environ.get('MASTER_ADDR', '')}:{os.environ['MASTER_PORT']}"
    return uuid.uuid4().hex


def _leave(store: PreparedStore, rank: int, owner: int) -> None:
    if os.getpid() == owner:
        store.leave(rank)
