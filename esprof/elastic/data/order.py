"""The order of samples for each EST: a pure function of the seed, the epoch and the position in it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from esprof.core.assignment import Est
from esprof.core.errors import UsageError
from esprof.elastic.data.sampled import SampledOrder
from esprof.elastic.data.threads import one_thread
from esprof.elastic.leaving.termination import held_back, outlive_sigterm
from esprof.elastic.runtime.rng import cpu_states, derived_seed, preserved, seed_cpu, seeded
from esprof.elastic.verify.steplog import Value

_Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class SampleOrder:
    """The distribution of an epoch: EST e takes every n-th sample of a shuffled list, starting with the e-th, like
    rank e of a `DistributedSampler` with this seed.

    With `sampled` the list comes from the script's sampler. A step takes `accumulate` batches of `batch_size` for each
    EST. Without `drop_last` an epoch's last step may have fewer samples, or none, for some ESTs. Raises UsageError if
    an epoch has no step.
    """

    samples: int
    n_est: int
    batch_size: int
    accumulate: int = 1
    seed: int = 0
    drop_last: bool = True
    shuffle: bool = True
    sampled: SampledOrder | None = None

    def __post_init__(self) -> None:
        if not self.steps_per_epoch:
            raise UsageError(
                f"{self.samples} samples are fewer than the {self.per_step} of one step",
                remedy="Use fewer ESTs, a smaller batch_size, or Data(drop_last=False).",
            )

    @property
    def per_step(self) -> int:
        """Samples of a whole step, over all ESTs."""
        return self.n_est * self.batch_size * self.accumulate

    @property
    def steps_per_epoch(self) -> int:
        return self.samples // self.per_step if self.drop_last else -(-self.samples // self.per_step)

    def fields(self) -> dict[str, Value]:
        """Fields for the job's fingerprint."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "sampled"}
        return own | (self.sampled.fields() if self.sampled is not None else {})

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def batch(self, step: int, est: Est, micro: int) -> list[int]:
        """Indices of the samples of one micro-batch, in order; without `drop_last` an epoch's last may be short or
        empty."""
        order = self._order(self.epoch(step))
        first = ((step % self.steps_per_epoch) * self.accumulate + micro) * self.batch_size
        # Every n_est-th sample, from the EST's own on.
        mine: list[int] = order[first * self.n_est + est : (first + self.batch_size) * self.n_est : self.n_est].tolist()
        return mine

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if self.sampled is not None:
            return self.sampled.epoch(epoch)
        return _permutation(self.samples, self.seed + epoch, self.shuffle)

    def forget(self) -> None:
        """Ask the sampler anew: the script may have changed it."""
        if self.sampled is not None:
            self.sampled.epoch.cache_clear()

    def share(self, step: int, est: Est) -> int:
        """Number of samples of an EST in a step."""
        return sum(len(self.batch(step, est, micro)) for micro in range(self.accumulate))

    def count(self, step: int) -> int:
        """Number of samples of the whole step, over all ESTs."""
        return min(self.per_step, self.samples - (step % self.steps_per_epoch) * self.per_step)


class Batches:
    """The batches of this process's ESTs, in the order in which they run, from `step` on without end.

    One DataLoader makes the batches of all ESTs; its workers start with the first one. There is no state to save. A
    micro-batch without samples is left out.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        order: SampleOrder,
        ests: Sequence[Est],
        step: int,
        *,
        workers: int = 0,
        collate: _Collate | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        outlive: bool = False,
    ) -> None:
        """With `outlive` the workers survive a SIGTERM to all processes of the job."""
        self._seed = order.seed
        self._held_back = held_back if outlive else nullcontext
        self._keys = _Keys(order, ests, step)
        self._made = _MadeBatches(dataset, order.seed, collate or default_collate, repeated=order.sampled is not None)
        self._loader: DataLoader[Any] = DataLoader(
            self._made,
            batch_size=None,  # An item is a whole batch.
            sampler=self._keys,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            worker_init_fn=outlive_sigterm if outlive else None,
        )
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._iterator is None:
            # The loader draws a seed for its workers, which must not come from an EST's generators.
            with self._held_back(), seeded(self._seed):
                self._iterator = iter(self._loader)
        return next(self._iterator)

    def again(self, step: int, est: Est) -> list[Any]:
        """The batches of an EST in a step, made here and now, whoever runs it."""
        return [self._made[key] for key in self._keys.of(step, est)]

    def sample(self, epoch: int, index: int) -> tuple[Any, bool]:
        """(one sample, made here and now; whether random numbers were drawn for it)."""
        with one_thread(), preserved():
            seed_cpu(derived_seed(self._seed, epoch, index))
            before = cpu_states()
            return self._made.sample(index, epoch, index), cpu_states() != before


@dataclass(frozen=True)
class _Key:
    """One micro-batch: its EST and its samples."""

    step: int
    epoch: int
    est: Est
    micro: int
    indices: list[int]


class _Keys:
    """The keys of the micro-batches to load, in order."""

    def __init__(self, order: SampleOrder, ests: Sequence[Est], step: int) -> None:
        self._order = order
        self._ests = ests
        self._step = step

    def __iter__(self) -> Iterator[_Key]:
        step = self._step
        while self._ests:
            for est in self._ests:
                yield from self.of(step, est)
            step += 1

    def of(self, step: int, est: Est) -> Iterator[_Key]:
        """The keys of one EST in a step."""
        for micro in range(self._order.accumulate):
            indices = self._order.batch(step, est, micro)
            if indices:
                yield _Key(step, self._order.epoch(step), est, micro, indices)


class _MadeBatches(Dataset[Any]):
    """The batches of the user's dataset. Generators are seeded for each sample, and for the collation of each batch."""

    def __init__(self, dataset: Dataset[Any], seed: int, collate: _Collate, *, repeated: bool) -> None:
        self._dataset = dataset
        self._repeated = repeated
        self._seed = seed
        self._collate = collate

    def __getitem__(self, key: _Key) -> Any:
        with one_thread(), preserved():
            samples = []
            for position, index in enumerate(key.indices):
                # A sampler may repeat a sample in an epoch; each repetition needs other random augmentations.
                what = (key.step, key.est, key.micro, position) if self._repeated else (key.epoch, index)
                samples.append(self.sample(index, *what))
            seed_cpu(derived_seed(self._seed, "batch", key.step, key.est, key.micro))
            return self._collate(samples)

    def sample(self, index: int, *what: int) -> Any:
        """The sample of this index, with generators seeded by `what`."""
        seed_cpu(derived_seed(self._seed, *what))
        return self._dataset[index]


def _as_it_is(batch: Any) -> Any:
    return batch


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, shuffle: bool) -> NDArray[np.int64]:
    if not shuffle:
        return np.arange(samples)
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed)).numpy()
